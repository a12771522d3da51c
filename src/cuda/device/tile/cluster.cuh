// Values that thread blocks of a cluster exchange.
#pragma once

#include "cuda/device/ptx/sync.cuh"

namespace twd {

TW_DEVICE u64 bits_of(float value) {
    return __float_as_uint(value);
}
TW_DEVICE u64 bits_of(double value) {
    return static_cast<u64>(__double_as_longlong(value));
}
template <class T>
TW_DEVICE u64 bits_of(T value) {
    return static_cast<u64>(value);
}
TW_DEVICE void take_bits(u64 bits, float& value) {
    value = __uint_as_float(static_cast<u32>(bits));
}
TW_DEVICE void take_bits(u64 bits, double& value) {
    value = __longlong_as_double(static_cast<long long>(bits));
}
template <class T>
TW_DEVICE void take_bits(u64 bits, T& value) {
    value = static_cast<T>(bits);
}

/// Writes a value to the same place in the shared memory of a block of the cluster.
template <class T>
TW_DEVICE void send(u64* place, u32 block, T value) {
    ptx::cluster_store(ptx::cluster_map(shared_address(place), block), bits_of(value));
}

/// A value that has been sent.
template <class T>
TW_DEVICE T received(const u64& place) {
    T value;
    take_bits(place, value);
    return value;
}

}  // namespace twd
