// Interval analysis of random mods against every element of random boxes.
#include "ir/passes/intervals.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <random>

#include "ir/print.h"
#include "mod/evaluate.h"
#include "tests/support/random_mod.h"
#include "tests/support/seeds.h"

namespace tilewright::ir {
namespace {

std::vector<std::shared_ptr<const RangeTree>> trees(const std::vector<Tensor>& tensors) {
    std::vector<std::shared_ptr<const RangeTree>> result;
    for (const Tensor& tensor : tensors) {
        RefArgument array;
        array.data = tensor.raw();
        std::copy(tensor.shape().begin(), tensor.shape().end(), array.extents.begin());
        std::copy(tensor.strides().begin(), tensor.strides().end(), array.strides.begin());
        result.push_back(std::make_shared<RangeTree>(tensor.dtype(), array, tensor.rank()));
    }
    return result;
}

bool contains(const Interval& range, DType dtype, std::uint64_t bits) {
    if (is_float(dtype)) {
        const auto value = std::bit_cast<double>(bits);
        if (std::isnan(value)) return range.nan;
        return range.float_low <= value && value <= range.float_high;
    }
    if (range.any) return true;
    if (dtype == DType::u64 && bits >> 63 != 0) return false;
    const auto value = static_cast<std::int64_t>(bits);
    return range.low <= value && value <= range.high;
}

bool same(DType dtype, std::uint64_t a, std::uint64_t b) {
    return a == b || (is_float(dtype) && std::isnan(std::bit_cast<double>(a)) &&
                      std::isnan(std::bit_cast<double>(b)));
}

void check(std::uint64_t seed, int& decided, int& matches) {
    const Function function = testing::random_mod(seed, false);
    const std::vector<Tensor> tensors = testing::random_mod_arrays(seed % 5);
    const Intervals intervals(function, trees(tensors));
    mod::Evaluator evaluator(function, tensors);
    Intervals::Evaluation evaluation(intervals);
    std::mt19937_64 random(seed);
    const std::int64_t far[] = {0, 0, 0, 120, 46340, (1ll << 31) - 4, (1ll << 53), (1ll << 62)};
    const std::int64_t rows = 1 + static_cast<std::int64_t>(random() % 6),
                       columns = 1 + static_cast<std::int64_t>(random() % 6);
    const std::int64_t step = 1 + static_cast<std::int64_t>(random() % 4);
    std::map<Key, std::vector<std::uint64_t>> known;
    for (int box = 0; box < 24; ++box) {
        const std::int64_t base = far[random() % std::size(far)];
        const std::int64_t q = base + static_cast<std::int64_t>(random() % 12) * step,
                           kv = base + static_cast<std::int64_t>(random() % 12) * step;
        const std::int64_t b = static_cast<std::int64_t>(random() % 2);
        evaluation.set(0, Interval::integers(b, b));
        evaluation.set(1, Interval::integers(3, 3));
        evaluation.set(2, Interval::integers(q, q + rows - 1));
        evaluation.set(3, Interval::integers(kv, kv + columns - 1));
        const Interval coarse = evaluation.run(false);
        const Interval range = evaluation.run(true);
        const Key key = evaluation.key();
        std::vector<std::uint64_t> values;
        for (std::int64_t i = q; i < q + rows; ++i) {
            for (std::int64_t j = kv; j < kv + columns; ++j) {
                const std::uint64_t scalars[] = {static_cast<std::uint64_t>(b), 3,
                                                 static_cast<std::uint64_t>(i),
                                                 static_cast<std::uint64_t>(j)};
                values.push_back(evaluator.run(scalars)[0]);
                ASSERT_TRUE(contains(range, intervals.result_dtype(), values.back()) &&
                            contains(coarse, intervals.result_dtype(), values.back()))
                    << "seed " << seed << " q " << i << " kv " << j << "\n"
                    << print(function);
            }
        }
        decided += range.is_point() && !is_float(intervals.result_dtype());
        const auto [entry, fresh] = known.try_emplace(key, values);
        if (fresh) continue;
        ++matches;
        for (std::size_t i = 0; i < values.size(); ++i) {
            ASSERT_TRUE(same(intervals.result_dtype(), entry->second[i], values[i]))
                << "equal keys, other values: seed " << seed << "\n"
                << print(function);
        }
    }
}

TEST(Intervals, HoldEveryElement) {
    int decided = 0, matches = 0;
    const auto seeds = testing::seeds(1500);
    for (std::uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
        check(seed, decided, matches);
        if (HasFatalFailure()) return;
    }
    if (!seeds.normal) return;
    EXPECT_GT(decided, 1500);  // an analysis that decides nothing would be sound, too
    EXPECT_GT(matches, 1500);
}

}  // namespace
}  // namespace tilewright::ir
