// Decides which masks of an attention call become data and which ones the programs evaluate.
#include <algorithm>
#include <cmath>

#include "attention/mask_cache.h"
#include "attention/prepare.h"
#include "mask/block_mask.h"
#include "mod/traced.h"
#include "run/recorder.h"
#include "support/debug_log.h"

namespace tilewright::attn {
namespace {

/// Masks with more distinct atoms than this are evaluated in the programs: as data, with a byte for
/// each pair, they would fill memory.
constexpr std::size_t kMostAtoms = std::size_t{1} << 16;

/// Small masks are evaluated in the programs, which takes less time than building them. On a GPU
/// they become data, too: a new mask in the program would mean a new kernel.
bool is_worth_planning(const AttentionSpec& s) {
    const std::int64_t least_pairs = s.on_gpu() ? 0 : std::int64_t{1} << 18;
    return !s.packed() && !s.is_part && !s.checked && (s.query_length > 1 || s.on_gpu()) &&
           s.query_length * s.kv_length >= least_pairs;
}

/// True when a mod reads arrays of a GPU: the host cannot build a mask from them without waiting.
bool reads_gpu(const mod::Traced& traced) {
    return std::any_of(traced.captures.begin(), traced.captures.end(), [](const Capture& capture) {
        return capture.tensor().device().kind == Device::Kind::cuda;
    });
}

bool is_small(const BlockMask& mask) {
    return mask.state()->data->atoms.atoms().size() <= kMostAtoms;
}

/// Packed sequences with a mask as data become one sequence with a mask that holds both, so that
/// every engine supports them, unless something else counts positions within a sequence. On a CPU
/// sequences run side by side as they are.
void join_sequences(const AttentionOptions& options, AttentionCall& call) {
    AttentionSpec& spec = call.spec;
    AttentionBuffers& b = call.buffers;
    const bool counts = options.mask.defined() || options.score_mod.defined() || spec.dropout > 0 ||
                        spec.kv_lengths || spec.segment_ids;
    if (!spec.packed() || !spec.on_gpu() || !options.block_mask.defined() || counts ||
        spec.is_part || spec.empty() || spec.kv_length == 0) {
        return;
    }
    run::interrupt_recording();  // a replay would not look at the next call's sequences
    b.block_mask = mask_of_sequences(b.starts, b.kv_starts, spec.window_left, spec.right());
    b.starts.clear();
    b.kv_starts.clear();
    spec.sequences = 0;
    spec.causal = false;
    spec.window_left = spec.window_right = -1;
}

/// About how many keys a query attends to: 64 times a power of two, so that similar masks are
/// alike.
std::int64_t keys_of_query(const BlockMask& mask) {
    const double pieces = std::max(1.0, mask::pieces_of_row(mask));
    return mask::kAtom << std::lround(std::log2(pieces));
}

}  // namespace

bool build_mask(const AttentionOptions& options, AttentionCall& call) {
    AttentionSpec& spec = call.spec;
    BlockMask& result = call.buffers.block_mask;
    join_sequences(options, call);
    const MaskSize lengths{spec.batch, spec.query_heads, spec.query_length, spec.kv_length};
    bool evaluates = false;
    if (options.mask.defined()) {
        evaluates = true;
        if (reads_gpu(mod::trace(options.mask))) {
            debug_log("attention",
                      "slow path: the mask reads arrays of the GPU, so that every pair is tested "
                      "and no block skipped; create_block_mask makes it data once");
        } else if (is_worth_planning(spec)) {
            const BlockMask mask = mask_of_mod(options.mask, lengths);
            evaluates = !is_small(mask);
            if (!evaluates) {
                result = mask;
            } else {
                debug_log("attention",
                          "slow path: the mask is evaluated for every pair of every call, since as "
                          "data it has {} distinct pieces of 64 x 64, more than {}",
                          mask.state()->data->atoms.atoms().size(), kMostAtoms);
            }
        }
    }
    const auto add = [&](const BlockMask& mask) {
        result = result.defined() ? intersection(result, mask) : mask;
    };
    if (options.score_mod.defined() && is_worth_planning(spec)) {
        // Blocks that the score mod sets to -inf are skipped, too.
        const auto seen = mask_of_score_mod(options.score_mod, lengths);
        if (seen && is_small(*seen)) add(*seen);
    }
    if (options.block_mask.defined()) {
        mask::check_fits("attention", options.block_mask, spec.batch, spec.query_heads,
                         spec.query_length, spec.kv_length);
        add(options.block_mask);
    }
    spec.block_mask = result.defined();
    if (spec.block_mask) spec.mask_keys = keys_of_query(result);
    return evaluates;
}

}  // namespace tilewright::attn
