// Scalar matrix products: the definition of each, and the fallback of tables without a kernel.
#include <cstring>

#include "cpu/simd/scalar.h"
#include "cpu/simd/scalar_ops.h"
#include "support/small_float.h"

namespace tilewright::cpu {
namespace {

template <typename T>
T add_scaled(T c, T scale, T sum) {
    return apply<ir::Op::add>(apply<ir::Op::mul>(c, scale), sum);
}

template <typename T>
void gemm(const GemmArgs& g) {
    const auto* a = static_cast<const T*>(g.a);
    const auto* b = static_cast<const T*>(g.b);
    auto* c = static_cast<T*>(g.c);
    for (std::int64_t m = 0; m < g.m; ++m) {
        for (std::int64_t n = 0; n < g.n; ++n) {
            T sum = 0;
            for (std::int64_t k = 0; k < g.k; ++k) {
                sum = fused_multiply_add(a[m * g.a_row + k * g.a_col], b[k * g.ldb + n], sum);
            }
            T& slot = c[m * g.ldc + n];
            slot = g.accumulate ? add_scaled(slot, scale_of<T>(g, m, n), sum) : sum;
        }
    }
}

/// Words of 32 bits hold neighbours in k, of types A and B, which `widen_a` and `widen_b` convert
/// to the type of C.
template <typename A, typename B, typename C, C (*widen_a)(A), C (*widen_b)(B)>
void gemm_words(const GemmArgs& g) {
    constexpr std::size_t kCount = 4 / sizeof(A);
    const auto word = [](const void* words, std::int64_t i, auto& elements) {
        std::memcpy(elements, static_cast<const char*>(words) + i * 4, 4);
    };
    for (std::int64_t m = 0; m < g.m; ++m) {
        for (std::int64_t n = 0; n < g.n; ++n) {
            C sum = 0;
            for (std::int64_t k = 0; k < g.k; ++k) {
                A a[kCount];
                B b[kCount];
                word(g.a, m * g.a_row + k * g.a_col, a);
                word(g.b, k * g.ldb + n, b);
                for (std::size_t i = 0; i < kCount; ++i) {
                    sum = apply<ir::Op::add>(sum, apply<ir::Op::mul>(widen_a(a[i]), widen_b(b[i])));
                }
            }
            C& c = static_cast<C*>(g.c)[m * g.ldc + n];
            c = g.accumulate ? add_scaled(c, scale_of<C>(g, m, n), sum) : sum;
        }
    }
}

template <typename T>
std::int32_t widen_integer(T x) {
    return x;
}

template <typename A, typename B>
void gemm_integers(const GemmArgs& g) {
    gemm_words<A, B, std::int32_t, widen_integer<A>, widen_integer<B>>(g);
}

}  // namespace

void scalar_gemm_f32(const GemmArgs& args) {
    gemm<float>(args);
}
void scalar_gemm_f64(const GemmArgs& args) {
    gemm<double>(args);
}
void scalar_gemm_i32(const GemmArgs& args) {
    gemm<std::int32_t>(args);
}
void scalar_gemm_i64(const GemmArgs& args) {
    gemm<std::int64_t>(args);
}

void scalar_gemm_bf16_pairs(const GemmArgs& args) {
    gemm_words<std::uint16_t, std::uint16_t, float, bf16_to_f32, bf16_to_f32>(args);
}
void scalar_gemm_i16_pairs(const GemmArgs& args) {
    gemm_integers<std::int16_t, std::int16_t>(args);
}
GemmFunction scalar_gemm_i8_quads(bool a_signed, bool b_signed) {
    using I8 = std::int8_t;
    using U8 = std::uint8_t;
    if (a_signed) return b_signed ? gemm_integers<I8, I8> : gemm_integers<I8, U8>;
    return b_signed ? gemm_integers<U8, I8> : gemm_integers<U8, U8>;
}

}  // namespace tilewright::cpu
