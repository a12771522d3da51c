// Buffers of XLA as tensors, exceptions as XLA errors.
#include "jax/ffi.h"

#include <optional>

#include "tilewright/run.h"

namespace tilewright::jax {
namespace {

std::optional<DType> dtype_of(ffi::DataType type) {
    switch (type) {
        case ffi::PRED:
            return DType::boolean;
        case ffi::S8:
            return DType::i8;
        case ffi::U8:
            return DType::u8;
        case ffi::S16:
            return DType::i16;
        case ffi::U16:
            return DType::u16;
        case ffi::S32:
            return DType::i32;
        case ffi::U32:
            return DType::u32;
        case ffi::S64:
            return DType::i64;
        case ffi::U64:
            return DType::u64;
        case ffi::F16:
            return DType::f16;
        case ffi::BF16:
            return DType::bf16;
        case ffi::F32:
            return DType::f32;
        case ffi::F64:
            return DType::f64;
        case ffi::F8E4M3FN:
            return DType::f8e4m3;
        case ffi::F8E5M2:
            return DType::f8e5m2;
        default:
            return {};
    }
}

Tensor tensor_of(const ffi::AnyBuffer& buffer, Device device) {
    const auto dtype = dtype_of(buffer.element_type());
    if (!dtype) {
        throw UserError("[jax] expected arrays of bool, integers or floats but got XLA's type " +
                        std::to_string(static_cast<int>(buffer.element_type())));
    }
    const auto dims = buffer.dimensions();
    return Tensor::from_data(buffer.untyped_data(), *dtype, {dims.begin(), dims.end()}, {}, {},
                             device);
}

template <typename T>
T expect(ffi::ErrorOr<T> value) {
    if (value.has_error()) throw InternalError("[jax] " + value.error().message());
    return *value;
}

ffi::Error run(Body body, Device device, ffi::RemainingArgs operands, ffi::RemainingRets results,
               ffi::Dictionary attributes) {
    try {
        CustomCall call{{}, {}, attributes};
        for (std::size_t i = 0; i < operands.size(); ++i) {
            call.operands.push_back(tensor_of(expect(operands.get<ffi::AnyBuffer>(i)), device));
        }
        for (std::size_t i = 0; i < results.size(); ++i) {
            call.results.push_back(tensor_of(*expect(results.get<ffi::AnyBuffer>(i)), device));
        }
        body(call);
        return ffi::Error::Success();
    } catch (const UserError& error) {
        return ffi::Error::InvalidArgument(error.what());
    } catch (const std::exception& error) {
        return ffi::Error::Internal(error.what());
    }
}

}  // namespace

ffi::Error run_on_host(Body body, ffi::RemainingArgs operands, ffi::RemainingRets results,
                       ffi::Dictionary attributes) {
    return run(body, {}, operands, results, attributes);
}

ffi::Error run_on_cuda(Body body, void* stream, std::int32_t device, ffi::RemainingArgs operands,
                       ffi::RemainingRets results, ffi::Dictionary attributes) {
    void* const before = cuda_stream();
    set_cuda_stream(stream);
    const ffi::Error error = run(body, {Device::Kind::cuda, device}, operands, results, attributes);
    set_cuda_stream(before);
    return error;
}

void add_target(nb::dict& targets, const char* name, const char* platform, nb::capsule handler) {
    if (!targets.contains(name)) targets[name] = nb::dict();
    nb::cast<nb::dict>(targets[name])[platform] = std::move(handler);
}

}  // namespace tilewright::jax
