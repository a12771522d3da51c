// Tensors: creation, views, copies, element access.
#include "tilewright/tensor.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>

#include "cpu/machine.h"
#include "run/cuda_memory.h"
#include "run/elements.h"
#include "run/hash.h"
#include "run/host_memory.h"
#include "run/overlap.h"
#include "run/recorder.h"
#include "support/check.h"

namespace tilewright {

namespace {

Tensor::Dims row_major_strides(const Tensor::Dims& shape) {
    Tensor::Dims strides(shape.size());
    std::int64_t stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
        strides[d] = stride;
        stride *= std::max<std::int64_t>(shape[d], 1);
    }
    return strides;
}

std::string text(std::span<const std::int64_t> dims) {
    return fmt::format("[{}]", fmt::join(dims, ", "));
}

std::int64_t checked_size(const Tensor::Dims& shape, DType dtype, const char* op) {
    // Dimensions after one of extent 0 count too, because strides depend on them.
    std::int64_t size = 1;
    bool empty = false;
    for (std::int64_t dim : shape) {
        if (dim < 0) user_error(op, "expected extents >= 0 but got shape {}", text(shape));
        empty |= dim == 0;
        if (__builtin_mul_overflow(size, std::max<std::int64_t>(dim, 1), &size) ||
            size > INT64_MAX / size_of(dtype)) {
            user_error(op, "expected a tensor that can be addressed but got shape {}", text(shape));
        }
    }
    return empty ? 0 : size;
}

/// Every element of a non-empty view must have a valid address, aligned to its size.
void check_addresses(const void* data, DType dtype, const Tensor::Dims& shape,
                     const Tensor::Dims& strides) {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    const auto width = static_cast<std::uintptr_t>(size_of(dtype));
    if (address % width != 0) {
        user_error("from_data", "expected {} at a multiple of {} bytes but got the address {}",
                   name(dtype), width, data);
    }
    std::int64_t low = 0, high = 0;  // bytes to the first and to the last element
    bool fits = true;
    for (std::size_t d = 0; fits && d < shape.size(); ++d) {
        std::int64_t reach = 0;
        fits = !__builtin_mul_overflow(shape[d] - 1, strides[d], &reach) &&
               !__builtin_mul_overflow(reach, size_of(dtype), &reach);
        std::int64_t& end = reach < 0 ? low : high;
        fits = fits && !__builtin_add_overflow(end, reach, &end);
    }
    // Programs have the lower half of the address space. -low and high are below 2^63, so neither
    // sum wraps unnoticed.
    const std::uintptr_t below = 0 - static_cast<std::uintptr_t>(low);
    const std::uintptr_t above = static_cast<std::uintptr_t>(high) + width;
    if (!fits || below >= address || above > INTPTR_MAX || address > INTPTR_MAX - above) {
        user_error("from_data",
                   "expected strides that stay within the address space but got {} for shape {}",
                   text(strides), text(shape));
    }
}

}  // namespace

const Tensor::Extents Tensor::kNoExtents;

Tensor Tensor::empty(DType dtype, Dims shape, Device device) {
    const std::int64_t bytes = checked_size(shape, dtype, "empty") * size_of(dtype);
    if (device.kind == Device::Kind::cuda) {
        std::shared_ptr<void> owner = run::allocate_on_gpu(bytes, device.index);
        void* const memory = owner.get();
        Tensor result = from_data(memory, dtype, std::move(shape), {}, std::move(owner), device);
        if (run::Recorder* const recorder = run::Recorder::current()) recorder->allocated(result);
        return result;
    }
    // At least one byte, so that empty tensors have a pointer too.
    const std::size_t size = std::max<std::int64_t>(bytes, 1);
    std::shared_ptr<void> owner = run::host_memory().allocate(size);
    if (!owner) {
        out_of_memory("Tensor", "expected {} bytes of memory for {} but there are none", size,
                      to_string(TensorType{dtype, shape}));
    }
    void* const memory = owner.get();
    Tensor result = from_data(memory, dtype, std::move(shape), {}, std::move(owner));
    if (run::Recorder* const recorder = run::Recorder::current()) recorder->allocated(result);
    return result;
}

