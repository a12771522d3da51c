// Checks of the arguments of attention, and parts of a problem.
#include "attention/problem.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "attention/mask_cache.h"
#include "cpu/machine.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/stream.h"
#include "ir/function.h"
#include "mod/elements.h"
#include "run/cuda_memory.h"
#include "run/recorder.h"
#include "support/check.h"
#include "support/debug_log.h"

namespace tilewright::attn {

Tensor to_bhsd(const Tensor& x, Layout layout) {
    return layout == Layout::bhsd ? x : x.transpose({0, 2, 1, 3});
}

Tensor empty_like(DType dtype, const Tensor::Dims& shape, Layout layout, Device device) {
    if (layout == Layout::bhsd) return Tensor::empty(dtype, shape, device);
    return Tensor::empty(dtype, {shape[0], shape[2], shape[1], shape[3]}, device)
        .transpose({0, 2, 1, 3});
}

namespace {

Tensor with_unit_stride(const char* argument, const Tensor& x) {
    if (x.size() == 0 || x.dim(-1) == 1 || x.strides().back() == 1) return x;
    debug_log("attention", "slow path: {} is copied, since its last stride is {}", argument,
              x.strides().back());
    return x.contiguous();
}

}  // namespace

void expect_shape(const char* argument, const Tensor& tensor, const Tensor::Dims& expected) {
    if (tensor.shape() == expected) return;
    user_error("attention", "expected {} of shape ({}) but got {}", argument,
               fmt::join(expected, ", "), tensor.type_name());
}

void expect_device(const char* argument, const Tensor& tensor, Device device) {
    if (!tensor.defined()) return;
    if (!(tensor.device() == device)) {
        user_error("attention", "expected {} on {}, where the query is, but got {} on {}", argument,
                   to_string(device), tensor.type_name(), to_string(tensor.device()));
    }
    if (device.kind == Device::Kind::cpu || tensor.size() == 0) return;
    // A kernel that is given any other address ends the whole process' context.
    const int owner =
        cuda::device_of(reinterpret_cast<cuda::DeviceAddress>(tensor.raw()), argument);
    if (owner != device.index) {
        user_error("attention", "expected {} in the memory of {} but it is in cuda:{}'s", argument,
                   to_string(device), owner);
    }
}

Tensor check_input(const char* argument, const Tensor& tensor, DType dtype, Layout layout,
                   Device device) {
    if (!tensor.defined()) user_error("attention", "expected {} but it was left out", argument);
    if (tensor.rank() != 4)
        user_error("attention", "expected {} of rank 4 but got {}", argument, tensor.type_name());
    if (dtype != DType::f32 && dtype != DType::f64 && dtype != DType::f16 && dtype != DType::bf16)
        user_error("attention", "expected {} of f32, f64, f16 or bf16 but got {}", argument,
                   tensor.type_name());
    if (tensor.dtype() != dtype)
        user_error("attention", "expected {} of dtype {}, that of the query, but got {}", argument,
                   name(dtype), tensor.type_name());
    expect_device(argument, tensor, device);
    return with_unit_stride(argument, to_bhsd(tensor, layout));
}

namespace {

void check_type(const char* argument, const Tensor& tensor, DType dtype, const Tensor::Dims& shape,
                Device device) {
    if (!tensor.defined() || tensor.dtype() != dtype || tensor.shape() != shape) {
        user_error("attention", "expected {} of {} but got {}", argument,
                   to_string(TensorType{dtype, shape}), tensor.type_name());
    }
    expect_device(argument, tensor, device);
}

}  // namespace

Tensor check_output(const char* argument, const Tensor& tensor, DType dtype,
                    const Tensor::Dims& shape, Layout layout, Device device) {
    const Tensor view = tensor.defined() && tensor.rank() == 4 ? to_bhsd(tensor, layout) : tensor;
    check_type(argument, view, dtype, shape, device);
    if (view.size() > 0 && view.dim(-1) > 1 && view.strides().back() != 1)
        user_error("attention", "expected {} with a last stride of 1 but got {}", argument,
                   view.strides().back());
    return view;
}

void check_rows(const char* argument, const Tensor& tensor, DType dtype, const Tensor::Dims& shape,
                Device device) {
    check_type(argument, tensor, dtype, shape, device);
    if (!tensor.is_contiguous())
        user_error("attention", "expected {} without gaps but got strides", argument);
}

namespace {

/// Most keys of a block on a CPU. Longer blocks spread what each costs beside its products; where a
/// mask cuts through them, they cover more pairs that do not attend, which costs least where the
/// products are cheap.
std::int64_t most_keys(const Problem& p) {
    const bool is_bf16 = p.query.dtype() == DType::bf16;
    const bool is_cut = (p.options.right() >= 0 && !is_bf16) || p.options.window_left >= 0 ||
                        p.features.segments || p.block_mask.defined();
    return p.is_long() && !is_cut ? 256 : 128;
}

/// Does a GPU make the products of the forward pass by warpgroups? What gathers, masks loads or
/// draws bits is generated for warps.
bool uses_warpgroups(const Problem& p) {
    const tiles::Features& of = p.features;
    return cuda::device_info(p.device.index).arch() == "sm_90a" && !p.block_mask.defined() &&
           !of.mask && !of.lengths && of.dropout == 0 && of.score.captures() == 0;
}

/// What the choice of blocks on a GPU looks at.
tiles::GpuProblem gpu_problem(const Problem& p) {
    return {.dtype = p.query.dtype(),
            .head_dim = p.head_dim,
            .value_dim = p.value_dim,
            .query_length = p.query_length,
            .kv_length = p.kv_length,
            .tested = p.features.positions() || p.block_mask.defined(),
            .deterministic = p.deterministic,
            .shared_bytes = cuda::device_info(p.device.index).shared_bytes_per_block,
            .wgmma = uses_warpgroups(p)};
}

/// Block sizes for these lengths.
void choose_blocks(Problem& p) {
    // Queries past the end read 0, so that short problems take a whole block.
    if (p.on_gpu()) return tiles::use_gpu_blocks(p.options, gpu_problem(p));
    p.options.block_q = std::clamp<std::int64_t>(p.query_length, 1, 64);
    p.options.block_k = 16;
    const std::int64_t most = most_keys(p);
    while (p.options.block_k < most && p.options.block_k < p.kv_length) p.options.block_k *= 2;
}

void check_segments(const AttentionOptions& options, Problem& p) {
    if (!options.segment_ids.defined()) {
        if (options.kv_segment_ids.defined())
            user_error("attention", "expected segment_ids with kv_segment_ids but got none");
        return;
    }
    const auto is_short = [](const Tensor& ids) {
        return size_of(ids.dtype()) < 4 || ids.dtype() == DType::i32;
    };
    const bool all_short = is_short(options.segment_ids) &&
                           (!options.kv_segment_ids.defined() || is_short(options.kv_segment_ids));
    const auto check = [&](const char* argument, const Tensor& ids, std::int64_t length) {
        expect_shape(argument, ids, {p.batch, length});
        if (!is_integer(ids.dtype()))
            user_error("attention", "expected {} of an integer dtype but got {}", argument,
                       ids.type_name());
        expect_device(argument, ids, p.device);
        return ids.to(all_short ? DType::i32 : DType::i64).contiguous();
    };
    p.segment_ids = check("segment_ids", options.segment_ids, p.query_length);
    p.kv_segment_ids =
        options.kv_segment_ids.defined()
            ? check("kv_segment_ids", options.kv_segment_ids, p.kv_length)
            : check("segment_ids (as kv_segment_ids)", options.segment_ids, p.kv_length);
}

/// Starts of packed sequences: 0 <= ... <= total, never decreasing.
std::vector<std::int64_t> check_starts(const char* argument, const Tensor& starts,
                                       std::int64_t total) {
    if (starts.rank() != 1 || starts.dim(0) < 2 || !is_integer(starts.dtype()))
        user_error("attention", "expected {} of N + 1 integers, N >= 1, but got {}", argument,
                   starts.type_name());
    if (starts.device().kind == Device::Kind::cuda) {
        cuda::expect_no_capture("attention", fmt::format("{} in CPU memory", argument));
        debug_log("attention",
                  "slow path: {} is read from the GPU, which waits; in CPU memory it would not be",
                  argument);
    }
    std::vector<std::int64_t> values = starts.to_vector<std::int64_t>();
    if (values.front() != 0 || values.back() != total)
        user_error("attention", "expected {} from 0 to the total length {} but got {} to {}",
                   argument, total, values.front(), values.back());
    for (std::size_t n = 1; n < values.size(); ++n) {
        if (values[n] < values[n - 1])
            user_error("attention", "expected {} never to decrease but got {} after {}", argument,
                       values[n], values[n - 1]);
    }
    return values;
}

void check_packed(const AttentionOptions& options, Problem& p) {
    if (!options.cu_seqlens.defined()) {
        if (options.kv_cu_seqlens.defined())
            user_error("attention", "expected cu_seqlens with kv_cu_seqlens but got none");
        return;
    }
    if (p.batch != 1)
        user_error("attention", "expected a batch of 1 with cu_seqlens but got {}", p.batch);
    p.starts = check_starts("cu_seqlens", options.cu_seqlens, p.query_length);
    p.kv_starts =
        options.kv_cu_seqlens.defined()
            ? check_starts("kv_cu_seqlens", options.kv_cu_seqlens, p.kv_length)
            : check_starts("cu_seqlens (as kv_cu_seqlens)", options.cu_seqlens, p.kv_length);
    if (p.starts.size() != p.kv_starts.size())
        user_error("attention", "expected as many sequences of keys as of queries, {}, but got {}",
                   p.starts.size() - 1, p.kv_starts.size() - 1);
}

/// Needs the starts of packed sequences.
void check_kv_lengths(const AttentionOptions& options, Problem& p) {
    const Tensor& given = options.kv_lengths;
    if (!given.defined()) return;
    const auto sequences = static_cast<std::int64_t>(p.starts.size()) - 1;
    expect_shape("kv_lengths", given, {p.packed() ? sequences : p.batch});
    if (!is_integer(given.dtype()))
        user_error("attention", "expected kv_lengths of an integer dtype but got {}",
                   given.type_name());
    if (given.device().kind == Device::Kind::cpu) {
        run::interrupt_recording();  // the next call's may be wrong
        const std::vector<std::int64_t> values = given.to_vector<std::int64_t>();
        for (std::size_t b = 0; b < values.size(); ++b) {
            const std::int64_t most =
                p.packed() ? p.kv_starts[b + 1] - p.kv_starts[b] : p.kv_length;
            if (values[b] >= 0 && values[b] <= most) continue;
            user_error("attention", "expected kv_lengths from 0 to the keys' length {} but got {}",
                       most, values[b]);
        }
    }
    const bool is_short = size_of(given.dtype()) < 4 || given.dtype() == DType::i32;
    p.kv_lengths = given.to(is_short ? DType::i32 : DType::i64).contiguous();
    if (p.on_gpu() && given.device().kind == Device::Kind::cpu) {
        p.kv_lengths = p.kv_lengths.to(p.device);
    }
    expect_device("kv_lengths", p.kv_lengths, p.device);
    p.features.lengths = true;
}

/// Ends the keys of a sequence after the last one that a query may attend.
void end_keys(Problem& p, std::int64_t right, std::int64_t most) {
    std::int64_t end = std::min(p.kv_length, most);
    if (right >= 0 && p.query_length > 0) end = std::min(end, p.query_length + right);
    if (end == p.kv_length) return;
    p.kv_length = end;
    p.key = rows_of(p.key, 0, end);
    p.value = rows_of(p.value, 0, end);
    if (p.kv_segment_ids.defined())
        p.kv_segment_ids = p.kv_segment_ids.slice(1, 0, end).contiguous();
}

/// The same of a whole problem, by what the host knows: causal, window, lengths in CPU memory.
void end_keys(const AttentionOptions& options, Problem& p) {
    if (p.packed() || options.block_mask.defined()) return;
    std::int64_t most = p.kv_length;
    if (p.kv_lengths.defined() && options.kv_lengths.device().kind == Device::Kind::cpu) {
        const auto lengths = options.kv_lengths.to_vector<std::int64_t>();
        most = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
        if (lengths.size() == 1) {
            p.kv_lengths = {};
            p.features.lengths = false;
        }
    }
    end_keys(p, options.causal ? 0 : options.window.right, most);
}

/// Masks with more distinct pieces than this are evaluated in the programs: as data, with a byte
/// for each pair, they would fill memory.
constexpr std::size_t kMostAtoms = std::size_t{1} << 16;

/// Small masks are evaluated in the programs: that takes less time than building them. On a GPU a
/// new mask in the program would be a new kernel, and data is none.
bool is_worth_planning(const Problem& p) {
    const std::int64_t least_pairs = p.on_gpu() ? 0 : std::int64_t{1} << 18;
    return !p.packed() && !p.is_part && !p.options.interpret &&
           (p.query_length > 1 || p.on_gpu()) && p.query_length * p.kv_length >= least_pairs;
}

/// True when a mod reads arrays of a GPU: the host cannot build a mask from them without waiting.
bool reads_gpu(const mod::Traced& traced) {
    return std::any_of(traced.captures.begin(), traced.captures.end(), [](const Capture& capture) {
        return capture.tensor().device().kind == Device::Kind::cuda;
    });
}

/// Appends the arrays of a mod; those of the host are copied to the GPU of a problem.
void add_captures(const char* argument, const mod::Traced& traced, Problem& p) {
    for (const Capture& capture : traced.captures) {
        const Tensor& tensor = capture.tensor();
        if (p.on_gpu() && tensor.device().kind == Device::Kind::cpu) {
            debug_log("attention",
                      "slow path: capture `{}` of the {} is copied to {} in every call",
                      capture.name(), argument, to_string(p.device));
            p.captured.push_back(tensor.to(p.device));
            continue;
        }
        expect_device(fmt::format("capture `{}` of the {}", capture.name(), argument).c_str(),
                      tensor, p.device);
        p.captured.push_back(tensor);
    }
}

void check_mods(const AttentionOptions& options, Problem& p) {
    const DType sums = tiles::accumulator(p.query.dtype());
    const bool is_checked = p.options.interpret;
    tiles::ProblemSize size{p.batch, p.query_heads, p.query_length, p.kv_length};
    if (p.packed()) size.batch = static_cast<std::int64_t>(p.starts.size()) - 1;
    size.batch += p.origin[0];
    size.heads += p.origin[1];
    const bool has_pairs = !p.empty() && p.kv_length > 0;
    const auto inlined = [&](const mod::Traced& traced, bool is_score) {
        if (has_pairs) mod::expect_elements("attention", traced.captures);
        // In decode the heads of a group are the rows; the checked mode wants every index.
        if (p.query_length == 1 || is_checked) {
            return tiles::InlinedMod{traced.function, {}, traced.text};
        }
        std::vector<Tensor::Dims> shapes;
        for (const Capture& capture : traced.captures) shapes.push_back(capture.tensor().shape());
        return tiles::with_block_loads(traced.text, *traced.function, is_score, shapes, size);
    };
    if (options.score_mod.defined()) {
        mod::expect_kind("attention", "score_mod", options.score_mod, Mod::Kind::score);
        p.score = &mod::trace(options.score_mod, sums, is_checked);
        add_captures("score_mod", *p.score, p);
        p.features.score = inlined(*p.score, true);
        const mod::Traced& plain = mod::trace(options.score_mod, sums);
        p.plain_score =
            tiles::InlinedMod{plain.function, {}, plain.text, plain.derivative, plain.gathers};
    }
    const MaskSize lengths{p.batch, p.query_heads, p.query_length, p.kv_length};
    const auto is_small = [](const BlockMask& mask) {
        return mask.state()->data->atoms.atoms().size() <= kMostAtoms;
    };
    bool planned = false;
    if (options.mask.defined()) {
        mod::expect_kind("attention", "mask", options.mask, Mod::Kind::mask);
        const mod::Traced& traced = mod::trace(options.mask);
        if (reads_gpu(traced)) {
            debug_log("attention",
                      "slow path: the mask reads arrays of the GPU, so that every pair is tested "
                      "and no block skipped; create_block_mask makes it data once");
        } else if (is_worth_planning(p)) {
            p.block_mask = mask_of_mod(options.mask, lengths);
            planned = is_small(p.block_mask);
            if (!planned) {
                debug_log("attention",
                          "slow path: the mask is evaluated for every pair of every call, since as "
                          "data it has {} distinct pieces of 64 x 64, more than {}",
                          p.block_mask.state()->data->atoms.atoms().size(), kMostAtoms);
                p.block_mask = {};
            }
        }
    }
    if (options.score_mod.defined() && is_worth_planning(p)) {
        // Blocks that the score mod turns into -inf are skipped, too.
        const auto seen = mask_of_score_mod(options.score_mod, lengths);
        if (seen && is_small(*seen)) {
            p.block_mask = p.block_mask.defined() ? intersection(p.block_mask, *seen) : *seen;
        }
    }
    if (options.block_mask.defined()) {
        mask::check_fits("attention", options.block_mask, p.batch, p.query_heads, p.query_length,
                         p.kv_length);
        p.block_mask = p.block_mask.defined() ? intersection(p.block_mask, options.block_mask)
                                              : options.block_mask;
    }
    if (options.mask.defined() && !planned) {
        p.mask = &mod::trace(options.mask, sums, is_checked);
        add_captures("mask", *p.mask, p);
        p.features.mask = inlined(*p.mask, false);
    }
    if (!(options.dropout >= 0 && options.dropout < 1))
        user_error("attention", "expected dropout in [0, 1) but got {}", options.dropout);
    p.features.dropout = options.dropout;
    p.seed = options.seed;
    if (options.sinks.defined()) {
        expect_shape("sinks", options.sinks, {p.query_heads});
        if (!is_float(options.sinks.dtype()))
            user_error("attention", "expected sinks of floats but got {}",
                       options.sinks.type_name());
        expect_device("sinks", options.sinks, p.device);
        p.sinks = options.sinks;
        p.features.sinks = true;
    }
}

}  // namespace

Problem check(const Tensor& query, const Tensor& key, const Tensor& value,
              const AttentionOptions& options) {
    Problem p;
    p.device = query.device();
    p.deterministic = options.deterministic;
    p.engine = options.engine;
    p.max_scores = options.max_scores;
    p.gradient = options.gradient;
    p.is_part = options.origin.has_value();
    if (p.is_part) {
        const auto [batch, head] = *options.origin;
        if (batch < 0 || head < 0)
            user_error("attention", "expected an origin of at least 0 but got ({}, {})", batch,
                       head);
        p.origin[0] = batch;
        p.origin[1] = head;
    }
    p.forward_blocks = options.forward_blocks;
    p.backward_blocks = options.backward_blocks;
    for (const AttentionBlocks& blocks : {p.forward_blocks, p.backward_blocks}) {
        if (blocks.q < 0 || blocks.kv < 0)
            user_error("attention", "expected blocks of at least 1, or 0, but got {} x {}",
                       blocks.q, blocks.kv);
        for (const auto& [name, hint] : {std::pair("num_warps", blocks.num_warps),
                                         std::pair("num_stages", blocks.num_stages)}) {
            if (hint < 0 || hint > ir::CompileHints::kMax)
                user_error("attention", "expected {} of 0 to {} but got {}", name,
                           ir::CompileHints::kMax, hint);
        }
    }
    p.query = check_input("query", query, query.dtype(), options.layout, p.device);
    p.key = check_input("key", key, query.dtype(), options.layout, p.device);
    p.value = check_input("value", value, query.dtype(), options.layout, p.device);
    p.batch = p.query.dim(0);
    p.query_heads = p.query.dim(1);
    p.query_length = p.query.dim(2);
    p.head_dim = p.query.dim(3);
    p.kv_heads = p.key.dim(1);
    p.kv_length = p.key.dim(2);
    p.value_dim = p.value.dim(3);
    if (p.head_dim < 1 || p.value_dim < 1)
        user_error("attention", "expected head dimensions of at least 1 but got {} and {}",
                   query.type_name(), value.type_name());
    if (p.key.dim(0) != p.batch || p.key.dim(3) != p.head_dim)
        user_error("attention",
                   "expected key with the query's batch and head dimension, {} and {}, "
                   "but got {}",
                   p.batch, p.head_dim, key.type_name());
    if (p.value.dim(0) != p.batch || p.value.dim(1) != p.kv_heads || p.value.dim(2) != p.kv_length)
        user_error("attention",
                   "expected value with the key's batch, heads and length, {}, {} and "
                   "{}, but got {}",
                   p.batch, p.kv_heads, p.kv_length, value.type_name());
    if (p.kv_heads == 0 ? p.query_heads != 0 : p.query_heads % p.kv_heads != 0)
        user_error("attention",
                   "expected query heads to be a multiple of kv heads but got {} and {}",
                   p.query_heads, p.kv_heads);
    constexpr std::int64_t kLongest = std::int64_t{1} << 30;  // positions are i32 in the programs
    if (p.query_length > kLongest || p.kv_length > kLongest)
        user_error("attention", "expected lengths up to {} but got {} and {}", kLongest,
                   p.query_length, p.kv_length);
    if (options.window.left < -1 || options.window.right < -1)
        user_error("attention", "expected window bounds of at least -1 but got ({}, {})",
                   options.window.left, options.window.right);
    const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(p.head_dim)));
    if (!std::isfinite(scale)) user_error("attention", "expected a finite scale but got {}", scale);
    p.options.interpret = options.checked || checked();
    if (p.options.interpret && p.on_gpu())
        user_error("attention",
                   "expected inputs in CPU memory in the checked mode, which runs there, but they "
                   "are on {}",
                   to_string(p.device));
    check_segments(options, p);
    check_packed(options, p);
    check_kv_lengths(options, p);
    p.given_kv_length = p.kv_length;
    end_keys(options, p);
    p.autotune = options.autotune && !p.packed() && !p.options.interpret;
    check_mods(options, p);
    p.features.segments = p.segment_ids.defined();
    p.features.long_positions =
        p.features.positions() && std::max(p.query_length, p.kv_length) > tiles::kShortPositions;

    p.options.scale = scale;
    // In narrow types the scaled operand would be rounded.
    p.options.scale_operand = p.features.score && !p.on_gpu() && size_of(p.query.dtype()) >= 4;
    p.options.causal = options.causal;
    // A window as wide as the sequence bounds nothing.
    const auto bound = [](std::int64_t window, std::int64_t length) {
        return window >= length ? -1 : window;
    };
    p.options.window_left = bound(options.window.left, p.query_length);
    p.options.window_right = bound(options.window.right, p.kv_length);
    p.options.group = p.kv_heads == 0 ? 1 : p.query_heads / p.kv_heads;
    choose_blocks(p);
    return p;
}

