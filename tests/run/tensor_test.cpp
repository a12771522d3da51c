// Tensors: views, copies, bounds, DLPack.
#include "tilewright/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <sstream>

#include "tests/support/throws.h"
#include "tilewright/dlpack.h"
#include "tilewright/error.h"

namespace tilewright {
namespace {

using testing::throws;

TEST(Tensor, FactoriesFillTheirElements) {
    EXPECT_EQ(Tensor::arange(i32, 4).to_vector<int>(), (std::vector<int>{0, 1, 2, 3}));
    EXPECT_EQ(Tensor::full(bf16, {2, 2}, 1.5).get({1, 1}), 1.5);
    EXPECT_EQ(Tensor::zeros(boolean, {3}).to_vector<std::int64_t>(),
              (std::vector<std::int64_t>(3, 0)));
    EXPECT_EQ(Tensor::scalar(f64, 2.5).get({}), 2.5);
    const Tensor half = Tensor::from_vector<float>({1, 2, 3, 4}, {2, 2}, f16);
    EXPECT_EQ(half.dtype(), f16);
    EXPECT_EQ(half.get({1, 0}), 3);
    EXPECT_THAT(
        [&] {
            Tensor::from_vector<float>({1, 2}, {3});
        },
        throws("expected 3 values for shape [3] but got 2"));
    EXPECT_THAT([&] { Tensor::zeros(f32, {-1}); },
                throws("expected extents >= 0 but got shape [-1]"));
    EXPECT_THAT(
        [&] {
            Tensor::empty(f32, {std::int64_t{1} << 40, std::int64_t{1} << 40});
        },
        throws("expected a tensor that can be addressed but got shape"));
}

TEST(Tensor, IntegersConvertExactly) {
    const std::int64_t big = (std::int64_t{1} << 60) + 1;
    const Tensor t = Tensor::from_vector<std::int64_t>({big}, {1});
    EXPECT_EQ(t.get_int({0}), big);
    EXPECT_EQ(t.to_vector<std::int64_t>()[0], big);
}

TEST(Tensor, ViewsShareMemory) {
    const Tensor t = Tensor::arange(f32, 24).reshape({2, 3, 4});
    EXPECT_EQ(t.select(0, 1).get({2, 3}), 23);
    EXPECT_EQ(t.slice(2, 1, 2, 2).to_vector<int>(),
              (std::vector<int>{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23}));
    const Tensor swapped = t.transpose({2, 0, 1});
    EXPECT_EQ(swapped.get({3, 1, 2}), 23);
    EXPECT_FALSE(swapped.is_contiguous());
    EXPECT_EQ(swapped.contiguous().get({3, 1, 2}), 23);
    t.set({0, 0, 0}, 7);
    EXPECT_EQ(swapped.get({0, 0, 0}), 7);
    EXPECT_EQ(Tensor::scalar(f32, 3).expand_dims(0).broadcast_to({4}).to_vector<int>(),
              (std::vector<int>(4, 3)));
    EXPECT_THAT([&] { swapped.reshape({24}); },
                throws("expected a contiguous tensor and 24 elements"));
    EXPECT_THAT([&] { t.slice(0, 1, 2); }, throws("expected elements inside dimension 0"));
    EXPECT_THAT(
        [&] {
            t.transpose({0, 0, 1});
        },
        throws("expected a permutation of the dimensions"));
}

std::string printed(const Tensor& tensor) {
    std::ostringstream stream;
    stream << tensor;
    return stream.str();
}

TEST(Tensor, PrintsShortAndTelling) {
    EXPECT_EQ(printed(Tensor()), "an undefined tensor");
    EXPECT_EQ(printed(Tensor::scalar(f64, 2.5)), "f64[] 2.5");
    EXPECT_EQ(printed(Tensor::zeros(f32, {0})), "f32[0] []");
    EXPECT_EQ(printed(Tensor::arange(f32, 4)), "f32[4] [0, 1, 2, 3]");
    EXPECT_EQ(printed(Tensor::from_vector<bool>({true, false}, {2})), "bool[2] [true, false]");
    const std::int64_t big = (std::int64_t{1} << 60) + 1;
    EXPECT_EQ(printed(Tensor::from_vector<std::int64_t>({-big}, {1})),
              "i64[1] [-1152921504606846977]");
    EXPECT_EQ(printed(Tensor::full(u64, {1}, 1).to(u64)), "u64[1] [1]");
    EXPECT_EQ(printed(Tensor::from_vector<float>({1.0F / 3, INFINITY, NAN, 1e-20F}, {4})),
              "f32[4] [0.33333, inf, nan, 1e-20]");
    EXPECT_EQ(printed(Tensor::arange(i32, 6).reshape({2, 3}).transpose({1, 0})),
              "i32[3, 2]\n[[0, 3],\n [1, 4],\n [2, 5]]");
    EXPECT_EQ(printed(Tensor::arange(i32, 100)), "i32[100] [0, 1, 2, ..., 97, 98, 99]");
    EXPECT_EQ(printed(Tensor::zeros(i8, {9, 1, 9})),
              "i8[9, 1, 9]\n[[[0, 0, 0, ..., 0, 0, 0]],\n [[0, 0, 0, ..., 0, 0, 0]],\n"
              " [[0, 0, 0, ..., 0, 0, 0]],\n ...,\n [[0, 0, 0, ..., 0, 0, 0]],\n"
              " [[0, 0, 0, ..., 0, 0, 0]],\n [[0, 0, 0, ..., 0, 0, 0]]]");
}

TEST(Tensor, ViewsOfTheCallersMemoryHaveAddresses) {
    std::array<float, 8> memory{};
    const auto view = [&](void* data, Tensor::Dims shape, Tensor::Dims strides) {
        return Tensor::from_data(data, f32, std::move(shape), std::move(strides));
    };
    EXPECT_NO_THROW(view(memory.data() + 7, {8}, {-1}));
    EXPECT_NO_THROW(
        view(memory.data(), {1, 8}, {INT64_MAX, 1}));  // strides of extents of 1 do not matter
    EXPECT_NO_THROW(view(nullptr, {0, 8}, {}));
    EXPECT_THAT([&] { view(nullptr, {8}, {}); }, throws("expected a pointer but got null"));
    EXPECT_THAT([&] { view(reinterpret_cast<std::byte*>(memory.data()) + 2, {1}, {}); },
                throws("at a multiple of 4 bytes but got the address"));
    for (const std::int64_t stride : {INT64_MAX, INT64_MIN, INT64_MAX / 4, INT64_MIN / 4})
        EXPECT_THAT(
            [&] {
                view(memory.data(), {2, 2}, {stride, 1});
            },
            throws("expected strides that stay within the address space"))
            << stride;
    EXPECT_THAT(
        [&] {
            view(memory.data(), {3, 3}, {INT64_MAX / 16 - 1, INT64_MAX / 16 - 1});
        },
        throws("expected strides that stay within the address space"));
}

TEST(Tensor, AccessIsChecked) {
    const Tensor t = Tensor::zeros(f32, {2, 3});
    EXPECT_THAT(
        [&] {
            t.get({2, 0});
        },
        throws("expected an index inside f32[2, 3] but got [2, 0]"));
    EXPECT_THAT([&] { t.get({0}); }, throws("expected an index inside f32[2, 3] but got [0]"));
    EXPECT_THAT(
        [&] {
            t.set({0, -1}, 1);
        },
        throws("expected an index inside f32[2, 3] but got [0, -1]"));
    EXPECT_THAT([&] { t.data<double>(); }, throws("expected a tensor of f64 but it is f32[2, 3]"));
    EXPECT_THAT([&] { t.dim(2); }, throws("expected a dimension of f32[2, 3] but got 2"));
    EXPECT_THAT([&] { Tensor().get({}); },
                throws("expected a defined tensor but got an undefined one"));
    EXPECT_EQ(t.dim(-1), 3);
}

TEST(Tensor, ZeroSizeIsFine) {
    const Tensor t = Tensor::zeros(f32, {0, 4});
    EXPECT_EQ(t.size(), 0);
    EXPECT_TRUE(t.is_contiguous());
    EXPECT_TRUE(t.clone().to_vector<float>().empty());
}

TEST(Tensor, NegativeStridesWork) {
    std::vector<float> values{1, 2, 3};
    const Tensor reversed = Tensor::from_data(values.data() + 2, f32, {3}, {-1});
    EXPECT_EQ(reversed.to_vector<int>(), (std::vector<int>{3, 2, 1}));
}

TEST(DLPack, SharesMemoryBothWays) {
    const Tensor t = Tensor::arange(bf16, 6).reshape({2, 3});
    DLManagedTensor* managed = t.transpose({1, 0}).to_dlpack();
    EXPECT_EQ(managed->dl_tensor.ndim, 2);
    EXPECT_EQ(managed->dl_tensor.shape[0], 3);
    EXPECT_EQ(managed->dl_tensor.strides[0], 1);
    EXPECT_EQ(managed->dl_tensor.dtype.code, kDLBfloat);
    const Tensor back = Tensor::from_dlpack(managed);
    EXPECT_EQ(back.raw(), t.raw());
    EXPECT_EQ(back.dtype(), bf16);
    EXPECT_EQ(back.get({2, 1}), 5);
}

TEST(DLPack, StartsAtTheByteOffset) {
    float values[] = {1, 2, 3, 4};
    std::int64_t shape[] = {2};
    DLManagedTensor managed{};
    managed.dl_tensor.data = values;
    managed.dl_tensor.byte_offset = 8;
    managed.dl_tensor.device = {kDLCPU, 0};
    managed.dl_tensor.ndim = 1;
    managed.dl_tensor.dtype = {kDLFloat, 32, 1};
    managed.dl_tensor.shape = shape;
    EXPECT_EQ(Tensor::from_dlpack(&managed).to_vector<float>(), (std::vector<float>{3, 4}));
}

TEST(Tensor, CopiesFromOverlappingViews) {
    const Tensor x = Tensor::arange(f32, 6).reshape({2, 3});
    const Tensor square = Tensor::arange(f32, 4).reshape({2, 2});
    square.copy_from(square.transpose({1, 0}));
    EXPECT_EQ(square.to_vector<float>(), (std::vector<float>{0, 2, 1, 3}));
    x.slice(1, 1, 2).copy_from(x.slice(1, 0, 2));
    EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{0, 0, 1, 3, 3, 4}));
    EXPECT_THAT(
        [&] {
            x.slice(1, 0, 1).broadcast_to({2, 3}).copy_from(x);
        },
        throws("expected the target to have an element for each index"));
    EXPECT_THAT([&] { Tensor().to_vector<float>(); },
                throws("expected a defined tensor but got an undefined one"));
}