Tensor Tensor::zeros(DType dtype, Dims shape, Device device) {
    Tensor result = empty(dtype, std::move(shape), device);
    if (device.kind == Device::Kind::cuda) {
        run::clear_on_gpu(result.data_, result.nbytes(), device.index);
    } else {
        run::interrupt_recording();
        std::memset(result.data_, 0, result.nbytes());
    }
    return result;
}

Tensor Tensor::full(DType dtype, Dims shape, double value, Device device) {
    Tensor result = empty(dtype, std::move(shape), device);
    result.fill(value);
    return result;
}

Tensor Tensor::arange(DType dtype, std::int64_t n) {
    Tensor counts = empty(i64, {n});
    std::iota(counts.data<std::int64_t>(), counts.data<std::int64_t>() + n, std::int64_t{0});
    return counts.to(dtype);
}

Tensor Tensor::copy_of(const void* values, DType from, std::size_t count, Dims shape, DType dtype) {
    Tensor source = empty(from, std::move(shape));
    if (source.size() != static_cast<std::int64_t>(count)) {
        user_error("from_vector", "expected {} values for shape {} but got {}", source.size(),
                   text(source.shape()), count);
    }
    if (count > 0) std::memcpy(source.data_, values, source.nbytes());
    return source.to(dtype);
}

Tensor Tensor::from_data(void* data, DType dtype, Dims shape, Dims strides,
                         std::shared_ptr<void> owner, Device device) {
    const std::int64_t size = checked_size(shape, dtype, "from_data");
    if (!data && size > 0) user_error("from_data", "expected a pointer but got null");
    if (strides.empty()) strides = row_major_strides(shape);
    if (strides.size() != shape.size()) {
        user_error("from_data", "expected {} strides for shape {} but got {}", shape.size(),
                   text(shape), strides.size());
    }
    if (size > 0) check_addresses(data, dtype, shape, strides);
    Tensor result;
    result.owner_ = std::move(owner);
    result.data_ = data;
    result.extents_ =
        std::make_shared<const Extents>(Extents{std::move(shape), std::move(strides)});
    result.device_ = device;
    result.dtype_ = dtype;
    return result;
}

Tensor Tensor::view(void* data, Dims shape, Dims strides) const {
    Tensor result = *this;
    if (!defined()) return result;
    result.data_ = data;
    result.extents_ =
        std::make_shared<const Extents>(Extents{std::move(shape), std::move(strides)});
    return result;
}

std::int64_t Tensor::dim(int d) const {
    if (d < -rank() || d >= rank()) {
        user_error("dim", "expected a dimension of {} but got {}", type_name(), d);
    }
    return shape()[d < 0 ? d + rank() : d];
}

std::int64_t Tensor::size() const {
    std::int64_t size = defined() ? 1 : 0;
    for (std::int64_t dim : shape()) size *= dim;
    return size;
}

bool Tensor::is_contiguous() const {
    const auto& [shape, strides] = extents();
    std::int64_t expected = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
        if (shape[d] == 0) return true;
        if (shape[d] != 1 && strides[d] != expected) return false;
        expected *= shape[d];
    }
    return true;
}

std::string Tensor::type_name() const {
    return defined() ? to_string(TensorType{dtype_, shape()}) : "an undefined tensor";
}

void Tensor::check_defined(const char* op) const {
    if (!defined()) user_error(op, "expected a defined tensor but got an undefined one");
}

void Tensor::check_element_type(DType wanted) const {
    run::interrupt_recording();
    const bool same_bits = (wanted == u16 && (dtype_ == f16 || dtype_ == bf16)) ||
                           (wanted == u8 && size_of(dtype_) == 1);
    if (dtype_ != wanted && !same_bits) {
        user_error("data", "expected a tensor of {} but it is {}", name(wanted), type_name());
    }
}

Tensor Tensor::slice(int d, std::int64_t start, std::int64_t count, std::int64_t step) const {
    const std::int64_t extent = dim(d);
    const std::int64_t last = start + (count - 1) * step;
    if (step == 0 || count < 0 || start < 0 || start > extent ||
        (count > 0 && (start >= extent || last < 0 || last >= extent))) {
        user_error("slice",
                   "expected elements inside dimension {} of {} but got start {}, count {}, "
                   "step {}",
                   d, type_name(), start, count, step);
    }
    Dims extents = shape(), steps = strides();
    const std::size_t at = d < 0 ? d + rank() : d;
    std::byte* const first = static_cast<std::byte*>(data_) + start * steps[at] * size_of(dtype_);
    extents[at] = count;
    steps[at] *= step;
    return view(first, std::move(extents), std::move(steps));
}

