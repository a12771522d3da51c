// Operands of attention, by name.
#include "attention_site.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <optional>
#include <string_view>

#include "tilewright/error.h"

namespace tilewright::python {
namespace {

constexpr std::array kRoles{"query",
                            "key",
                            "value",
                            "out",
                            "lse",
                            "dout",
                            "dlse",
                            "segment_ids",
                            "kv_segment_ids",
                            "cu_seqlens",
                            "kv_cu_seqlens",
                            "kv_lengths",
                            "sinks",
                            "seed",
                            "block_mask",
                            "origin",
                            "kv_num_blocks",
                            "kv_indices",
                            "full_kv_num_blocks",
                            "full_kv_indices",
                            "score",
                            "dscore",
                            "mask",
                            "unused"};

Role role_of(std::string_view name) {
    for (std::size_t i = 0; i < kRoles.size(); ++i) {
        if (name == kRoles[i]) return static_cast<Role>(i);
    }
    throw InternalError("[attention] unknown operand " + std::string(name));
}

bool is_read_by_host(Role role) {
    return role == Role::cu_seqlens || role == Role::kv_cu_seqlens || role == Role::seed ||
           role == Role::block_mask || role == Role::origin || role == Role::kv_num_blocks;
}

/// The words of a text in order; an empty one after the last.
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

/// An array of words on the CPU.
Tensor host_words(const Tensor& given) {
    const Tensor words = given.to(Device{}).contiguous();
    if (words.dtype() != i32) return words;
    // The same bits as u32, which some frameworks lack.
    return Tensor::from_data(words.raw(), u32, words.shape(), {}, words.owner());
}

/// Appends the dtype, shape and elements of an array.
void append_contents(std::vector<std::int64_t>& words, const Tensor& array) {
    words.push_back(static_cast<std::int64_t>(array.dtype()));
    words.push_back(array.rank());
    words.insert(words.end(), array.shape().begin(), array.shape().end());
    const std::size_t first = words.size(), bytes = static_cast<std::size_t>(array.nbytes());
    words.resize(first + (bytes + sizeof(std::int64_t) - 1) / sizeof(std::int64_t));
    if (bytes > 0) std::memcpy(words.data() + first, array.raw(), bytes);
}

/// Whether the body of a mod's text names a parameter.
bool reads(std::string_view text, std::string_view parameter) {
    for (std::size_t at = std::min(text.find('\n'), text.size());
         (at = text.find(parameter, at)) != text.npos; ++at) {
        const std::size_t end = at + parameter.size();
        const char next = end < text.size() ? text[end] : ' ';
        if (!std::isalnum(static_cast<unsigned char>(next)) && next != '_') return true;
    }
    return false;
}

/// Lists can have rows of blocks past the last query, which torch does not read.
Tensor rows_of_queries(const Tensor& list, std::int64_t queries, BlockSize block_size) {
    constexpr int kRows = 2;
    const std::int64_t rows =
        (queries + block_size.q - 1) / std::max<std::int64_t>(1, block_size.q);
    return list.rank() > kRows && list.dim(kRows) > rows ? list.slice(kRows, 0, rows) : list;
}

}  // namespace

std::vector<std::size_t> numbers_of(std::string_view text) {
    std::vector<std::size_t> result;
    Words words(text);
    for (std::string_view word = words.next(); !word.empty(); word = words.next()) {
        result.push_back(std::stoul(std::string(word)));
    }
    return result;
}

BlockMask Masks::get(const Tensor& given) {
    const Tensor words = host_words(given);
    const std::string_view bytes(static_cast<const char*>(words.raw()),
                                 static_cast<std::size_t>(words.nbytes()));
    if (std::optional<BlockMask> known = known_.find(bytes)) return *std::move(known);
    return known_.put(std::string(bytes), BlockMask::from_packed(words));
}

BlockMask ListMasks::get(const std::array<Tensor, 4>& lists, const std::vector<Tensor>& captured,
                         const std::string& mask_mod, BlockSize block_size,
                         std::array<std::int64_t, 4> shape) {
    // Batches or heads that the mod does not read share one mask.
    if (!reads(mask_mod, "%b")) shape[0] = 1;
    if (!reads(mask_mod, "%h")) shape[1] = 1;
    std::vector<std::int64_t> contents(shape.begin(), shape.end());
    std::array<Tensor, 4> here;
    for (std::size_t i = 0; i < lists.size(); ++i) {
        if (!lists[i].defined()) continue;
        here[i] = rows_of_queries(lists[i], shape[2], block_size).to(Device{}).contiguous();
        append_contents(contents, here[i]);
    }
    for (const Tensor& array : captured) append_contents(contents, array.to(Device{}).contiguous());
    if (std::optional<BlockMask> known = known_.find(contents)) return *std::move(known);
    std::vector<Capture> captures;
    for (const Tensor& array : captured) captures.push_back(capture(array.clone(), {}, false));
    const Mod mod = mask_mod.empty() ? Mod() : Mod::from_ir(mask_mod, std::move(captures));
    for (const Tensor& list : here) {
        for (const std::size_t d : {0, 1}) {
            if (list.defined()) shape[d] = std::max(shape[d], list.dim(static_cast<int>(d)));
        }
    }
    for (Tensor& list : here) {
        if (!list.defined()) continue;
        Tensor::Dims wide = list.shape();
        for (const std::size_t d : {0, 1}) wide[d] = wide[d] == 1 ? shape[d] : wide[d];
        list = list.broadcast_to(wide).contiguous();
    }
    return known_.put(contents, BlockMask::from_kv_blocks(here[0], here[1], here[2], here[3],
                                                          block_size, mod, {{shape[2], shape[3]}}));
}

BlockMask Parts::get(const BlockMask& mask, std::array<std::int64_t, 2> origin,
                     std::array<std::int64_t, 2> counts) {
    return parts_.get({Identity(mask.state()), origin, counts},
                      [&] { return mask.part(origin[0], counts[0], origin[1], counts[1]); });
}

AttentionSite::AttentionSite(const AttentionSpec& spec)
    : options_(spec.options),
      score_mod_(spec.score_mod),
      mask_mod_(spec.mask_mod),
      derivative_(spec.derivative),
      gathers_(spec.gathers),
      counts_from_origin_(spec.counts_from_origin || spec.whole_masks),
      is_part_(spec.options.origin.has_value() && !spec.whole_masks),
      block_size_(spec.block_size) {
    Words words(spec.operands);
    for (std::string_view word = words.next(); !word.empty(); word = words.next()) {
        roles_.push_back(role_of(word));
    }
    read_host_words(spec);
}

bool AttentionSite::repeats() const {
    return !options_.checked && !options_.autotune &&
           std::none_of(roles_.begin(), roles_.end(), is_read_by_host);
}

AttentionOperands AttentionSite::read(std::span<const Tensor> operands) const {
    AttentionOperands given;
    given.options = options_;
    AttentionOptions& options = given.options;
    std::vector<Capture> score;
    std::vector<Tensor> mask;
    std::array<Tensor, 4> lists;
    for (std::size_t i = 0; i < operands.size(); ++i) {
        const Tensor& operand = operands[i];
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
                mask.push_back(operand);
                break;
            case Role::unused:
                break;
            case Role::kv_num_blocks:
            case Role::kv_indices:
            case Role::full_kv_num_blocks:
            case Role::full_kv_indices:
                lists.at(static_cast<std::size_t>(roles_[i]) -
                         static_cast<std::size_t>(Role::kv_num_blocks)) = operand;
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
    if (!score_mod_.empty()) {
        options.score_mod = Mod::from_ir(score_mod_, std::move(score));
        if (!derivative_.empty()) {
            options.score_mod = options.score_mod.with_derivative(derivative_, gathers_);
        }
    }
    if (lists[0].defined()) {
        const bool bshd = options.layout == Layout::bshd;
        const auto first = options.origin.value_or(std::array<std::int64_t, 2>{});
        options.block_mask = list_masks_.get(
            lists, mask, mask_mod_, block_size_,
            {first[0] + given.query.dim(0), first[1] + given.query.dim(bshd ? 2 : 1),
             given.query.dim(bshd ? 1 : 2), given.key.dim(bshd ? 1 : 2)});
    } else if (!mask_mod_.empty()) {
        std::vector<Capture> captures;
        for (const Tensor& array : mask) captures.push_back(capture(array, {}, false));
        options.mask = Mod::from_ir(mask_mod_, std::move(captures));
    }
    if (options.origin && !is_part_) cut(given);
    return given;
}

/// Adds an array that the host reads; one on a GPU is copied, which waits for the GPU.
void AttentionSite::add_host_array(AttentionOptions& options, Role role,
                                   const Tensor& array) const {
    if (role == Role::block_mask) {
        const BlockMask mask = masks_.get(array);
        options.block_mask = options.block_mask.defined() ? options.block_mask & mask : mask;
    } else if (role == Role::seed) {
        const Tensor words = host_words(array);
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
void AttentionSite::cut(AttentionOperands& given) const {
    AttentionOptions& options = given.options;
    if (options.block_mask.defined()) {
        const bool bshd = options.layout == Layout::bshd;
        options.block_mask = parts_.get(options.block_mask, *options.origin,
                                        {given.query.dim(0), given.query.dim(bshd ? 2 : 1)});
    }
    if (!counts_from_origin_) options.origin.reset();
}

void AttentionSite::read_host_words(const AttentionSpec& spec) {
    Words words(spec.host);
    std::size_t first = 0;
    for (std::string_view name = words.next(); !name.empty(); name = words.next()) {
        const std::size_t count = std::stoul(std::string(words.next()));
        const Role role = role_of(name);
        const bool starts = role == Role::cu_seqlens || role == Role::kv_cu_seqlens;
        const Tensor array = Tensor::empty(starts ? i32 : u32, {static_cast<std::int64_t>(count)});
        std::copy_n(spec.host_words.begin() + static_cast<std::ptrdiff_t>(first), count,
                    static_cast<std::uint32_t*>(array.raw()));
        first += count;
        add_host_array(options_, role, array);
    }
}

}  // namespace tilewright::python
