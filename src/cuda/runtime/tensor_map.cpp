// Encoding TMA descriptors through the driver.
#include "cuda/runtime/tensor_map.h"

#include "support/check.h"

namespace tilewright::cuda {
namespace {

// CUtensorMapDataType.
int data_type(DType dtype, const char* argument) {
    switch (dtype) {
        case DType::boolean:
        case DType::i8:
        case DType::u8:
        case DType::f8e4m3:
        case DType::f8e5m2:
            return 0;
        case DType::i16:
        case DType::u16:
            return 1;
        case DType::u32:
            return 2;
        case DType::i32:
            return 3;
        case DType::u64:
            return 4;
        case DType::i64:
            return 5;
        case DType::f16:
            return 6;
        case DType::f32:
            return 7;
        case DType::f64:
            return 8;
        case DType::bf16:
            return 9;
    }
    user_error("cuda", "{}: expected an element type", argument);
}

constexpr int kTf32 = 11;
constexpr int kInterleaveNone = 0;
constexpr int kL2Promotion128 = 2;
constexpr int kL2Promotion256 = 3;
constexpr int kFillZero = 0;

}  // namespace

TensorMap encode_tensor_map(const TensorMapRequest& request, const char* argument) {
    const auto require = [&](bool holds, const char* rule, auto value) {
        if (!holds) user_error("cuda", "{}: expected {} but got {}", argument, rule, value);
    };
    require(request.rank >= 1 && request.rank <= TensorMapRequest::kMaxRank, "a rank from 1 to 5",
            request.rank);
    require(request.address % 16 == 0, "an address that is a multiple of 16", request.address);
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(request.rank); ++axis) {
        require(request.extents[axis] >= 1 && request.extents[axis] <= 1ull << 32,
                "extents from 1 to 2^32", request.extents[axis]);
        require(request.box[axis] >= 1 && request.box[axis] <= 256, "box extents from 1 to 256",
                request.box[axis]);
        require(
            axis == 0 || (request.strides[axis] % 16 == 0 && request.strides[axis] < 1ull << 40),
            "strides in bytes that are multiples of 16 below 2^40", request.strides[axis]);
    }
    TensorMap map;
    const std::uint32_t element_strides[TensorMapRequest::kMaxRank] = {1, 1, 1, 1, 1};
    driver().check(
        driver().cuTensorMapEncodeTiled(
            &map, request.tf32 ? kTf32 : data_type(request.dtype, argument),
            static_cast<std::uint32_t>(request.rank), reinterpret_cast<void*>(request.address),
            request.extents.data(), request.strides.data() + 1, request.box.data(), element_strides,
            kInterleaveNone, static_cast<int>(request.swizzle),
            request.read_once ? kL2Promotion128 : kL2Promotion256, kFillZero),
        "encoding a tensor map");
    return map;
}

}  // namespace tilewright::cuda
