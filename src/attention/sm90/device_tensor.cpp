// Checks of tensors, and their descriptors for TMA.
#include "attention/sm90/device_tensor.h"

namespace tilewright::attn::sm90 {

void check_tensor(const DeviceTensor& tensor, const char* argument,
                  const std::array<std::int64_t, 4>& shape) {
    static constexpr const char* kAxes[] = {"batch", "heads", "rows", "columns"};
    for (std::size_t axis = 0; axis < 4; ++axis) {
        if (tensor.shape[axis] != shape[axis]) {
            user_error(kOperation, "{}: expected {} {} but got {}", argument, shape[axis],
                       kAxes[axis], tensor.shape[axis]);
        }
        if (axis < 3 && shape[axis] > 1) {
            require(tensor.strides[axis] % 8 == 0, argument,
                    "strides that are multiples of 8 elements", tensor.strides[axis]);
        }
    }
    require(shape[3] == 1 || tensor.strides[3] == 1, argument, "a last stride of 1",
            tensor.strides[3]);
    require(tensor.address % 16 == 0, argument, "an address that is a multiple of 16",
            tensor.address);
}

cuda::TensorMap tile_map(const DeviceTensor& tensor, DType dtype, std::int64_t rows,
                         const char* argument, bool read_once) {
    cuda::TensorMapRequest request;
    request.dtype = dtype;
    request.rank = 4;
    request.read_once = read_once;
    request.address = tensor.address;
    for (std::size_t axis = 0; axis < 4; ++axis) {
        request.extents[axis] = static_cast<std::uint64_t>(tensor.shape[3 - axis]);
        // The stride of an axis of one element is never used, but must be valid.
        const std::int64_t stride = tensor.shape[3 - axis] == 1 ? 8 : tensor.strides[3 - axis];
        request.strides[axis] = static_cast<std::uint64_t>(stride) * 2;
    }
    request.box = {static_cast<std::uint32_t>(kPanel), static_cast<std::uint32_t>(rows), 1, 1};
    request.swizzle = cuda::Swizzle::bytes128;
    return cuda::encode_tensor_map(request, argument);
}

cuda::TensorMap grouped_tile_map(const DeviceTensor& tensor, DType dtype, std::int64_t rows,
                                 std::int64_t group, const char* argument) {
    const auto [batch, heads, queries, columns] = tensor.shape;
    const std::array<std::int64_t, 5> extents{columns, group, queries, heads / group, batch};
    const std::array<std::int64_t, 5> strides{1, tensor.strides[1], tensor.strides[2],
                                              tensor.strides[1] * group, tensor.strides[0]};
    cuda::TensorMapRequest request;
    request.dtype = dtype;
    request.rank = 5;
    request.address = tensor.address;
    for (std::size_t axis = 0; axis < 5; ++axis) {
        request.extents[axis] = static_cast<std::uint64_t>(extents[axis]);
        const std::int64_t stride = extents[axis] == 1 ? 8 : strides[axis];
        request.strides[axis] = static_cast<std::uint64_t>(stride) * 2;
    }
    request.box = {static_cast<std::uint32_t>(kPanel), static_cast<std::uint32_t>(group),
                   static_cast<std::uint32_t>(rows / group), 1, 1};
    request.swizzle = cuda::Swizzle::bytes128;
    return cuda::encode_tensor_map(request, argument);
}

}  // namespace tilewright::attn::sm90