bool Problem::is_long() const {
    constexpr std::int64_t kLong = 2048;
    const DType dtype = query.dtype();
    return std::min(query_length, kv_length) >= kLong && (dtype == DType::bf16 || dtype == f32);
}

void Problem::use_warp_blocks() {
    tiles::GpuProblem problem = gpu_problem(*this);
    problem.wgmma = false;
    if (options.guarded) tiles::use_gpu_blocks(options, problem);
}

void Problem::use_backward_blocks() {
    if (on_gpu()) {
        use_warp_blocks();
        tiles::GpuProblem problem = gpu_problem(*this);
        problem.wgmma = false;
        return tiles::use_gpu_backward_blocks(options, problem);
    }
    if (options.block_k > 128) options.block_q = 128;  // fewer passes over the longer dK and dV
}

void Problem::use_blocks(const AttentionBlocks& wish) {
    constexpr std::int64_t kLargest = 512, kGrain = 16;  // keys fill whole vectors
    if (on_gpu()) {
        if (wish.num_warps > 0) options.num_warps = wish.num_warps;
        if (wish.num_stages > 0) options.num_stages = wish.num_stages;
        return;
    }
    if (wish.q > 0)
        options.block_q = std::clamp<std::int64_t>(std::min(wish.q, query_length), 1, kLargest);
    if (wish.kv > 0) {
        const std::int64_t keys =
            std::clamp<std::int64_t>(std::min(wish.kv, kv_length), 1, kLargest);
        options.block_k = (keys + kGrain - 1) / kGrain * kGrain;
    }
}

