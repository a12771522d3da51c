// DLPack in and out, without copies.
#include "tilewright/dlpack.h"

#include <array>
#include <cstring>
#include <utility>

#include "run/overlap.h"
#include "support/check.h"
#include "tilewright/tensor.h"

namespace tilewright {

namespace {

constexpr std::array<std::pair<DType, DLDataType>, kNumDTypes> kTypes{{
    {boolean, {kDLBool, 8, 1}},
    {i8, {kDLInt, 8, 1}},
    {u8, {kDLUInt, 8, 1}},
    {i16, {kDLInt, 16, 1}},
    {u16, {kDLUInt, 16, 1}},
    {i32, {kDLInt, 32, 1}},
    {u32, {kDLUInt, 32, 1}},
    {i64, {kDLInt, 64, 1}},
    {u64, {kDLUInt, 64, 1}},
    {f16, {kDLFloat, 16, 1}},
    {bf16, {kDLBfloat, 16, 1}},
    {f32, {kDLFloat, 32, 1}},
    {f64, {kDLFloat, 64, 1}},
    {f8e4m3, {kDLFloat8_e4m3fn, 8, 1}},
    {f8e5m2, {kDLFloat8_e5m2, 8, 1}},
}};

/// As many as NumPy's arrays may have. A larger number means that the struct is corrupt.
constexpr std::int32_t kMostDimensions = 64;

/// DLPack's code of complex numbers.
constexpr int kComplex = 5;

DType dtype_from(const DLDataType& wanted) {
    for (const auto& [dtype, type] : kTypes) {
        if (type.code == wanted.code && type.bits == wanted.bits && wanted.lanes == 1) return dtype;
    }
    if (wanted.code == kComplex && wanted.lanes == 1) {
        user_error("from_dlpack", "expected a dtype of Tilewright but got complex{}", wanted.bits);
    }
    user_error("from_dlpack", "expected a dtype of Tilewright but got code {}, {} bits, {} lanes",
               wanted.code, wanted.bits, wanted.lanes);
}

Device device_from(const DLDevice& wanted) {
    // The enumeration's memory may hold any number.
    static_assert(sizeof(wanted.device_type) == sizeof(std::int32_t));
    std::int32_t kind = 0;
    std::memcpy(&kind, &wanted.device_type, sizeof(kind));
    if (kind == kDLCPU || kind == kDLCUDAHost) return {};
    if (kind != kDLCUDA) {
        user_error("from_dlpack", "expected a tensor on CPU or CUDA but got device type {}", kind);
    }
    if (wanted.device_id < 0) {
        user_error("from_dlpack", "expected a GPU of number 0 or more but got device_id = {}",
                   wanted.device_id);
    }
    return Device::cuda(wanted.device_id);
}

/// Null only if the struct's pointer is null.
std::byte* first_element(const DLTensor& source) {
    const auto data = reinterpret_cast<std::uintptr_t>(source.data);
    if (!source.data || source.byte_offset > UINTPTR_MAX - data) {
        if (!source.data && source.byte_offset == 0) return nullptr;
        user_error("from_dlpack", "expected an address but got data = {} and byte_offset = {}",
                   source.data, source.byte_offset);
    }
    return static_cast<std::byte*>(source.data) + source.byte_offset;
}

DLDataType dtype_to(DType wanted) {
    return kTypes[static_cast<std::size_t>(wanted)].second;
}

template <typename Managed>
Tensor import(Managed* managed) {
    if (!managed) user_error("from_dlpack", "expected a managed tensor but got null");
    // Owned from here on, so that a refused tensor is released too.
    std::shared_ptr<void> owner(managed, [](void* p) {
        auto* tensor = static_cast<Managed*>(p);
        if (tensor->deleter) tensor->deleter(tensor);
    });
    const DLTensor& source = managed->dl_tensor;
    // The rank is checked before anything that `shape` and `strides` point to is read.
    if (source.ndim < 0 || source.ndim > kMostDimensions) {
        user_error("from_dlpack", "expected 0 to {} dimensions but got ndim = {}", kMostDimensions,
                   source.ndim);
    }
    if (source.ndim > 0 && !source.shape) {
        user_error("from_dlpack", "expected a shape of {} extents but got null", source.ndim);
    }
    const std::size_t rank = source.ndim;
    Tensor::Dims shape(source.shape, source.shape + rank);
    Tensor::Dims strides;
    if (source.strides) strides.assign(source.strides, source.strides + rank);
    return Tensor::from_data(first_element(source), dtype_from(source.dtype), std::move(shape),
                             std::move(strides), std::move(owner), device_from(source.device));
}

/// Keeps alive a tensor and the shape that the exported struct points to.
template <typename Managed>
struct Export {
    Managed managed{};
    Tensor tensor;
    Tensor::Dims shape, strides;
};

template <typename Managed>
Managed* exported(const Tensor& tensor) {
    if (!tensor.defined()) user_error("to_dlpack", "expected a defined tensor");
    auto* holder = new Export<Managed>{{}, tensor, tensor.shape(), tensor.strides()};
    DLTensor& target = holder->managed.dl_tensor;
    target.data = tensor.raw();
    target.device = {tensor.device().kind == Device::Kind::cpu ? kDLCPU : kDLCUDA,
                     tensor.device().index};
    target.ndim = tensor.rank();
    target.dtype = dtype_to(tensor.dtype());
    target.shape = holder->shape.data();
    target.strides = holder->strides.data();
    holder->managed.manager_ctx = holder;
    holder->managed.deleter = [](Managed* self) {
        delete static_cast<Export<Managed>*>(self->manager_ctx);
    };
    return &holder->managed;
}

}  // namespace

Tensor Tensor::from_dlpack(DLManagedTensor* managed) {
    return import(managed);
}

Tensor Tensor::from_dlpack(DLManagedTensorVersioned* managed) {
    if (managed && managed->version.major != 1) {
        const auto major = managed->version.major;
        if (managed->deleter) managed->deleter(managed);
        user_error("from_dlpack", "expected DLPack 1.x but got {}.x", major);
    }
    Tensor result = import(managed);
    result.read_only_ = (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
    return result;
}

DLManagedTensor* Tensor::to_dlpack() const {
    run::check_not_read_only("to_dlpack", "the tensor", *this);
    return exported<DLManagedTensor>(*this);
}

DLManagedTensorVersioned* Tensor::to_dlpack_versioned() const {
    auto* managed = exported<DLManagedTensorVersioned>(*this);
    managed->version = {1, 0};
    if (read_only_) managed->flags |= DLPACK_FLAG_BITMASK_READ_ONLY;
    return managed;
}

}  // namespace tilewright
