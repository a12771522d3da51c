// Which steps on vectors are needed, in which form and order.
#include <algorithm>

#include "cpu/vector_code.h"
#include "cpu/vector_encoder.h"

namespace tilewright::cpu {

/// A blend with what it alone reads becomes that step with a mask, if there are mask registers.
void VectorCode::join_blends() {
    if (!has_masks()) return;
    std::vector<int> reads(steps_.size(), 0);
    for (const Step& step : steps_) {
        for (const Value in : step.in) {
            if (in != kNone) ++reads[static_cast<std::size_t>(in)];
        }
    }
    for (std::size_t i = 0; i < steps_.size(); ++i) {
        const Step blend = steps_[i];
        const auto bits = blend.kind == Kind::blend ? mask_bits(blend.in[0]) : std::nullopt;
        if (!bits) continue;
        for (const bool yes : {false, true}) {
            const Value value = blend.in[yes ? 1 : 2], other = blend.in[yes ? 2 : 1];
            const Step made = step_of(value);
            const bool plain = made.kind == Kind::unary || made.kind == Kind::binary;
            if (!plain || reads[static_cast<std::size_t>(value)] != 1) continue;
            const Words* const known = words(other);
            const bool zero = known != nullptr && *known == Words{};
            Step joined = made;
            joined.kind = Kind::masked;
            joined.uniform = joined.zeros_are_positive = false;
            joined.early = blend.early;
            joined.in[2] = zero ? kNone : other;
            joined.in[3] = blend.in[0];
            if (!yes) joined.in[3] = mask_of_bits(~*bits & all());
            steps_[i] = joined;
            break;
        }
    }
}

/// Lanes of a vector that few steps want in all lanes are permuted; many are loads from where it is
/// stored, which go beside arithmetic.
void VectorCode::choose_lanes() {
    constexpr int kFew = 2;
    std::map<Value, int> wanted;
    for (const Step& step : steps_) {
        if (step.kind == Kind::broadcast && step.in[0] != kNone) ++wanted[step.in[0]];
    }
    for (Step& step : steps_) {
        if (step.kind != Kind::broadcast || step.in[0] == kNone) continue;
        if (wanted[step.in[0]] <= kFew)
            step.kind = Kind::lane;
        else
            step.in[0] = kNone;
    }
}

namespace {

/// Bytes that are written before anything reads them.
class Covered {
  public:
    bool has(std::pair<int, std::int64_t> at, std::int64_t bytes) const {
        bool all = true;
        in_lines(at.second, bytes, [&](std::int64_t line, std::uint64_t bits) {
            const auto found = lines_.find({at.first, line});
            all = all && found != lines_.end() && (found->second & bits) == bits;
        });
        return all;
    }
    void set(std::pair<int, std::int64_t> at, std::int64_t bytes, bool covered) {
        in_lines(at.second, bytes, [&](std::int64_t index, std::uint64_t bits) {
            std::uint64_t& line = lines_[{at.first, index}];
            line = covered ? line | bits : line & ~bits;
        });
    }

  private:
    static constexpr std::int64_t kLine = 64;

    /// Calls `visit` with each line of memory that has some of the bytes, and their bits in it.
    template <typename Visit>
    static void in_lines(std::int64_t first, std::int64_t bytes, Visit&& visit) {
        for (const std::int64_t end = first + bytes; first < end;) {
            const std::int64_t bit = first & (kLine - 1),
                               count = std::min(kLine - bit, end - first);
            visit((first - bit) / kLine, ~std::uint64_t{0} >> (kLine - count) << bit);
            first += count;
        }
    }

    std::map<std::pair<int, std::int64_t>, std::uint64_t> lines_;
};

}  // namespace

void VectorCode::drop_unread() {
    Covered covered;
    used_.assign(steps_.size(), false);
    for (std::size_t i = steps_.size(); i-- > 0;) {
        const Step& step = steps_[i];
        if (step.writes()) {
            const std::pair<int, std::int64_t> to{step.at.base, step.at.offset};
            used_[i] = step.kind == Kind::store_view || !covered.has(to, step.bytes);
            if (used_[i]) covered.set(to, step.bytes, true);
        }
        if (!used_[i]) continue;
        for (const Value in : step.in) {
            if (in != kNone) used_[static_cast<std::size_t>(in)] = true;
        }
        if (step.reads()) covered.set({step.at.base, step.at.offset}, step.bytes, false);
        if (step.setup == kNone) continue;
        for (const Range& range : setups_[static_cast<std::size_t>(step.setup)].reads)
            covered.set({range.at.base, range.at.offset}, range.bytes, false);
    }
}

/// Early steps go where the last of their operands is known.
void VectorCode::find_order() {
    std::vector<int> after(steps_.size());
    for (std::size_t i = 0; i < steps_.size(); ++i) {
        after[i] = steps_[i].is_constant() ? 0 : static_cast<int>(i);
        if (!used_[i]) continue;
        order_.push_back(static_cast<int>(i));
        if (!steps_[i].early) continue;
        after[i] = 0;
        for (const Value in : steps_[i].in) {
            if (in != kNone) after[i] = std::max(after[i], after[static_cast<std::size_t>(in)]);
        }
    }
    std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) {
        return after[static_cast<std::size_t>(a)] < after[static_cast<std::size_t>(b)];
    });
}

std::optional<std::vector<std::uint8_t>> VectorCode::encode() {
    join_blends();
    choose_lanes();
    drop_unread();
    find_order();
    auto code = (has_masks() ? avx512_encoder(*this) : avx2_encoder(*this))->encode();
    if (code && has_views_) code->insert(code->begin(), {0x49, 0x89, 0xCB});  // mov r11, rcx
    return code;
}

}  // namespace tilewright::cpu
