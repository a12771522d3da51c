// Checks, layouts and parts of the tensors among attention's arguments.
#include "attention/tensors.h"

#include "run/clear.h"
#include "run/cuda_memory.h"
#include "run/machine.h"
#include "run/recorder.h"
#include "support/check.h"
#include "support/debug_log.h"

namespace tilewright::attn {

Tensor to_bhsd(const Tensor& x, Layout layout) {
    return layout == Layout::bhsd ? x : x.transpose({0, 2, 1, 3});
}

Tensor empty_like(DType dtype, const Tensor::Dims& shape, Layout layout, Device device) {
    if (layout == Layout::bhsd) return Tensor::empty(dtype, shape, device);
    return Tensor::empty(dtype, {shape[0], shape[2], shape[1], shape[3]}, device)
        .transpose({0, 2, 1, 3});
}

namespace {

Tensor with_unit_stride(const char* argument, const Tensor& x) {
    if (x.size() == 0 || x.dim(-1) == 1 || x.strides().back() == 1) return x;
    debug_log("attention", "slow path: {} is copied, since its last stride is {}", argument,
              x.strides().back());
    return x.contiguous();
}

void check_type(const char* argument, const Tensor& tensor, DType dtype, const Tensor::Dims& shape,
                Device device) {
    if (!tensor.defined() || tensor.dtype() != dtype || tensor.shape() != shape) {
        user_error("attention", "expected {} of {} but got {}", argument,
                   to_string(TensorType{dtype, shape}), tensor.type_name());
    }
    expect_device(argument, tensor, device);
}

}  // namespace

void expect_shape(const char* argument, const Tensor& tensor, const Tensor::Dims& expected) {
    if (tensor.shape() == expected) return;
    user_error("attention", "expected {} of shape ({}) but got {}", argument,
               fmt::join(expected, ", "), tensor.type_name());
}

void expect_device(const char* argument, const Tensor& tensor, Device device) {
    if (!tensor.defined()) return;
    if (!(tensor.device() == device)) {
        user_error("attention", "expected {} on {}, where the query is, but got {} on {}", argument,
                   to_string(device), tensor.type_name(), to_string(tensor.device()));
    }
    if (device.kind == Device::Kind::cpu || tensor.size() == 0) return;
    if (run::is_told_addresses()) return;
    // A kernel that is given any other address breaks the CUDA context of the whole process.
    const int owner = run::gpu_of(tensor.raw(), argument);
    if (owner != device.index) {
        user_error("attention", "expected {} in the memory of {} but it is in cuda:{}'s", argument,
                   to_string(device), owner);
    }
}

Tensor check_input(const char* argument, const Tensor& tensor, DType dtype, Layout layout,
                   Device device) {
    if (!tensor.defined()) user_error("attention", "expected {} but it was left out", argument);
    if (tensor.rank() != 4)
        user_error("attention", "expected {} of rank 4 but got {}", argument, tensor.type_name());
    if (dtype != DType::f32 && dtype != DType::f64 && dtype != DType::f16 && dtype != DType::bf16)
        user_error("attention", "expected {} of f32, f64, f16 or bf16 but got {}", argument,
                   tensor.type_name());
    if (tensor.dtype() != dtype)
        user_error("attention", "expected {} of dtype {}, that of the query, but got {}", argument,
                   name(dtype), tensor.type_name());
    expect_device(argument, tensor, device);
    return with_unit_stride(argument, to_bhsd(tensor, layout));
}

Tensor check_output(const char* argument, const Tensor& tensor, DType dtype,
                    const Tensor::Dims& shape, Layout layout, Device device) {
    const Tensor view = tensor.defined() && tensor.rank() == 4 ? to_bhsd(tensor, layout) : tensor;
    check_type(argument, view, dtype, shape, device);
    if (view.size() > 0 && view.dim(-1) > 1 && view.strides().back() != 1)
        user_error("attention", "expected {} with a last stride of 1 but got {}", argument,
                   view.strides().back());
    return view;
}

void check_rows(const char* argument, const Tensor& tensor, DType dtype, const Tensor::Dims& shape,
                Device device) {
    check_type(argument, tensor, dtype, shape, device);
    if (!tensor.is_contiguous())
        user_error("attention", "expected {} without gaps but got strides", argument);
}

void expect_floats(const char* argument, const Tensor& tensor) {
    if (is_float(tensor.dtype())) return;
    user_error("attention", "expected {} of floats but got {}", argument, tensor.type_name());
}

Tensor batches_of(const Tensor& x, std::int64_t b, std::int64_t count) {
    return x.defined() ? x.slice(0, b, count) : x;
}
Tensor heads_of(const Tensor& x, std::int64_t h, std::int64_t count) {
    return x.defined() ? x.slice(1, h, count) : x;
}
Tensor rows_of(const Tensor& x, std::int64_t first, std::int64_t count) {
    return x.defined() ? x.slice(2, first, count) : x;
}

Tensor attended_part(const Tensor& given, std::int64_t kv_length) {
    if (!given.defined() || given.dim(2) == kv_length) return given;
    if (run::Recorder::current() != nullptr && given.is_contiguous())
        run::clear(given);  // by a kernel, so that it can be recorded
    else
        rows_of(given, kv_length, given.dim(2) - kv_length).fill(0);
    return rows_of(given, 0, kv_length);
}

}  // namespace tilewright::attn
