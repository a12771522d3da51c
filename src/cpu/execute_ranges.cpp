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

bool is_comparison(Op op) {
    return op == Op::ge || op == Op::eq || op == Op::ne;
}

}  // namespace

RangeRows::RangeRows(const FusedRun& run, const std::array<std::int64_t, kMostTests>& bases,
                     std::int64_t lanes, std::int64_t block)
    : num_conditions_(run.conditions.size()),
      undecided_(run.by_conditions.size()),
      lanes_(lanes),
      block_(block) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < num_conditions_; ++i) {
        for (const FusedRun::RangeTest& test : run.conditions[i]) {
            tests_[at] = {test.op, bases[at], test.form.row, test.form.lane};
            ++at;
        }
        ends_[i] = at;
    }
    num_tests_ = at;
}

/// Keeps the lanes in order.
void RangeRows::cut(std::int64_t lane) {
    if (lane <= 0 || lane >= lanes_) return;
    std::size_t at = num_cuts_++;
    for (; at > 0 && cuts_[at - 1] > lane; --at) cuts_[at] = cuts_[at - 1];
    cuts_[at] = lane;
}

std::size_t RangeRows::results(std::int64_t row, std::int64_t lane) const {
    std::size_t all = 0, test = 0;
    for (std::size_t i = 0; i < num_conditions_; ++i) {
        unsigned stack = 0;  // the last result is the lowest bit
        for (; test < ends_[i]; ++test) {
            const Test& next = tests_[test];
            if (is_comparison(next.op)) {
                const std::int64_t form = next.base + row * next.row + lane * next.lane;
                const bool holds = next.op == Op::ge   ? form >= 0
                                   : next.op == Op::eq ? form == 0
                                                       : form != 0;
                stack = stack << 1 | static_cast<unsigned>(holds);
                continue;
            }
            const unsigned second = stack & 1, first = stack >> 1 & 1;
            const unsigned result = next.op == Op::bitwise_and  ? first & second
                                    : next.op == Op::bitwise_or ? first | second
                                                                : first ^ second;
            stack = stack >> 2 << 1 | result;
        }
        all |= std::size_t{stack & 1} << i;
    }
    return all;
}

void RangeRows::add(std::int64_t first_block, std::int64_t end_block, std::size_t which) {
    if (first_block >= end_block) return;
    ranges_[num_ranges_++] = {first_block * block_, (end_block - first_block) * block_, which};
}

std::span<const RangeRows::Range> RangeRows::of_row(std::int64_t row) {
    const std::int64_t blocks = lanes_ / block_;
    num_cuts_ = num_ranges_ = 0;
    for (std::size_t i = 0; i < num_tests_; ++i) {
        const Test& test = tests_[i];
        const std::int64_t base = test.base + row * test.row, step = test.lane;
        if (!is_comparison(test.op) || step == 0) continue;
        // Where the form is 0, or the last lane before it changes its sign.
        const std::int64_t zero = step > 0 ? floor_div(-base, step) : floor_div(base, -step);
        const bool exact = base + zero * step == 0;
        // Forms that fall are not negative at `zero`; those that rise are so from there on
        // only if they are 0 there.
        if (test.op != Op::ge || (step > 0 && exact)) cut(zero);
        if (test.op != Op::ge || step < 0 || !exact) cut(zero + 1);
    }
    std::int64_t done = 0, start = 0;
    std::size_t which = results(row, 0);
    for (std::size_t i = 0; i <= num_cuts_; ++i) {
        const std::int64_t end = i < num_cuts_ ? cuts_[i] : lanes_;
        const std::size_t next = i < num_cuts_ ? results(row, end) : undecided_;
        if (next == which) continue;
        const std::int64_t first = (start + block_ - 1) / block_, last = end / block_;
        if (first < last) {
            add(done, first, undecided_);
            add(first, last, which);
            done = last;
        }
        if (end == lanes_ && lanes_ % block_ != 0) {
            add(done, blocks, undecided_);
            done = blocks;
            ranges_[num_ranges_++] = {lanes_ - block_, block_,
                                      start <= lanes_ - block_ ? which : undecided_};
        }
        start = end;
        which = next;
    }
    add(done, blocks, undecided_);
    return {ranges_.data(), num_ranges_};
}

}  // namespace tilewright::cpu