Tensor Tensor::select(int d, std::int64_t index) const {
    const Tensor one = slice(d, index, 1);
    Dims extents = one.shape(), steps = one.strides();
    const int at = d < 0 ? d + rank() : d;
    extents.erase(extents.begin() + at);
    steps.erase(steps.begin() + at);
    return view(one.data_, std::move(extents), std::move(steps));
}

Tensor Tensor::transpose(const std::vector<int>& permutation) const {
    std::vector<bool> seen(shape().size(), false);
    Dims extents = shape(), steps = strides();
    bool valid = permutation.size() == extents.size();
    for (std::size_t d = 0; valid && d < permutation.size(); ++d) {
        const int from = permutation[d];
        valid = from >= 0 && from < rank() && !seen[from];
        if (!valid) break;
        seen[from] = true;
        extents[d] = shape()[from];
        steps[d] = strides()[from];
    }
    if (!valid) {
        user_error("transpose", "expected a permutation of the dimensions of {} but got [{}]",
                   type_name(), fmt::join(permutation, ", "));
    }
    return view(data_, std::move(extents), std::move(steps));
}

Tensor Tensor::reshape(Dims shape) const {
    if (!is_contiguous() || checked_size(shape, dtype_, "reshape") != size()) {
        user_error("reshape",
                   "expected a contiguous tensor and {} elements but got {}{} and shape {}", size(),
                   type_name(), is_contiguous() ? "" : " with strides", text(shape));
    }
    Dims steps = row_major_strides(shape);
    return view(data_, std::move(shape), std::move(steps));
}

Tensor Tensor::expand_dims(int d) const {
    if (d < 0 || d > rank()) {
        user_error("expand_dims", "expected a position in [0, {}] but got {}", rank(), d);
    }
    Dims extents = shape(), steps = strides();
    extents.insert(extents.begin() + d, 1);
    steps.insert(steps.begin() + d, 0);
    return view(data_, std::move(extents), std::move(steps));
}

Tensor Tensor::broadcast_to(Dims shape) const {
    const Dims& from = this->shape();
    Dims steps = strides();
    bool valid = shape.size() == from.size();
    for (std::size_t d = 0; valid && d < shape.size(); ++d) {
        if (from[d] == shape[d]) continue;
        valid = from[d] == 1;
        steps[d] = 0;
    }
    if (!valid) {
        user_error("broadcast_to", "expected extents that {} can be repeated to but got {}",
                   type_name(), text(shape));
    }
    return view(data_, std::move(shape), std::move(steps));
}

std::uint64_t Tensor::fingerprint() const {
    check_defined("fingerprint");
    const Tensor dense = to(Device{}).contiguous();
    const auto* const bytes = static_cast<const std::byte*>(dense.raw());
    const std::size_t size = dense.nbytes();
    return run::hash_of(bytes, size);
}

Tensor Tensor::contiguous() const {
    return is_contiguous() ? *this : clone();
}

Tensor Tensor::to(Device device) const {
    if (device == device_) return *this;
    Tensor copy = empty(dtype_, shape(), device);
    copy.copy_from(*this);
    return copy;
}

Tensor Tensor::clone() const {
    Tensor copy = empty(dtype_, shape(), device_);
    copy.copy_from(*this);
    return copy;
}

Tensor Tensor::to(DType dtype) const {
    if (dtype == dtype_) return *this;
    Tensor copy = empty(dtype, shape(), device_);
    copy.copy_from(*this);
    return copy;
}

