// One compiled program runs every batch, head count and length that it supports.
#include <gtest/gtest.h>

#include "attention/tiles/backward.h"
#include "attention/tiles/decode.h"
#include "attention/tiles/forward.h"
#include "tests/support/accuracy.h"

namespace tilewright::attn::tiles {
namespace {

using testing::random_tensor;

struct Size {
    std::int64_t batch, heads, length, kv_length;
};

Tensor rows(const Size& s, std::int64_t length, unsigned seed) {
    return random_tensor(f32, {s.batch, s.heads, length, 16}, seed);
}

TEST(Traces, ForwardIsTracedOnceForEveryBatchAndLength) {
    const Features features;
    const Call call = forward({.scale = 0.25, .causal = true}, features, true);
    for (const Size& s : {Size{1, 2, 70, 70}, Size{2, 1, 64, 200}, Size{3, 3, 131, 7}}) {
        std::vector<Tensor> inputs = {rows(s, s.length, 1), rows(s, s.kv_length, 2),
                                      rows(s, s.kv_length, 3)};
        inputs.resize(6 + num_extras(features));  // neither segments nor sinks
        call.run(inputs);
    }
    EXPECT_EQ(call.num_traces(), 1);
}

TEST(Traces, BackwardIsTracedOnceForEveryBatchAndLength) {
    const Options options{.scale = 0.25};
    const Call before = backward_preprocess(options, true, false),
               after = sum_parts(options, f32, false);
    for (const Size& s : {Size{1, 2, 70, 70}, Size{2, 1, 64, 200}, Size{3, 3, 131, 7}}) {
        const Tensor x = rows(s, s.length, 1);
        const Tensor lse = random_tensor(f32, {s.batch, s.heads, s.length}, 2);
        before.run({x, x, lse, lse});
        after.run({random_tensor(f32, {2, s.batch, s.heads, s.length, 16}, 3)});
    }
    EXPECT_EQ(before.num_traces(), 1);
    EXPECT_EQ(after.num_traces(), 1);
}

TEST(Traces, DecodeIsTracedOnceForEveryLengthOfTheCache) {
    const Options options{.scale = 0.25};
    const Features features;
    const Call scan = decode(options, features),
               combine = decode_combine(options, false, false, f32);
    for (const Size& s : {Size{1, 2, 1, 40}, Size{2, 1, 1, 2100}, Size{1, 2, 1, 5000}}) {
        std::vector<Tensor> inputs = {rows(s, 1, 1), rows(s, s.kv_length, 2),
                                      rows(s, s.kv_length, 3)};
        inputs.resize(3 + num_extras(features));
        std::vector<Tensor> parts = scan.run(inputs);
        parts.emplace_back();  // no sinks
        combine.run(parts);
    }
    EXPECT_EQ(scan.num_traces(), 1);
    EXPECT_EQ(combine.num_traces(), 1);
}

}  // namespace
}  // namespace tilewright::attn::tiles