TEST(DLPack, RunsTheDeleterOnce) {
    static int deleted = 0;
    deleted = 0;
    static float value = 4;
    static std::int64_t shape[1] = {1};
    DLManagedTensor managed{};
    managed.dl_tensor = {&value, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, nullptr, 0};
    managed.deleter = [](DLManagedTensor*) { ++deleted; };
    {
        const Tensor t = Tensor::from_dlpack(&managed);
        const Tensor copy = t;
        EXPECT_EQ(copy.get({0}), 4);
        EXPECT_EQ(deleted, 0);
    }
    EXPECT_EQ(deleted, 1);
    managed.dl_tensor.dtype.lanes = 4;
    EXPECT_THAT([&] { Tensor::from_dlpack(&managed); }, throws("32 bits, 4 lanes"));
    EXPECT_EQ(deleted, 2);
    managed.dl_tensor.dtype = {5, 64, 1};
    EXPECT_THAT([&] { Tensor::from_dlpack(&managed); }, throws("but got complex64"));
}

TEST(DLPack, ChecksTheVersion) {
    DLManagedTensorVersioned* managed = Tensor::arange(i64, 3).to_dlpack_versioned();
    EXPECT_EQ(managed->version.major, 1u);
    const Tensor back = Tensor::from_dlpack(managed);
    EXPECT_EQ(back.get({2}), 2);
    DLManagedTensorVersioned* future = back.to_dlpack_versioned();
    future->version.major = 2;
    EXPECT_THAT([&] { Tensor::from_dlpack(future); }, throws("expected DLPack 1.x but got 2.x"));
}

TEST(Tensor, FingerprintsChangeWithElements) {
    Tensor x = Tensor::zeros(f32, {3, 1 << 19});
    const std::uint64_t before = x.fingerprint();
    EXPECT_EQ(before, x.clone().fingerprint());
    for (const std::int64_t place : {0, 1, (1 << 19) - 1}) {
        for (const std::int64_t row : {0, 2}) {
            x.set({row, place}, 1);
            EXPECT_NE(x.fingerprint(), before) << row << " " << place;
            x.set({row, place}, 0);
        }
    }
    EXPECT_EQ(before, x.fingerprint());
    const Tensor odd = x.slice(1, 1, 100, 2);
    const std::uint64_t own = odd.fingerprint();
    x.set({1, 2}, 1);  // between its elements
    EXPECT_EQ(odd.fingerprint(), own);
    EXPECT_EQ(Tensor::zeros(f32, {0}).fingerprint(), Tensor::zeros(f32, {0}).fingerprint());
}

}  // namespace
}  // namespace tilewright