void Problem::make_plan(bool by_kv) {
    if (!block_mask.defined()) return;
    plan = plan_on(device, block_mask,
                   {.block_q = options.block_q,
                    .block_kv = options.block_k,
                    .by_kv = by_kv,
                    .transpose_bits = false,
                    .bits = mask::BitOrder::bytes});
    features.plan = true;
    origin[2] = plan->batch == 1 ? 0 : plan->heads * plan->rows;
    origin[3] = plan->heads == 1 ? 0 : plan->rows;
    plan_headers = plan->headers;
    // Programs count rows from the first batch and head of the larger call.
    const std::int64_t before = origin[0] * origin[2] + origin[1] * origin[3];
    if (before == 0) return;
    const std::int64_t rows = plan->headers.dim(0), fields = plan->headers.dim(1);
    plan_headers = Tensor::zeros(plan->headers.dtype(), {before + rows, fields}, device);
    plan_headers.slice(0, before, rows).copy_from(plan->headers);
}

std::vector<Tensor> Problem::extras() const {
    std::vector<Tensor> result(tiles::Extra::count);
    if (features.positions() || plan) {
        result[tiles::Extra::origin] = run::constant(origin, device);
    }
    if (features.dropout > 0) {
        Tensor& words = result[tiles::Extra::seed];
        words = Tensor::empty(u64, {}, device);
        if (on_gpu()) {
            const std::array<std::uint32_t, 2> halves{static_cast<std::uint32_t>(seed),
                                                      static_cast<std::uint32_t>(seed >> 32)};
            run::write_words(words.raw(), halves, device.index);
        } else {
            *words.data<std::uint64_t>() = seed;
        }
    }
    result[tiles::Extra::kv_lengths] = kv_lengths;
    if (plan) {
        result[tiles::Extra::headers] = plan_headers;
        result[tiles::Extra::partial] = plan->partial;
        result[tiles::Extra::full] = plan->full;
        result[tiles::Extra::bits] = plan->bits;
    }
    result[tiles::Extra::shift] = shift;
    result.insert(result.end(), captured.begin(), captured.end());
    return result;
}

