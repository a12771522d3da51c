// The forward pass of rms_norm.cu for arrays on the CPU: a tw_cpu_function.
//
//     c++ -std=c++17 -O2 -shared -fPIC rms_norm_cpu.cpp -o librms_norm_cpu.so -I PREFIX/include
#include <tilewright/cpu_function.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

// Elements as numbers; _Float16 is a type of GCC and Clang.
double number(const float* p) {
    return *p;
}
double number(const double* p) {
    return *p;
}
double number(const _Float16* p) {
    return static_cast<double>(*p);
}
struct Bf16 {
    std::uint16_t bits;
};
double number(const Bf16* p) {
    const std::uint32_t word = static_cast<std::uint32_t>(p->bits) << 16;
    float value;
    std::memcpy(&value, &word, sizeof(value));
    return value;
}

template <typename T>
void store(T* p, double value) {
    *p = static_cast<T>(value);
}
void store(Bf16* p, double value) {
    const float rounded = static_cast<float>(value);
    std::uint32_t word;
    std::memcpy(&word, &rounded, sizeof(word));
    if (rounded != rounded) word = 0x7fc00000u;
    p->bits = static_cast<std::uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

template <typename T, typename W>
const char* run(const DLTensor* arrays, double eps) {
    const auto* x = static_cast<const T*>(arrays[0].data);
    const auto* weight = static_cast<const W*>(arrays[1].data);
    auto* y = static_cast<W*>(arrays[2].data);
    const std::int64_t rows = arrays[0].shape[0], columns = arrays[0].shape[1];
    for (std::int64_t row = 0; row < rows; ++row, x += columns, y += columns) {
        double sum = 0;
        for (std::int64_t c = 0; c < columns; ++c) sum += number(x + c) * number(x + c);
        const double r = 1 / std::sqrt(sum / static_cast<double>(columns) + eps);
        for (std::int64_t c = 0; c < columns; ++c) {
            store(y + c, number(x + c) * r * number(weight + c));
        }
        if (arrays[3].dtype.bits == 64) {
            static_cast<double*>(arrays[3].data)[row] = r;
        } else {
            static_cast<float*>(arrays[3].data)[row] = static_cast<float>(r);
        }
    }
    return nullptr;
}

template <typename T>
const char* by_weight(const DLTensor* arrays, double eps) {
    const DLDataType type = arrays[1].dtype;
    if (type.code == kDLBfloat) return run<T, Bf16>(arrays, eps);
    if (type.code != kDLFloat) return "expected a weight of floats but got another dtype";
    return type.bits == 64   ? run<T, double>(arrays, eps)
           : type.bits == 32 ? run<T, float>(arrays, eps)
                             : run<T, _Float16>(arrays, eps);
}

}  // namespace

// x, weight, y, rstd; columns and eps.
extern "C" const char* rms_norm(const DLTensor* arrays, std::int32_t,
                                const void* const* attributes) {
    const double eps = *static_cast<const double*>(attributes[1]);
    const DLDataType type = arrays[0].dtype;
    if (type.code == kDLBfloat) return by_weight<Bf16>(arrays, eps);
    if (type.code != kDLFloat) return "expected x of floats but got another dtype";
    return type.bits == 64   ? by_weight<double>(arrays, eps)
           : type.bits == 32 ? by_weight<float>(arrays, eps)
                             : by_weight<_Float16>(arrays, eps);
}
