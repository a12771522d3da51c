// Loads and stores of a vector's first lanes that access no byte beyond them. Included once per
// target.
#if defined(TILEWRIGHT_CPU_VECTOR_LANES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEWRIGHT_CPU_VECTOR_LANES_INL_H
#undef TILEWRIGHT_CPU_VECTOR_LANES_INL_H
#else
#define TILEWRIGHT_CPU_VECTOR_LANES_INL_H
#endif

#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET

/// The first `n` lanes from p, zeros after them.
template <class D, typename T = hwy::HWY_NAMESPACE::TFromD<D>>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> load_first(D d, const T* p, std::size_t n) {
    namespace hn = hwy::HWY_NAMESPACE;
#if HWY_ARCH_X86
    // Masked moves of 32 and 64 bits suppress faults from AVX2 on.
    if constexpr (sizeof(T) >= 4) return hn::MaskedLoad(hn::FirstN(d, n), d, p);
#endif
    HWY_ALIGN T buffer[hn::MaxLanes(d)] = {};
    std::memcpy(buffer, p, n * sizeof(T));
    return hn::Load(d, buffer);
}

/// Stores the first `n` lanes to p.
template <class D, typename T = hwy::HWY_NAMESPACE::TFromD<D>>
HWY_INLINE void store_first(hwy::HWY_NAMESPACE::Vec<D> v, D d, T* p, std::size_t n) {
    namespace hn = hwy::HWY_NAMESPACE;
#if HWY_ARCH_X86
    if constexpr (sizeof(T) >= 4) {
        hn::BlendedStore(v, hn::FirstN(d, n), d, p);
        return;
    }
#endif
    HWY_ALIGN T buffer[hn::MaxLanes(d)];
    hn::Store(v, d, buffer);
    std::memcpy(p, buffer, n * sizeof(T));
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#endif
