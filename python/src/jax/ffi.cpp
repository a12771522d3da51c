// XLA's buffers as tensors, exceptions as XLA errors.
#include "jax/ffi.h"

#include <memory>
#include <optional>
#include <utility>

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

/// Calls body(buffer) for every array of a host call.
template <typename Body>
void for_each_array(ffi::RemainingArgs operands, ffi::RemainingRets results, Body body) {
    for (std::size_t i = 0; i < operands.size(); ++i) {
        body(expect(operands.get<ffi::AnyBuffer>(i)));
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
        body(*expect(results.get<ffi::AnyBuffer>(i)));
    }
}

}  // namespace

CustomCall call_on(Device device, ffi::RemainingArgs operands, ffi::RemainingRets results) {
    CustomCall call{{}, {}, device};
    call.operands.reserve(operands.size());
    call.results.reserve(results.size());
    for (std::size_t i = 0; i < operands.size(); ++i) {
        call.operands.push_back(tensor_of(expect(operands.get<ffi::AnyBuffer>(i)), device));
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
        call.results.push_back(tensor_of(*expect(results.get<ffi::AnyBuffer>(i)), device));
    }
    return call;
}

void Recordings::run(ffi::RemainingArgs operands, ffi::RemainingRets results,
                     const std::function<void(const CustomCall&)>& run) {
    if (checked()) return run(call_on({}, operands, results));
    // Kept per thread to reuse their capacity; a nested call uses its own.
    static thread_local Types kept_types;
    static thread_local std::vector<void*> kept_addresses;
    Types types = std::exchange(kept_types, {});
    std::vector<void*> addresses = std::exchange(kept_addresses, {});
    types.clear();
    addresses.clear();
    for_each_array(operands, results, [&](const ffi::AnyBuffer& buffer) {
        const auto dims = buffer.dimensions();
        types.push_back(static_cast<std::int64_t>(buffer.element_type()));
        types.push_back(static_cast<std::int64_t>(dims.size()));
        types.insert(types.end(), dims.begin(), dims.end());
        addresses.push_back(buffer.untyped_data());
    });
    const auto known = known_.find(types);
    if (known && (*known)->complete()) {
        (*known)->repeat(addresses);
    } else if (known) {
        run(call_on({}, operands, results));
    } else {
        const CustomCall call = call_on({}, operands, results);
        std::vector<Tensor> arrays = call.operands;
        arrays.insert(arrays.end(), call.results.begin(), call.results.end());
        const Recording made = Recording::of(arrays, [&](const std::vector<Tensor>& owned) {
            const auto middle = owned.begin() + std::ssize(call.operands);
            run({{owned.begin(), middle}, {middle, owned.end()}, call.device});
        });
        if (!made.is_early()) known_.put(types, std::make_shared<const Recording>(made));
    }
    kept_types = std::move(types);
    kept_addresses = std::move(addresses);
}

XlaScope::XlaScope(void* stream, int device, ffi::ScratchAllocator& scratch)
    : scope_(stream, [&scratch, device](std::int64_t bytes) -> std::shared_ptr<void> {
          if (bytes == 0) return {};
          // A command buffer runs again when XLA has reused its scratch memory.
          if (is_cuda_recording()) return cached_cuda_memory(bytes, device);
          // XLA refuses requests for this alignment.
          constexpr std::size_t kAlignment = 256;
          std::size_t room = static_cast<std::size_t>(bytes) + kAlignment - 1;
          void* memory = scratch.Allocate(room).value_or(nullptr);
          if (memory != nullptr) std::align(kAlignment, 1, memory, room);
          return {memory, [](void*) {}};  // XLA frees it after the call
      }) {}

}  // namespace tilewright::jax
