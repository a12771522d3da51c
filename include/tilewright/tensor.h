// Tensors: strided views of typed memory with shared ownership.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "tilewright/compiler.h"
#include "tilewright/dtype.h"

struct DLManagedTensor;
struct DLManagedTensorVersioned;

namespace TW_API tilewright {

/// Where a tensor's memory lives.
struct Device {
    enum class Kind : std::uint8_t { cpu, cuda };
    Kind kind = Kind::cpu;
    int index = 0;
    /// The GPU with this ordinal.
    static Device cuda(int ordinal = 0) { return {Kind::cuda, ordinal}; }
    bool operator==(const Device&) const = default;
};

/// "cpu", "cuda:0".
std::string to_string(const Device& device);

/// Dtype and shape of a tensor that need not exist yet.
struct TensorType {
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape = {};
    bool operator==(const TensorType&) const = default;
};

/// The DType of a C++ element type.
template <typename T>
constexpr DType dtype_of() {
    if constexpr (std::is_same_v<T, bool>)
        return DType::boolean;
    else if constexpr (std::is_same_v<T, float>)
        return DType::f32;
    else if constexpr (std::is_same_v<T, double>)
        return DType::f64;
    else {
        static_assert(std::is_integral_v<T>, "no element type corresponds to this C++ type");
        constexpr bool kSigned = std::is_signed_v<T>;
        if constexpr (sizeof(T) == 1)
            return kSigned ? DType::i8 : DType::u8;
        else if constexpr (sizeof(T) == 2)
            return kSigned ? DType::i16 : DType::u16;
        else if constexpr (sizeof(T) == 4)
            return kSigned ? DType::i32 : DType::u32;
        else
            return kSigned ? DType::i64 : DType::u64;
    }
}

/// A strided view of typed memory, which it owns together with other tensors or not at all (then
/// the memory must outlive the tensor). Copies share the memory. Strides count elements and may be
/// zero or negative.
class Tensor {
  public:
    using Dims = std::vector<std::int64_t>;

    /// An undefined tensor, which stands for an argument left out.
    Tensor() = default;

    /// Uninitialised. On a GPU, memory comes from a cache per device and stream (set_cuda_stream).
    static Tensor empty(DType dtype, Dims shape, Device device = {});
    static Tensor zeros(DType dtype, Dims shape, Device device = {});
    static Tensor full(DType dtype, Dims shape, double value, Device device = {});
    static Tensor scalar(DType dtype, double value) { return full(dtype, {}, value); }
    /// 0, 1, ..., n - 1.
    static Tensor arange(DType dtype, std::int64_t n);
    /// Copies the values, converting them when `dtype` is not T's.
    template <typename T>
    static Tensor from_vector(const std::vector<T>& values, Dims shape,
                              DType dtype = dtype_of<T>()) {
        if constexpr (std::is_same_v<T, bool>) {
            const std::vector<std::uint8_t> bytes(values.begin(), values.end());
            return copy_of(bytes.data(), DType::boolean, bytes.size(), std::move(shape), dtype);
        } else {
            return copy_of(values.data(), dtype_of<T>(), values.size(), std::move(shape), dtype);
        }
    }
    /// A view of the caller's memory, which `owner` (if any) keeps alive. Empty strides: row-major.
    static Tensor from_data(void* data, DType dtype, Dims shape, Dims strides = {},
                            std::shared_ptr<void> owner = {}, Device device = {});

    bool defined() const { return extents_ != nullptr; }
    DType dtype() const { return dtype_; }
    Device device() const { return device_; }
    const Dims& shape() const { return extents().shape; }
    const Dims& strides() const { return extents().strides; }
    int rank() const { return static_cast<int>(shape().size()); }
    /// Extent of a dimension; a negative number counts from the end.
    std::int64_t dim(int d) const;
    std::int64_t size() const;  ///< number of elements
    std::int64_t nbytes() const { return size() * size_of(dtype_); }
    bool is_contiguous() const;  ///< row-major without gaps
    /// True for memory that its owner exported as read-only (DLPack): calls and copies refuse to
    /// write to it. Views are read-only too.
    bool read_only() const { return read_only_; }

