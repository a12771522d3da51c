// Copies between strided arrays of one GPU: how they are planned, and what they copy.
#include "run/gpu_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "run/cuda_memory.h"
#include "tests/cuda/test_support.h"
#include "tilewright/tensor.h"

namespace tilewright {
namespace {

using run::CopyPlan;
using run::plan_copy;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Dims = Tensor::Dims;

TEST(GpuCopy, JoinsWhatIsContiguousInBoth) {
    const CopyPlan dense =
        plan_copy(Tensor::zeros(bf16, {2, 3, 4000}), Tensor::zeros(f32, {2, 3, 4000}));
    EXPECT_EQ(dense.target.shape(), Dims({24000}));
    EXPECT_THAT(dense.block, ElementsAre(1024));
    // Heads after rows: heads and their columns stay apart.
    const CopyPlan heads = plan_copy(Tensor::zeros(f32, {2, 3, 500, 64}),
                                     Tensor::zeros(f32, {2, 500, 3, 64}).transpose({0, 2, 1, 3}));
    EXPECT_EQ(heads.target.shape(), Dims({2, 3, 500, 64}));
    EXPECT_EQ(heads.source.strides(), Dims({96000, 64, 192, 1}));
    EXPECT_THAT(heads.block, ElementsAre(1, 1, 16, 64));
    // One element of many is read in its place.
    const CopyPlan one = plan_copy(Tensor::zeros(f32, {1, 1}), Tensor::zeros(f32, {1, 1}));
    EXPECT_EQ(one.target.shape(), Dims({1}));
}

TEST(GpuCopy, GoesThroughTheTargetInTheOrderOfItsMemory) {
    const Tensor target = Tensor::zeros(f32, {300, 2, 700}).transpose({2, 1, 0});
    const CopyPlan plan = plan_copy(target, Tensor::zeros(f32, {700, 2, 300}).slice(2, 0, 300));
    EXPECT_EQ(plan.target.shape(), Dims({2, 300, 700}));
    EXPECT_EQ(plan.target.strides(), Dims({700, 1400, 1}));
    // The source's elements lie side by side in the second to last dimension: square blocks.
    EXPECT_EQ(plan.source.strides(), Dims({300, 1, 600}));
    EXPECT_THAT(plan.block, ElementsAre(1, 32, 32));
    // A broadcast source reads one element again and again, and long rows are blocks of their own.
    const Tensor repeated = Tensor::zeros(f32, {5, 1}).broadcast_to({5, 2000});
    const CopyPlan rows = plan_copy(Tensor::zeros(f32, {5, 2000}), repeated);
    EXPECT_EQ(rows.target.shape(), Dims({5, 2000}));
    EXPECT_THAT(rows.block, ElementsAre(4, 256));
    const CopyPlan whole = plan_copy(Tensor::zeros(f32, {5, 2000}),
                                     Tensor::zeros(f32, {1, 2000}).broadcast_to({5, 2000}));
    EXPECT_THAT(whole.block, ElementsAre(1, 1024));
}

TEST(GpuCopy, BlocksOfShortDimensionsSpanSeveral) {
    const auto block_of = [](const Tensor& target, const Tensor& source) {
        return plan_copy(target, source).block;
    };
    const auto dense = [](Dims dims) { return Tensor::zeros(f32, std::move(dims)); };
    // Small matrices, transposed; channels last to channels first; the first two of three columns.
    EXPECT_THAT(block_of(dense({5000, 3, 3}), dense({5000, 3, 3}).transpose({0, 2, 1})),
                ElementsAre(64, 4, 4));
    EXPECT_THAT(block_of(dense({8, 3, 50176}), dense({8, 50176, 3}).transpose({0, 2, 1})),
                ElementsAre(1, 4, 256));
    EXPECT_THAT(block_of(dense({9000, 2}), dense({9000, 3}).slice(1, 0, 2)), ElementsAre(512, 2));
    // No more than a fifth of the lanes is idle.
    EXPECT_THAT(block_of(dense({300, 513}), dense({300, 600}).slice(1, 0, 513)),
                ElementsAre(8, 128));
    EXPECT_THAT(block_of(dense({1000, 80}), dense({1000, 90}).slice(1, 0, 80)),
                ElementsAre(32, 32));
}

/// A copy of views made by `target_of` and `source_of` from dense tensors, on `device`; what the
/// views leave out of the target stays as it is.
struct CopyOfViews {
    std::string name;
    Dims target, source;
    std::function<Tensor(const Tensor&)> target_of, source_of;
    DType target_dtype = f32, source_dtype = f32;
};

std::vector<CopyOfViews> copies_of_views() {
    const auto whole = [](const Tensor& t) { return t; };
    return {
        {"converts dense arrays", {3, 500}, {3, 500}, whole, whole, bf16, f32},
        {"heads",
         {2, 3, 50, 64},
         {2, 50, 3, 64},
         whole,
         [](const Tensor& t) {
             return t.transpose({0, 2, 1, 3});
         },
         f16,
         f32},
        {"transposes",
         {70, 33},
         {33, 70},
         whole,
         [](const Tensor& t) {
             return t.transpose({1, 0});
         }},
        {"into a view of every second element",
         {40, 66},
         {20, 33},
         [](const Tensor& t) { return t.slice(0, 1, 20, 2).slice(1, 0, 33, 2); },
         whole},
        {"a broadcast row",
         {5, 1100},
         {1, 1100},
         whole,
         [](const Tensor& t) {
             return t.broadcast_to({5, 1100});
         },
         i32,
         i32},
        {"a broadcast column",
         {40, 200},
         {40, 1},
         whole,
         [](const Tensor& t) {
             return t.broadcast_to({40, 200});
         },
         f64,
         f32},
        {"backwards",
         {3, 90},
         {3, 90},
         whole,
         [](const Tensor& t) { return t.slice(1, 89, 90, -1); }},
        {"five dimensions",
         {2, 3, 2, 5, 7},
         {7, 5, 2, 3, 2},
         whole,
         [](const Tensor& t) {
             return t.transpose({4, 3, 2, 1, 0});
         },
         u8,
         u8},
        {"small matrices",
         {600, 3, 2},
         {600, 2, 3},
         whole,
         [](const Tensor& t) {
             return t.transpose({0, 2, 1});
         }},
        {"channels last",
         {2, 3, 1000},
         {2, 1000, 3},
         whole,
         [](const Tensor& t) {
             return t.transpose({0, 2, 1});
         }},
        {"some columns",
         {700, 2},
         {700, 3},
         whole,
         [](const Tensor& t) { return t.slice(1, 0, 2); }},
        {"one element of several",
         {3},
         {9},
         [](const Tensor& t) { return t.slice(0, 1, 1); },
         [](const Tensor& t) { return t.slice(0, 7, 1); }},
    };
}

void expect_copied(const CopyOfViews& one, Device device) {
    SCOPED_TRACE(one.name);
    std::int64_t count = 1;
    for (const std::int64_t extent : one.source) count *= extent;
    // Small integers, which every dtype has.
    std::vector<std::int64_t> values(count);
    for (std::int64_t i = 0; i < count; ++i) values[i] = i * 7 % 101;
    const Tensor source = Tensor::from_vector(values, {count}).to(one.source_dtype);
    const Tensor dense = source.reshape(one.source);
    const Tensor want = Tensor::full(one.target_dtype, one.target, 113);
    one.target_of(want).copy_from(one.source_of(dense));
    const Tensor got = Tensor::full(one.target_dtype, one.target, 113).to(device);
    run::copy_elements_on_gpu(one.target_of(got), one.source_of(dense.to(device)));
    EXPECT_EQ(got.to_vector<double>(), want.to_vector<double>());
}

TEST(GpuCopy, ItsProgramCopiesEveryElementOnce) {
    for (const CopyOfViews& one : copies_of_views()) expect_copied(one, Device{});
}

TEST(CudaCalls, CopyViews) {
    TW_REQUIRE_GPU();
    for (const CopyOfViews& one : copies_of_views()) expect_copied(one, Device::cuda());
}

TEST(GpuCopy, ItsKernelsNeedFewRegisters) {
    TW_REQUIRE_NVRTC();
    for (const CopyOfViews& one : copies_of_views()) {
        SCOPED_TRACE(one.name);
        const Tensor source = Tensor::zeros(one.source_dtype, one.source);
        const Tensor target = Tensor::zeros(one.target_dtype, one.target);
        const CopyPlan plan = plan_copy(one.target_of(target), one.source_of(source));
        const std::string text = run::copy_call(plan).cuda({plan.source}, "sm_90a");
        // Elements have places of their own, which no program has to compare.
        EXPECT_THAT(text, Not(HasSubstr("__syncthreads")));
        cuda::CompileRequest request;
        request.name = "copy.cu";
        request.source = text;
        request.arch = "sm_90a";
        const cuda::Compiled compiled = cuda::compile(request);
        EXPECT_EQ(compiled.spill_bytes, 0);
        EXPECT_LE(compiled.registers, 64);
    }
}

}  // namespace
}  // namespace tilewright
