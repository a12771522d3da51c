// Divides rows by where affine comparisons change their results.
#include "cpu/execute_ranges.h"

#include <algorithm>

namespace tilewright::cpu {
namespace {

using ir::Op;

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
    if (b == 1) return a;
    return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

bool is_comparison(const FusedRun::RangeTest& test) {
    return test.op == Op::ge || test.op == Op::eq || test.op == Op::ne;
}

}  // namespace

RangeRows::RangeRows(const FusedRun& run, const std::array<std::int64_t, kMostTests>& bases,
                     std::int64_t lanes, std::int64_t block)
    : run_(run), bases_(bases), lanes_(lanes), block_(block) {}

/// Keeps the lanes in order.
void RangeRows::cut(std::int64_t lane) {
    if (lane <= 0 || lane >= lanes_) return;
    std::size_t at = num_cuts_++;
    for (; at > 0 && cuts_[at - 1] > lane; --at) cuts_[at] = cuts_[at - 1];
    cuts_[at] = lane;
}

std::size_t RangeRows::results(std::int64_t row, std::int64_t lane) const {
    std::size_t all = 0, test = 0;
    for (std::size_t i = 0; i < run_.conditions.size(); ++i) {
        std::array<bool, kMostTests> stack{};
        std::size_t top = 0;
        for (const FusedRun::RangeTest& next : run_.conditions[i]) {
            const std::int64_t form = bases_[test++] + row * next.form.row + lane * next.form.lane;
            if (is_comparison(next)) {
                stack[top++] = next.op == Op::ge   ? form >= 0
                               : next.op == Op::eq ? form == 0
                                                   : form != 0;
                continue;
            }
            const bool second = stack[--top], first = stack[top - 1];
            stack[top - 1] = next.op == Op::bitwise_and  ? first && second
                             : next.op == Op::bitwise_or ? first || second
                                                         : first != second;
        }
        if (stack[0]) all |= std::size_t{1} << i;
    }
    return all;
}

void RangeRows::add(std::int64_t first_block, std::int64_t end_block, std::size_t which) {
    if (first_block >= end_block) return;
    ranges_[num_ranges_++] = {first_block * block_, (end_block - first_block) * block_, which};
}

std::span<const RangeRows::Range> RangeRows::of_row(std::int64_t row) {
    const std::size_t undecided = run_.by_conditions.size();
    const std::int64_t blocks = lanes_ / block_;
    num_cuts_ = num_ranges_ = 0;
    std::size_t at = 0;
    for (const auto& condition : run_.conditions) {
        for (const FusedRun::RangeTest& test : condition) {
            const std::int64_t base = bases_[at++] + row * test.form.row, step = test.form.lane;
            if (!is_comparison(test) || step == 0) continue;
            // Where the form is 0, or the last lane before it changes its sign.
            const std::int64_t zero = step > 0 ? floor_div(-base, step) : floor_div(base, -step);
            const bool exact = base + zero * step == 0;
            // Forms that fall are not negative at `zero`; those that rise are so from there on
            // only if they are 0 there.
            if (test.op != Op::ge || (step > 0 && exact)) cut(zero);
            if (test.op != Op::ge || step < 0 || !exact) cut(zero + 1);
        }
    }
    std::int64_t done = 0, start = 0;
    std::size_t which = results(row, 0);
    for (std::size_t i = 0; i <= num_cuts_; ++i) {
        const std::int64_t end = i < num_cuts_ ? cuts_[i] : lanes_;
        const std::size_t next = i < num_cuts_ ? results(row, end) : undecided;
        if (next == which) continue;
        const std::int64_t first = (start + block_ - 1) / block_, last = end / block_;
        if (first < last) {
            add(done, first, undecided);
            add(first, last, which);
            done = last;
        }
        if (end == lanes_ && lanes_ % block_ != 0) {
            add(done, blocks, undecided);
            done = blocks;
            ranges_[num_ranges_++] = {lanes_ - block_, block_,
                                      start <= lanes_ - block_ ? which : undecided};
        }
        start = end;
        which = next;
    }
    add(done, blocks, undecided);
    return {ranges_.data(), num_ranges_};
}

}  // namespace tilewright::cpu