    void* raw() const { return data_; }
    /// Keeps the memory alive; null where the caller has to. Views share it.
    const std::shared_ptr<void>& owner() const { return owner_; }
    /// Typed pointer; UserError when T is not the dtype. std::uint16_t reads f16 and bf16 as their
    /// bits, std::uint8_t f8.
    template <typename T>
    T* data() const {
        check_element_type(dtype_of<T>());
        return static_cast<T*>(data_);
    }

    // ---- Views of the same memory.

    /// Elements start, start + step, ... (`count` of them) of one dimension.
    Tensor slice(int d, std::int64_t start, std::int64_t count, std::int64_t step = 1) const;
    /// One index of a dimension; drops the dimension.
    Tensor select(int d, std::int64_t index) const;
    Tensor transpose(const std::vector<int>& permutation) const;
    /// The same elements with another shape; UserError unless the tensor is contiguous.
    Tensor reshape(Dims shape) const;
    /// Inserts a dimension of extent 1 before dimension d.
    Tensor expand_dims(int d) const;
    /// A view in which dimensions of extent 1 take the given extents, with stride 0.
    Tensor broadcast_to(Dims shape) const;

    // ---- Copies.

    Tensor contiguous() const;  ///< itself when it is contiguous already
    Tensor clone() const;
    Tensor to(
        DType dtype) const;  ///< converts as the IR's cast does; itself when it has that dtype
    /// A copy on another device; itself when it is there already.
    Tensor to(Device device) const;
    /// Copies the elements of a tensor of equal shape, converting dtype and strides; either may be
    /// on a GPU, which converts its own tensors. A copy that involves the host waits until it is
    /// done. UserError when this tensor is read-only or several indices share an element, as after
    /// a broadcast.
    void copy_from(const Tensor& source) const;
    void fill(double value) const;

    // ---- Elements on the CPU, bounds-checked: for tests and examples, not for speed.

    double get(std::span<const std::int64_t> index) const;
    double get(std::initializer_list<std::int64_t> index) const {
        return get(std::span<const std::int64_t>(index.begin(), index.size()));
    }
    std::int64_t get_int(std::initializer_list<std::int64_t> index) const;
    void set(std::initializer_list<std::int64_t> index, double value) const;
    /// The elements in row-major order, converted to T; also from a GPU.
    template <typename T>
    std::vector<T> to_vector() const {
        check_defined("to_vector");
        const Tensor dense = to(Device{}).to(dtype_of<T>()).contiguous();
        const auto* first = static_cast<const T*>(dense.data_);
        return std::vector<T>(first, first + dense.size());
    }

    // ---- DLPack, without a copy.

    /// Takes ownership of `managed`; its deleter runs when the last tensor on the memory is gone.
    static Tensor from_dlpack(DLManagedTensor* managed);
    static Tensor from_dlpack(DLManagedTensorVersioned* managed);
    /// A managed tensor that keeps the memory alive until its deleter is called. UserError for a
    /// read-only tensor in the older form, which cannot say so.
    DLManagedTensor* to_dlpack() const;
    DLManagedTensorVersioned* to_dlpack_versioned() const;

    /// A hash of the elements, for detecting changes; copies them from a GPU.
    std::uint64_t fingerprint() const;

    /// "f32[2, 3]", for messages.
    std::string type_name() const;

  private:
    static Tensor copy_of(const void* values, DType from, std::size_t count, Dims shape,
                          DType dtype);
    void check_defined(const char* op) const;
    void check_element_type(DType wanted) const;
    void fill_on_gpu(double value) const;
    std::byte* element(std::span<const std::int64_t> index, const char* op) const;

    /// Shared by copies: a tensor is copied many times on its way to a kernel.
    struct Extents {
        Dims shape, strides;
    };
    static const Extents kNoExtents;
    const Extents& extents() const { return extents_ ? *extents_ : kNoExtents; }
    /// The same memory from `data` on with another shape and strides.
    Tensor view(void* data, Dims shape, Dims strides) const;

    std::shared_ptr<void> owner_;
    std::shared_ptr<const Extents> extents_;  ///< null: undefined
    void* data_ = nullptr;
    Device device_;
    DType dtype_ = DType::f32;
    bool read_only_ = false;
};

std::string to_string(const TensorType& type);

/// Prints "f32[2, 3]", then the elements: in dimensions with more than eight, the first and last
/// three. For more than 1 MiB on a GPU, only the type and the device.
std::ostream& operator<<(std::ostream& stream, const Tensor& tensor);

}  // namespace tilewright
