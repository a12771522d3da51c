// Attention as custom calls.
#include "tilewright/attention.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "jax/ffi.h"

namespace tilewright::jax {
namespace {

/// What an operand is, under the name that Python gives it.
enum class Role : std::uint8_t {
    query,
    key,
    value,
    out,
    lse,
    dout,
    dlse,
    segment_ids,
    kv_segment_ids,
    cu_seqlens,
    kv_cu_seqlens,
    kv_lengths,
    sinks,
    seed,
    block_mask,
    origin,
    score,
    dscore,
    mask,
};
constexpr std::array kRoles{
    "query", "key",         "value",          "out",        "lse",           "dout",
    "dlse",  "segment_ids", "kv_segment_ids", "cu_seqlens", "kv_cu_seqlens", "kv_lengths",
    "sinks", "seed",        "block_mask",     "origin",     "score",         "dscore",
    "mask"};

Role role_of(std::string_view name) {
    for (std::size_t i = 0; i < kRoles.size(); ++i) {
        if (name == kRoles[i]) return static_cast<Role>(i);
    }
    throw InternalError("[jax] unknown operand " + std::string(name));
}

bool is_read_by_host(Role role) {
    return role == Role::cu_seqlens || role == Role::kv_cu_seqlens || role == Role::seed ||
           role == Role::block_mask || role == Role::origin;
}

/// The words of a text, one after the other; an empty one behind the last.
class Words {
  public:
    explicit Words(std::string_view text) : rest_(text) {}
    std::string_view next() {
        const std::size_t end = std::min(rest_.find(' '), rest_.size());
        const std::string_view word = rest_.substr(0, end);
        rest_.remove_prefix(std::min(end + 1, rest_.size()));
        return word;
    }

  private:
    std::string_view rest_;
};

std::vector<std::size_t> numbers(std::string_view text) {
    std::vector<std::size_t> result;
    Words words(text);
    for (std::string_view word = words.next(); !word.empty(); word = words.next()) {
        result.push_back(std::stoul(std::string(word)));
    }
    return result;
}

/// Masks by their words, the latest first: the same words again cost a comparison, and what
/// belongs to a mask (plans, copies on a GPU) is made once.
class Masks {
  public:
    BlockMask get(const Tensor& given) {
        const Tensor words = given.to(Device{}).contiguous();
        const auto size = static_cast<std::size_t>(words.nbytes());
        const std::scoped_lock lock(mutex_);
        for (const auto& [known, mask] : known_) {
            if (known.size() == size && std::memcmp(known.data(), words.raw(), size) == 0) {
                return mask;
            }
        }
        const auto* first = static_cast<const char*>(words.raw());
        if (known_.size() == kMost) known_.pop_back();
        known_.insert(known_.begin(), {{first, first + size}, BlockMask::from_packed(words)});
        return known_.front().second;
    }

  private:
    static constexpr std::size_t kMost = 16;  // shards of a host, or masks of a schedule
    std::mutex mutex_;
    std::vector<std::pair<std::vector<char>, BlockMask>> known_;
};

/// A part of a mask, cut out once; see Masks.
class Parts {
  public:
    BlockMask get(const BlockMask& mask, std::array<std::int64_t, 2> origin,
                  std::array<std::int64_t, 2> counts) {
        const std::scoped_lock lock(mutex_);
        const std::tuple key(static_cast<const void*>(mask.state().get()), origin, counts);
        if (const auto found = parts_.find(key); found != parts_.end()) {
            return found->second.second;
        }
        if (parts_.size() == kMost) parts_.clear();
        const BlockMask part = mask.part(origin[0], counts[0], origin[1], counts[1]);
        return parts_.emplace(key, std::pair(mask, part)).first->second.second;
    }