void Tensor::copy_from(const Tensor& source) const {
    check_defined("copy_from");
    source.check_defined("copy_from");
    run::check_writable("copy_from", "the target", *this);
    if (source.shape() != shape()) {
        user_error("copy_from", "expected a source of shape {} but got {}", text(shape()),
                   source.type_name());
    }
    if (size() == 0) return;
    run::interrupt_recording();
    const bool dense = source.dtype_ == dtype_ && is_contiguous() && source.is_contiguous();
    if (device_.kind == Device::Kind::cuda || source.device_.kind == Device::Kind::cuda) {
        if (dense) {
            run::copy_memory(data_, device_, source.data_, source.device_, nbytes());
        } else if (device_ == source.device_) {
            run::copy_elements_on_gpu(*this, source);
        } else if (source.dtype_ != dtype_ || !source.is_contiguous()) {
            Tensor same = empty(dtype_, shape(), source.device_);
            same.copy_from(source);
            copy_from(same);
        } else {
            copy_from(source.to(device_));
        }
        return;
    }
    if (dense) {
        std::memmove(data_, source.data_, static_cast<std::size_t>(nbytes()));
        return;
    }
    // An overlapping source would change while its elements are read.
    if (run::overlap(*this, source)) return copy_from(source.clone());
    const int width = size_of(dtype_);
    run::for_each_offset(
        shape(), strides(), source.strides(), [&](std::int64_t to, std::int64_t from) {
            run::convert_element(
                source.dtype_,
                static_cast<const std::byte*>(source.data_) + from * size_of(source.dtype_), dtype_,
                static_cast<std::byte*>(data_) + to * width);
        });
}

void Tensor::fill(double value) const {
    check_defined("fill");
    run::check_not_read_only("fill", "the tensor", *this);
    if (device_.kind == Device::Kind::cuda) return fill_on_gpu(value);
    run::interrupt_recording();
    std::array<std::byte, 8> bits{};
    run::convert_element(f64, reinterpret_cast<const std::byte*>(&value), dtype_, bits.data());
    const std::size_t width = size_of(dtype_);
    run::for_each_offset(shape(), strides(), strides(), [&](std::int64_t to, std::int64_t) {
        std::memcpy(static_cast<std::byte*>(data_) + to * static_cast<std::int64_t>(width),
                    bits.data(), width);
    });
}

void Tensor::fill_on_gpu(double value) const {
    if (size() == 0) return;
    std::array<std::uint32_t, 2> words{};
    run::convert_element(f64, &value, dtype_, words.data());
    std::uint32_t pattern = words[0];
    for (int width = size_of(dtype_); width < 4; width *= 2) pattern |= pattern << (8 * width);
    if (size_of(dtype_) <= 4 && is_contiguous() && nbytes() % 4 == 0) {
        run::fill_words(data_, pattern, nbytes() / 4, device_.index);
        return;
    }
    const Tensor one = empty(i64, {1}, device_);  // starts with the bytes of the value
    run::write_words(one.data_, words, device_.index);
    const Tensor element =
        from_data(one.data_, dtype_, Dims(shape().size(), 1), {}, one.owner_, device_);
    copy_from(element.broadcast_to(shape()));
}

std::byte* Tensor::element(std::span<const std::int64_t> index, const char* op) const {
    check_defined(op);
    if (device_.kind != Device::Kind::cpu) {
        user_error(op,
                   "expected a tensor in CPU memory but got one on {}; copy it with to(Device{{}})",
                   to_string(device_));
    }
    run::interrupt_recording();
    bool inside = index.size() == shape().size();
    std::int64_t offset = 0;
    for (std::size_t d = 0; inside && d < index.size(); ++d) {
        inside = index[d] >= 0 && index[d] < shape()[d];
        offset += index[d] * strides()[d];
    }
    if (!inside) {
        user_error(op, "expected an index inside {} but got {}", type_name(), text(index));
    }
    return static_cast<std::byte*>(data_) + offset * size_of(dtype_);
}

double Tensor::get(std::span<const std::int64_t> index) const {
    double value = 0;
    run::convert_element(dtype_, element(index, "get"), f64, reinterpret_cast<std::byte*>(&value));
    return value;
}

std::int64_t Tensor::get_int(std::initializer_list<std::int64_t> index) const {
    std::int64_t value = 0;
    run::convert_element(dtype_, element({index.begin(), index.size()}, "get_int"), i64,
                         reinterpret_cast<std::byte*>(&value));
    return value;
}

void Tensor::set(std::initializer_list<std::int64_t> index, double value) const {
    run::check_not_read_only("set", "the tensor", *this);
    run::convert_element(f64, reinterpret_cast<const std::byte*>(&value), dtype_,
                         element({index.begin(), index.size()}, "set"));
}

std::string to_string(const Device& device) {
    return device.kind == Device::Kind::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

std::string to_string(const TensorType& type) {
    return fmt::format("{}{}", name(type.dtype), text(type.shape));
}

}  // namespace tilewright