std::vector<bool> Problem::differentiable() const {
    std::vector<bool> result;
    if (!score) return result;
    for (const Capture& capture : score->captures) result.push_back(capture.differentiable());
    return result;
}

Tensor batches_of(const Tensor& x, std::int64_t b, std::int64_t count) {
    return x.defined() ? x.slice(0, b, count) : x;
}
Tensor heads_of(const Tensor& x, std::int64_t h, std::int64_t count) {
    return x.defined() ? x.slice(1, h, count) : x;
}
Tensor rows_of(const Tensor& x, std::int64_t first, std::int64_t count) {
    return x.defined() ? x.slice(2, first, count) : x;
}

Tensor Problem::attended_part(const Tensor& given) const {
    if (given_kv_length == kv_length) return given;
    rows_of(given, kv_length, given_kv_length - kv_length).fill(0);
    return rows_of(given, 0, kv_length);
}

Problem Problem::sequence(std::size_t n) const {
    Problem p = *this;
    p.starts.clear();
    p.kv_starts.clear();
    p.query_length = starts[n + 1] - starts[n];
    p.kv_length = kv_starts[n + 1] - kv_starts[n];
    p.query = rows_of(query, starts[n], p.query_length);
    p.key = rows_of(key, kv_starts[n], p.kv_length);
    p.value = rows_of(value, kv_starts[n], p.kv_length);
    p.given_kv_length = p.kv_length;
    if (segment_ids.defined()) {
        p.segment_ids = segment_ids.slice(1, starts[n], p.query_length);
        p.kv_segment_ids = kv_segment_ids.slice(1, kv_starts[n], p.kv_length);
    }
    if (kv_lengths.defined()) {
        p.kv_lengths = kv_lengths.slice(0, static_cast<std::int64_t>(n), 1);
    }
    p.origin[0] += static_cast<std::int64_t>(n);
    if (block_mask.defined()) {
        p.block_mask = block_mask.shifted(starts[n], kv_starts[n], p.query_length, p.kv_length);
    }
    if (!block_mask.defined()) end_keys(p, p.options.right(), p.kv_length);
    choose_blocks(p);
    return p;
}