  private:
    static constexpr std::size_t kMost = 256;
    using Counts = std::array<std::int64_t, 2>;
    std::mutex mutex_;
    std::map<std::tuple<const void*, Counts, Counts>, std::pair<BlockMask, BlockMask>> parts_;
};

/// The operands of a call by what they are.
struct Operands {
    Tensor query, key, value, out, lse, dout, dlse;
    AttentionOptions options;
};

/// One call of attention but for its arrays.
///
/// The attribute `operands` names the operands in order. Arrays of a mod come once for each of its
/// Refs: `score` or, where the gradient is wanted, `dscore`; `mask`. The texts of the mods are
/// attributes, empty without one. What the host reads (masks as data, starts of packed sequences,
/// the seed, the origin) is an operand or, where it was known when the call was traced, a part of
/// the attribute `host_words`, u32; `host` gives the names and lengths of the parts.
///
/// `origin`, i32 (2), is the batch and the head of a call over all shards that the first here are:
/// block masks are those of the whole call, and with `counts_from_origin` so are mods and dropout.
class AttentionSite {
  public:
    explicit AttentionSite(const Attributes& given)
        : score_mod_(given.text("score_mod")),
          mask_mod_(given.text("mask_mod")),
          derivative_(given.text("derivative")),
          gathers_(numbers(given.get<std::string_view>("gathers"))) {
        Words words(given.get<std::string_view>("operands"));
        for (std::string_view word = words.next(); !word.empty(); word = words.next()) {
            roles_.push_back(role_of(word));
        }
        options_.scale = given.get<double>("scale");
        options_.causal = given.get<bool>("causal");
        options_.window = {given.get<std::int64_t>("window_left"),
                           given.get<std::int64_t>("window_right")};
        options_.dropout = given.get<double>("dropout");
        options_.layout = given.get<bool>("bshd") ? Layout::bshd : Layout::bhsd;
        options_.checked = given.get<bool>("checked");
        options_.deterministic = given.get<bool>("deterministic");
        options_.gradient = given.get<bool>("gradient");
        counts_from_origin_ = given.get<bool>("counts_from_origin");
        read_host_words(given);
    }

    /// Whether dtypes and shapes decide what a call does, not what the host reads.
    bool repeats() const {
        return !options_.checked && std::none_of(roles_.begin(), roles_.end(), is_read_by_host);
    }

    Operands read(const CustomCall& call) const {
        Operands given;
        given.options = options_;
        AttentionOptions& options = given.options;
        std::vector<Capture> score, mask;
        for (std::size_t i = 0; i < call.operands.size(); ++i) {
            const Tensor& operand = call.operands[i];
            switch (roles_.at(i)) {
                case Role::query:
                    given.query = operand;
                    break;
                case Role::key:
                    given.key = operand;
                    break;
                case Role::value:
                    given.value = operand;
                    break;
                case Role::out:
                    given.out = operand;
                    break;
                case Role::lse:
                    given.lse = operand;
                    break;
                case Role::dout:
                    given.dout = operand;
                    break;
                case Role::dlse:
                    given.dlse = operand;
                    break;
                case Role::segment_ids:
                    options.segment_ids = operand;
                    break;
                case Role::kv_segment_ids:
                    options.kv_segment_ids = operand;
                    break;
                case Role::kv_lengths:
                    options.kv_lengths = operand;
                    break;
                case Role::sinks:
                    options.sinks = operand;
                    break;
                case Role::score:
                    score.push_back(capture(operand, {}, false));
                    break;
                case Role::dscore:
                    score.push_back(capture(operand));
                    break;
                case Role::mask:
                    mask.push_back(capture(operand, {}, false));
                    break;
                case Role::cu_seqlens:
                case Role::kv_cu_seqlens:
                case Role::seed:
                case Role::block_mask:
                case Role::origin:
                    add_host_array(options, roles_[i], operand);
                    break;
            }
        }
        if (options.origin) cut(given);
        if (!score_mod_.empty()) {
            options.score_mod = Mod::from_ir(score_mod_, std::move(score));
            if (!derivative_.empty()) {
                options.score_mod = options.score_mod.with_derivative(derivative_, gathers_);
            }
        }
        if (!mask_mod_.empty()) options.mask = Mod::from_ir(mask_mod_, std::move(mask));
        return given;
    }

