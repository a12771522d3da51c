// Vector kernels of select, clamp and fma.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/vector_ternary.cpp"
// clang-format off
#include "cpu/simd/vector_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/simd/vector.h"
#include "cpu/simd/vector_math-inl.h"
#include "cpu/simd/vector_strip-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

struct Clamp {
    template <class D, class V>
    V operator()(D d, V x, V low, V high) const {
        return Min()(d, Max()(d, x, low), high);
    }
};
struct Fma {
    template <class D, class V>
    V operator()(D, V a, V b, V c) const {
        return hn::MulAdd(a, b, c);
    }
};

/// By size only: elements are moved, not computed.
template <typename T>
void select(const Strip& strip) {
    const hn::ScalableTag<T> d;
    const hn::Rebind<std::uint8_t, decltype(d)> d8;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    const Walk s = flattened(strip, 3);
    const std::int64_t full = s.lanes / kLanes * kLanes;
    const auto tail = static_cast<std::size_t>(s.lanes - full);
    if (s.rows > 1 && (s.lanes == kLanes || (s.padded && s.lanes < kLanes))) {
        NarrowOperand<T> yes(s.in[1], s.lanes, s.padded), no(s.in[2], s.lanes, s.padded);
        const auto* condition = static_cast<const std::uint8_t*>(s.in[0].data);
        const bool splat = s.in[0].lane_stride == 0;
        T* out = static_cast<T*>(s.out);
        for (std::int64_t row = 0; row < s.rows; ++row) {
            const auto a = yes.next(), b = no.next();
            const auto bytes = splat ? hn::Set(d8, *condition) : hn::LoadU(d8, condition);
            hn::StoreU(hn::IfThenElse(mask_of_bytes(d, bytes), a, b), d, out);
            condition += s.in[0].row_stride;
            out += s.out_row_stride;
        }
        return;
    }
    for (std::int64_t row = 0; row < s.rows; ++row) {
        const RowOperand<std::uint8_t> condition(s.in[0], row);
        const RowOperand<T> yes(s.in[1], row);
        const RowOperand<T> no(s.in[2], row);
        T* out = static_cast<T*>(s.out) + row * s.out_row_stride;
        for (std::int64_t l = 0; l < full; l += kLanes) {
            const auto mask = mask_of_bytes(d, hn::LoadU(d8, condition.at + l * condition.step));
            hn::StoreU(hn::IfThenElse(mask, hn::LoadU(d, yes.at + l * yes.step),
                                      hn::LoadU(d, no.at + l * no.step)),
                       d, out + l);
        }
        if (tail != 0) {
            const auto mask =
                mask_of_bytes(d, load_first(d8, condition.at + full * condition.step, tail));
            store_first(hn::IfThenElse(mask, load_first(d, yes.at + full * yes.step, tail),
                                       load_first(d, no.at + full * no.step, tail)),
                        d, out + full, tail);
        }
    }
}

}  // namespace

StripFunction ternary(ir::Op op, DType dtype) {
    if (op == ir::Op::clamp) return float_kernel<Clamp, 3>(dtype);
    if (op == ir::Op::fma) return float_kernel<Fma, 3>(dtype);
    if (op != ir::Op::select) return nullptr;
    switch (size_of(dtype)) {
        case 1:
            return select<std::uint8_t>;
        case 2:
            return select<std::uint16_t>;
        case 4:
            return select<std::uint32_t>;
        default:
            return select<std::uint64_t>;
    }
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewright::cpu {

StripFunction vector_ternary(Target target, ir::Op op, DType in) {
    TW_RETURN_FROM_TARGET(target, ternary(op, in))
}

}  // namespace tilewright::cpu
#endif