void Problem::for_each_sequence(const std::function<void(std::size_t)>& body,
                                bool independent) const {
    const std::size_t count = starts.size() - 1;
    run::interrupt_recording();  // which sequences there are is not a matter of shapes
    if (independent && !on_gpu() && !options.interpret) {
        cpu::parallel_for(static_cast<std::int64_t>(count),
                          [&](std::int64_t n) { body(static_cast<std::size_t>(n)); });
        return;
    }
    for (std::size_t n = 0; n < count; ++n) body(n);
}

Problem Problem::part(std::int64_t b, std::int64_t batches, std::int64_t first,
                      std::int64_t count) const {
    Problem p = *this;
    const std::int64_t group = options.group;
    p.batch = batches;
    p.kv_heads = count;
    p.query_heads = count * group;
    p.query = heads_of(batches_of(query, b, batches), first * group, count * group);
    p.key = heads_of(batches_of(key, b, batches), first, count);
    p.value = heads_of(batches_of(value, b, batches), first, count);
    p.segment_ids = batches_of(segment_ids, b, batches);
    p.kv_segment_ids = batches_of(kv_segment_ids, b, batches);
    p.kv_lengths = batches_of(kv_lengths, b, batches);
    p.shift = heads_of(batches_of(shift, b, batches), first * group, count * group);
    p.origin[0] += b;
    p.origin[1] += first * group;
    return p;
}

}  // namespace tilewright::attn