  private:
    /// An array that the host reads; one on a GPU is copied, which waits.
    void add_host_array(AttentionOptions& options, Role role, const Tensor& array) const {
        if (role == Role::block_mask) {
            const BlockMask mask = masks_.get(array);
            options.block_mask = options.block_mask.defined() ? options.block_mask & mask : mask;
        } else if (role == Role::seed) {
            const Tensor words = array.to(Device{});
            const auto* halves = words.data<std::uint32_t>();
            options.seed = halves[0] | std::uint64_t{halves[1]} << 32;
        } else if (role == Role::origin) {
            const Tensor words = array.to(Device{});
            const auto* first = words.data<std::int32_t>();
            options.origin = {first[0], first[1]};
        } else if (role == Role::cu_seqlens) {
            options.cu_seqlens = array;
        } else {
            options.kv_cu_seqlens = array;
        }
    }

    /// The shard's part of the whole call's block mask.
    void cut(Operands& given) const {
        AttentionOptions& options = given.options;
        if (options.block_mask.defined()) {
            const bool bshd = options.layout == Layout::bshd;
            options.block_mask = parts_.get(options.block_mask, *options.origin,
                                            {given.query.dim(0), given.query.dim(bshd ? 2 : 1)});
        }
        if (!counts_from_origin_) options.origin.reset();
    }

    void read_host_words(const Attributes& given) {
        Words words(given.get<std::string_view>("host"));
        std::size_t first = 0;
        for (std::string_view name = words.next(); !name.empty(); name = words.next()) {
            const std::size_t count = std::stoul(std::string(words.next()));
            const auto all = given.get<ffi::Span<const std::uint32_t>>("host_words");
            const Role role = role_of(name);
            const bool starts = role == Role::cu_seqlens || role == Role::kv_cu_seqlens;
            const Tensor array =
                Tensor::empty(starts ? i32 : u32, {static_cast<std::int64_t>(count)});
            std::copy_n(all.begin() + first, count, static_cast<std::uint32_t*>(array.raw()));
            first += count;
            add_host_array(options_, role, array);
        }
    }

    std::vector<Role> roles_;
    AttentionOptions options_;
    std::string score_mod_, mask_mod_, derivative_;
    std::vector<std::size_t> gathers_;
    bool counts_from_origin_ = false;
    mutable Masks masks_;
    mutable Parts parts_;
};

/// Results out, lse and, where there is a third, max_scores.
struct ForwardSite : AttentionSite {
    using AttentionSite::AttentionSite;
    void run(const CustomCall& call) const {
        const Operands given = read(call);
        const bool with_maximum = call.results.size() > 2;
        attention_into(
            {call.results.at(0), call.results.at(1), with_maximum ? call.results[2] : Tensor()},
            given.query, given.key, given.value, given.options);
    }
};

/// Results: the gradients of query, key, value, of the sinks if there are any, and of every array
/// `dscore`.
struct BackwardSite : AttentionSite {
    using AttentionSite::AttentionSite;
    void run(const CustomCall& call) const {
        const Operands given = read(call);
        AttentionGradients gradients{
            call.results.at(0), call.results.at(1), call.results.at(2), {}, {}};
        attention_backward_into(gradients, given.query, given.key, given.value,
                                {given.out, given.lse, {}}, given.dout, given.options, given.dlse);
        std::size_t next = 3;
        if (gradients.sinks.defined()) call.results.at(next++).copy_from(gradients.sinks);
        for (const Tensor& gradient : gradients.captured) {
            call.results.at(next++).copy_from(gradient);
        }
    }
};

}  // namespace

void add_attention_targets(nb::list& targets) {
    add_target<ForwardSite, CommandBuffers::yes>(targets, "tilewright_attention");
    // The same calls where the host reads an operand.
    add_target<ForwardSite, CommandBuffers::no>(targets, "tilewright_attention_host");
    // Its temporary memory is too large to be kept for every call.
    add_target<BackwardSite, CommandBuffers::no>(targets, "tilewright_attention_backward");
}

}  // namespace tilewright::jax
