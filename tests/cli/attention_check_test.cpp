// The check of `tilewright attention` prints WRONG for wrong results, and only for those.
#include "cli/attention_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "tests/support/accuracy.h"

namespace tilewright::cli {
namespace {

using ::testing::HasSubstr;

Tensor ids(std::int64_t length, std::int64_t every, std::int64_t first) {
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < length; ++i) values.push_back(first + i / every);
    return Tensor::from_vector(values, {1, length}, i32);
}

AttentionRun run_with(AttentionOptions options) {
    AttentionRun run;
    run.query = testing::random_tensor(f32, {1, 4, 20, 8}, 1);
    run.key = testing::random_tensor(f32, {1, 2, 30, 8}, 2);
    run.value = testing::random_tensor(f32, {1, 2, 30, 8}, 3);
    run.dout = testing::random_tensor(f32, {1, 4, 20, 8}, 4);
    run.options = std::move(options);
    run.output = attention(run.query, run.key, run.value, run.options);
    run.gradients =
        attention_backward(run.query, run.key, run.value, run.output, run.dout, run.options);
    return run;
}

/// The check's verdict and text.
std::pair<bool, std::string> verdict(const AttentionRun& run) {
    std::ostringstream text;
    const bool ok = check_attention(run, text);
    return {ok, text.str()};
}

AttentionOptions every_result() {
    AttentionOptions options;
    options.sinks = testing::random_tensor(f32, {4}, 5);
    Tensor table = testing::random_tensor(f32, {30}, 6);
    options.score_mod = parse_mod("score + table[kv]", {{"table", table}}, Mod::Kind::score);
    return options;
}

TEST(AttentionCheck, KnowsLengthsOfKeys) {
    AttentionOptions options;
    options.kv_lengths = Tensor::from_vector(std::vector<std::int32_t>{11}, {1});
    AttentionRun run = run_with(options);
    EXPECT_TRUE(verdict(run).first) << verdict(run).second;
    run.options.kv_lengths = Tensor::from_vector(std::vector<std::int32_t>{12}, {1});
    EXPECT_FALSE(verdict(run).first);
}

TEST(AttentionCheck, SaysWhichResultIsWrong) {
    const AttentionRun right = run_with(every_result());
    ASSERT_TRUE(verdict(right).first) << verdict(right).second;
    EXPECT_THAT(verdict(right).second, Not(HasSubstr("WRONG")));

    const auto change = [&](const std::string& name, Tensor& (*result)(AttentionRun&)) {
        for (const double error : {0.01, static_cast<double>(NAN)}) {
            AttentionRun run = right;
            Tensor& changed = result(run);
            changed = changed.clone();
            changed.data<float>()[changed.size() - 1] += static_cast<float>(error);
            const auto [ok, text] = verdict(run);
            EXPECT_FALSE(ok);
            std::istringstream lines(text);
            for (std::string line; std::getline(lines, line);) {
                const bool is_it = line.find("check " + name + " ") == 0;
                EXPECT_EQ(line.find("WRONG") != std::string::npos, is_it) << line;
            }
        }
    };
    change("out", [](AttentionRun& run) -> Tensor& { return run.output.out; });
    change("lse", [](AttentionRun& run) -> Tensor& { return run.output.lse; });
    change("grad query", [](AttentionRun& run) -> Tensor& { return run.gradients.query; });
    change("grad key", [](AttentionRun& run) -> Tensor& { return run.gradients.key; });
    change("grad value", [](AttentionRun& run) -> Tensor& { return run.gradients.value; });
    change("grad sinks", [](AttentionRun& run) -> Tensor& { return run.gradients.sinks; });
    change("grad table", [](AttentionRun& run) -> Tensor& { return run.gradients.captured[0]; });
}

// If a query has one or two keys, its exact gradients cancel; what roundings leave is not an error.
TEST(AttentionCheck, AllowsTheRoundingsOfSmallProblems) {
    unsigned seed = 1;
    const auto run = [&](DType dtype, std::int64_t queries, std::int64_t keys, std::int64_t dim) {
        const auto random = [&](std::int64_t length) {
            return testing::random_tensor(dtype, {1, 2, length, dim}, seed++);
        };
        AttentionRun made;
        made.query = random(queries);
        made.key = random(keys);
        made.value = random(keys);
        made.dout = random(queries);
        made.output = attention(made.query, made.key, made.value, made.options);
        made.gradients = attention_backward(made.query, made.key, made.value, made.output,
                                            made.dout, made.options);
        return made;
    };
    for (const DType dtype : {f32, f64, f16, bf16})
        for (const std::int64_t queries : {1, 3})
            for (const std::int64_t keys : {1, 2})
                for (const std::int64_t dim : {1, 33, 128}) {
                    const AttentionRun right = run(dtype, queries, keys, dim);
                    EXPECT_TRUE(verdict(right).first)
                        << name(dtype) << ' ' << queries << ' ' << keys << ' ' << dim << '\n'
                        << verdict(right).second;
                }
    AttentionRun wrong = run(f32, 1, 1, 64);
    for (const auto result : {&AttentionGradients::query, &AttentionGradients::key}) {
        AttentionRun changed = wrong;
        (changed.gradients.*result) = (wrong.gradients.*result).clone();
        (changed.gradients.*result).data<float>()[7] += 1e-4F;
        EXPECT_FALSE(verdict(changed).first);
    }
}

TEST(AttentionCheck, HeedsEveryOption) {
    AttentionOptions segments;
    segments.segment_ids = ids(20, 7, 0);
    segments.kv_segment_ids = ids(30, 7, 0);
    AttentionOptions other_segments = segments;
    other_segments.kv_segment_ids = ids(30, 7, 1);
    AttentionOptions dropout{.dropout = 0.25};
    AttentionOptions other_seed = dropout;
    other_seed.seed = 1;
    const Mod mask = parse_mod("kv % 3 == q % 3", {}, Mod::Kind::mask);
    const Mod score = parse_mod("softcap(1)", {}, Mod::Kind::score);
    const AttentionOptions none;
    const std::vector<std::tuple<const char*, AttentionOptions, AttentionOptions>> cases = {
        {"scale", {.scale = 0.3}, none},
        {"causal", {.causal = true}, none},
        {"left", {.window = {4, -1}}, none},
        {"right", {.window = {-1, 4}}, none},
        {"segments", segments, none},
        {"segments of the keys", segments, other_segments},
        {"mask", {.mask = mask}, none},
        {"score", {.score_mod = score}, none},
        {"sinks", {.sinks = testing::random_tensor(f32, {4}, 5)}, none},
        {"dropout", dropout, none},
        {"seed", dropout, other_seed},
    };
    for (const auto& [name, options, other] : cases) {
        SCOPED_TRACE(name);
        AttentionRun run = run_with(options);
        EXPECT_TRUE(verdict(run).first) << verdict(run).second;
        run.options = other;
        EXPECT_FALSE(verdict(run).first);
    }
}

}  // namespace
}  // namespace tilewright::cli
