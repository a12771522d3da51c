// Steps of fused runs: each does its op on the vectors in its arguments and calls the next step.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/vector_fused.cpp"
// clang-format off
#include "cpu/simd/vector_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <limits>

#include "cpu/simd/vector.h"
#include "cpu/simd/vector_fused-inl.h"
#include "hwy/highway.h"

// The vectors of a block travel in the argument registers.
#undef TW_EACH
#undef TW_PARAMETERS
#undef TW_VALUES
#if HWY_TARGET == HWY_AVX3
#define TW_EACH(X) X(0) X(1) X(2) X(3)
#define TW_PARAMETERS V v0, V v1, V v2, V v3
#define TW_VALUES v0, v1, v2, v3
#else
#define TW_EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define TW_PARAMETERS V v0, V v1, V v2, V v3, V v4, V v5, V v6, V v7
#define TW_VALUES v0, v1, v2, v3, v4, v5, v6, v7
#endif

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

/// Addresses of operands and values of affine forms, for one block. Only those that a run has are
/// ever set: clearing all of them would cost as much as some blocks.
struct Position {
    alignas(64) std::array<std::int64_t, FusedCall::kMaxOperands> at;
    alignas(64) std::array<std::int32_t, FusedCall::kMaxAffine> index;
};

/// How many of a position's addresses and forms a run has; addresses are handled in vectors.
struct Extent {
    std::size_t operands, forms;

    HWY_INLINE void move(Position& position, const Position& by) const {
        const hn::ScalableTag<std::int64_t> d;
        for (std::size_t k = 0; k < operands; k += hn::MaxLanes(d)) {
            const auto sum = hn::Add(hn::Load(d, &position.at[k]), hn::Load(d, &by.at[k]));
            hn::Store(sum, d, &position.at[k]);
        }
        for (std::size_t k = 0; k < forms; ++k) position.index[k] += by.index[k];
    }
    HWY_INLINE void copy(const Position& from, Position& to) const {
        const hn::ScalableTag<std::int64_t> d;
        for (std::size_t k = 0; k < operands; k += hn::MaxLanes(d)) {
            hn::Store(hn::Load(d, &from.at[k]), d, &to.at[k]);
        }
        for (std::size_t k = 0; k < forms; ++k) to.index[k] = from.index[k];
    }
};

/// What steps see of their run.
struct State : Position {
    HWY_ALIGN float partial[FusedCall::kMaxReductions][HWY_MAX_BYTES / sizeof(float)];
    const FusedCall* call;
};

using Function = void (*)(State&, const FusedStep*, TW_PARAMETERS);
using AnyFunction = void (*)();

HWY_INLINE void next(State& s, const FusedStep* step, TW_PARAMETERS) {
    reinterpret_cast<Function>(step[1].function)(s, step + 1, TW_VALUES);
}

void end(State&, const FusedStep*, TW_PARAMETERS) {
#define X(i) (void)v##i;
    TW_EACH(X)
#undef X
}

template <typename T = float>
HWY_INLINE T* address(const State& s, const FusedStep* step, int k) {
    return reinterpret_cast<T*>(s.at[step->operand[static_cast<std::size_t>(k)]]);
}

// ---- Steps.

/// kValue: which operand the block's value is; FusedKey::kBoth: both.
template <class F, int kValue>
void binary(State& s, const FusedStep* step, TW_PARAMETERS) {
    const D d;
    const F f;
    const auto combine = [&](V value, V other) HWY_ATTR {
        return kValue == 0 ? f(d, value, other) : f(d, other, value);
    };
    if constexpr (kValue == FusedKey::kBoth) {
#define X(i) v##i = f(d, v##i, v##i);
        TW_EACH(X)
#undef X
    } else if (step->splat[0]) {
        const V other = hn::Set(d, *address(s, step, 0));
#define X(i) v##i = combine(v##i, other);
        TW_EACH(X)
#undef X
    } else {
        const float* other = address(s, step, 0);
#define X(i) v##i = combine(v##i, hn::LoadU(d, other + (i)*kLanes));
        TW_EACH(X)
#undef X
    }
    next(s, step, TW_VALUES);
}

/// Cheap functions, all vectors at once.
template <class F>
void unary(State& s, const FusedStep* step, TW_PARAMETERS) {
    const D d;
    const F f;
#define X(i) v##i = f(d, v##i);
    TW_EACH(X)
#undef X
    next(s, step, TW_VALUES);
}

/// Functions that need the registers for themselves, one vector at a time.
template <class F>
void function(State& s, const FusedStep* step, TW_PARAMETERS) {
    const D d;
    const F f;
    HWY_ALIGN float block[kBlock];
#define X(i) hn::Store(v##i, d, block + (i)*kLanes);
    TW_EACH(X)
#undef X
    for (std::int64_t i = 0; i < kBlock; i += kLanes) {
        hn::Store(f(d, hn::Load(d, block + i)), d, block + i);
    }
#define X(i) v##i = hn::Load(d, block + (i)*kLanes);
    TW_EACH(X)
#undef X
    next(s, step, TW_VALUES);
}

template <class F, int kValue>
void ternary(State& s, const FusedStep* step, TW_PARAMETERS) {
    const D d;
    const F f;
    const float* a = address(s, step, 0);
    const float* b = address(s, step, 1);
    const auto combine = [&](V value, V x, V y) HWY_ATTR {
        if constexpr (kValue == 0) return f(d, value, x, y);
        if constexpr (kValue == 1) return f(d, x, value, y);
        return f(d, x, y, value);
    };
    if (step->splat[0] && step->splat[1]) {
        const V x = hn::Set(d, *a), y = hn::Set(d, *b);
#define X(i) v##i = combine(v##i, x, y);
        TW_EACH(X)
#undef X
    } else if (step->splat[0]) {
        const V x = hn::Set(d, *a);
#define X(i) v##i = combine(v##i, x, hn::LoadU(d, b + (i)*kLanes));
        TW_EACH(X)
#undef X
    } else if (step->splat[1]) {
        const V y = hn::Set(d, *b);
#define X(i) v##i = combine(v##i, hn::LoadU(d, a + (i)*kLanes), y);
        TW_EACH(X)
#undef X
    } else {
#define X(i) v##i = combine(v##i, hn::LoadU(d, a + (i)*kLanes), hn::LoadU(d, b + (i)*kLanes));
        TW_EACH(X)
#undef X
    }
    next(s, step, TW_VALUES);
}

template <DType dtype>
void load(State& s, const FusedStep* step, TW_PARAMETERS) {
    const D d;
    const void* p = address<void>(s, step, 0);
    if (step->splat[0]) {
        V x;
        if constexpr (dtype == DType::f32) {
            x = hn::Set(d, *static_cast<const float*>(p));
        } else {
            HWY_ALIGN typename Element<dtype>::Storage splat[kLanes];
            for (auto& element : splat) {
                element = *static_cast<const typename Element<dtype>::Storage*>(p);
            }
            x = widened<dtype>(splat, 0);
        }
#define X(i) v##i = x;
        TW_EACH(X)
#undef X
    } else {
#define X(i) v##i = widened<dtype>(p, (i)*kLanes);
        TW_EACH(X)
#undef X
    }
    next(s, step, TW_VALUES);
}

template <DType dtype>
void store(State& s, const FusedStep* step, TW_PARAMETERS) {
    const std::size_t operand = step->operand[0];
    auto* p = address<void>(s, step, 0);
    const bool streams = s.call->operands[operand].streams &&
                         reinterpret_cast<std::uintptr_t>(p) % (kLanes * sizeof(float)) == 0;
#define X(i) store_widened<dtype>(v##i, p, (i)*kLanes, streams);
    TW_EACH(X)
#undef X
    next(s, step, TW_VALUES);
}

/// An affine form over the lanes of the block.
struct AffineForm {
    hn::Vec<DI> at, step;

    HWY_INLINE AffineForm(const State& s, const FusedStep* form) {
        const DI di;
        const std::int32_t lane = s.call->affine[form->index].lane;
        at =
            hn::Add(hn::Mul(hn::Iota(di, 0), hn::Set(di, lane)), hn::Set(di, s.index[form->index]));
        step = hn::Set(di, static_cast<std::int32_t>(kLanes) * lane);
    }
    /// The form at the next vector of the block.
    HWY_INLINE hn::Vec<DI> next() {
        const auto here = at;
        at = hn::Add(at, step);
        return here;
    }
};

template <bool kFloat>
void iota(State& s, const FusedStep* step, TW_PARAMETERS) {
    const D d;
    AffineForm form(s, step);
    const auto value = [&]() HWY_ATTR {
        const auto x = form.next();
        if constexpr (kFloat)
            return hn::ConvertTo(d, x);
        else
            return hn::BitCast(d, x);
    };
#define X(i) v##i = value();
    TW_EACH(X)
#undef X
    next(s, step, TW_VALUES);
}

template <class F>
void affine_mask(State& s, const FusedStep* step, TW_PARAMETERS) {
    const D d;
    const DI di;
    const auto zero = hn::Zero(di);
    AffineForm form(s, step);
#define X(i) v##i = hn::BitCast(d, hn::VecFromMask(di, F()(di, form.next(), zero)));
    TW_EACH(X)
#undef X
    next(s, step, TW_VALUES);
}

void affine_select(State& s, const FusedStep* step, TW_PARAMETERS) {
    const D d;
    const V no = hn::Set(d, step->immediate);
    AffineForm form(s, step);
    // The sign of the form chooses.
#define X(i) v##i = hn::IfNegativeThenElse(hn::BitCast(d, form.next()), no, v##i);
    TW_EACH(X)
#undef X
    next(s, step, TW_VALUES);
}

// Sums are taken in pairs, which rounds less than one after the other.
template <class F>
void reduce(State& s, const FusedStep* step, TW_PARAMETERS) {
    const D d;
    const F f;
    float* partial = s.partial[step->index];
    V block = f(d, f(d, v0, v1), f(d, v2, v3));
#if HWY_TARGET != HWY_AVX3
    block = f(d, block, f(d, f(d, v4, v5), f(d, v6, v7)));
#endif
    hn::Store(f(d, hn::Load(d, partial), block), d, partial);
    next(s, step, TW_VALUES);
}

void start_reductions(const FusedCall& call, State& s) {
    const D d;
    for (std::size_t k = 0; k < call.num_reductions; ++k) {
        const ir::Reduction kind = call.reductions[k].kind;
        const float inf = std::numeric_limits<float>::infinity();
        hn::Store(hn::Set(d, kind == ir::Reduction::max   ? -inf
                             : kind == ir::Reduction::min ? inf
                                                          : 0.0F),
                  d, s.partial[k]);
    }
}

void end_reductions(const FusedCall& call, const State& s, std::int64_t row) {
    for (std::size_t k = 0; k < call.num_reductions; ++k) {
        const FusedReduction& reduction = call.reductions[k];
        float& out = reduction.out[row * reduction.row_stride];
        if (reduction.kind == ir::Reduction::max) {
            end_reduction<Max>(s.partial[k], out);
        } else if (reduction.kind == ir::Reduction::min) {
            end_reduction<Min>(s.partial[k], out);
        } else {
            end_reduction<Add>(s.partial[k], out);
        }
    }
}

void run(const FusedCall& call) {
    constexpr std::size_t kAddresses = hn::MaxLanes(hn::ScalableTag<std::int64_t>());
    State s;
    s.call = &call;
    Position start, to_row, to_block;
    std::size_t k = 0;
    for (; k < call.num_operands; ++k) {
        start.at[k] = reinterpret_cast<std::int64_t>(call.operands[k].data);
        to_row.at[k] = call.operands[k].row_bytes;
        to_block.at[k] = call.operands[k].lane_bytes * kBlock;
    }
    for (; k % kAddresses != 0; ++k) start.at[k] = to_row.at[k] = to_block.at[k] = 0;
    for (std::size_t form = 0; form < call.num_affine; ++form) {
        start.index[form] = call.affine[form].base;
        to_row.index[form] = call.affine[form].row;
        to_block.index[form] = call.affine[form].lane * static_cast<std::int32_t>(kBlock);
    }
    const Extent extent{call.num_operands, call.num_affine};
    // Rows are walked along, as they lie in memory; where they are one block long, downwards.
    const bool rows_inside = call.num_reductions == 0 && call.blocks == 1;
    const Position& inside = rows_inside ? to_row : to_block;
    const Position& outside = rows_inside ? to_block : to_row;
    const std::int64_t inner = rows_inside ? call.rows : call.blocks;
    const std::int64_t outer = rows_inside ? call.blocks : call.rows;
    const FusedStep* const steps = call.steps;
    const auto first = reinterpret_cast<Function>(steps[0].function);
    for (std::int64_t row = 0; row < outer; ++row) {
        start_reductions(call, s);
        extent.copy(start, s);
        for (std::int64_t i = 0; i < inner; ++i) {
            const V v = hn::Undefined(D());
#if HWY_TARGET == HWY_AVX3
            first(s, steps, v, v, v, v);
#else
            first(s, steps, v, v, v, v, v, v, v, v);
#endif
            for (std::size_t p = 0; p < call.num_prefetches; ++p) {
                const FusedPrefetch& next = call.prefetches[p];
                prefetch(reinterpret_cast<const char*>(s.at[next.operand]) + next.ahead,
                         next.block_bytes);
            }
            extent.move(s, inside);
        }
        end_reductions(call, s, row);
        extent.move(start, outside);
    }
}

// ---- Tables.

AnyFunction any(Function f) {
    return reinterpret_cast<AnyFunction>(f);
}

template <class F>
AnyFunction binary_step(int value) {
    if (value == FusedKey::kBoth) return any(binary<F, FusedKey::kBoth>);
    return value == 0 ? any(binary<F, 0>) : any(binary<F, 1>);
}

template <class F>
AnyFunction ternary_step(int value) {
    return value == 0   ? any(ternary<F, 0>)
           : value == 1 ? any(ternary<F, 1>)
           : value == 2 ? any(ternary<F, 2>)
                        : nullptr;
}

/// OfMasks: the same comparison of masks, in which true is -1.
template <class F, class OfMasks = F>
AnyFunction comparison_step(const FusedKey& key) {
    if (key.in == DType::boolean) return binary_step<CompareIntegers<OfMasks>>(key.value);
    return key.in == DType::f32 ? binary_step<Compare<F>>(key.value)
                                : binary_step<CompareIntegers<F>>(key.value);
}

AnyFunction memory_step(const FusedKey& key) {
    const bool loads = key.op == ir::Op::load;
    switch (key.in) {
        case DType::f32:
        case DType::i32:
            return loads ? any(load<DType::f32>) : any(store<DType::f32>);
        case DType::f16:
            return loads ? any(load<DType::f16>) : any(store<DType::f16>);
        case DType::bf16:
            return loads ? any(load<DType::bf16>) : any(store<DType::bf16>);
        case DType::boolean:
            return loads ? any(load<DType::boolean>) : any(store<DType::boolean>);
        default:
            return nullptr;
    }
}

AnyFunction cast_step(DType in, DType out) {
    using enum DType;
    if (in == i32 && out == f32) return any(unary<IntegerToFloat>);
    if (in == boolean && out == f32) return any(unary<MaskToFloat>);
    if (in == boolean && out == i32) return any(unary<MaskToInteger>);
    if (in == f32 && out == bf16) return any(unary<RoundTo<bf16>>);
    if (in == f32 && out == f16) return any(unary<RoundTo<f16>>);
    if ((in == bf16 || in == f16) && out == f32) return any(unary<Keep>);
    return nullptr;
}

AnyFunction float_step(const FusedKey& key) {
    using enum ir::Op;
    switch (key.op) {
        case add:
            return binary_step<Add>(key.value);
        case sub:
            return binary_step<Sub>(key.value);
        case mul:
            return binary_step<Mul>(key.value);
        case div:
            return binary_step<Div>(key.value);
        case min:
            return binary_step<Min>(key.value);
        case max:
            return binary_step<Max>(key.value);
        case fma:
            return ternary_step<FmaOf>(key.value);
        case clamp:
            return ternary_step<ClampOf>(key.value);
        case neg:
            return any(unary<Neg>);
        case abs:
            return any(unary<Abs>);
        case sqrt:
            return any(unary<Sqrt>);
        case rsqrt:
            return any(unary<Rsqrt>);
        case floor:
            return any(unary<Floor>);
        case ceil:
            return any(unary<Ceil>);
        case round:
            return any(unary<Round>);
        case exp:
            return any(unary<Exp>);
        case exp2:
            return any(unary<Exp2>);
        case log:
            return any(function<Log>);
        case log2:
            return any(function<Log2>);
        case tanh:
            return any(function<Tanh>);
        case logistic:
            return any(function<Logistic>);
        case erf:
            return any(function<Erf>);
        default:
            return nullptr;
    }
}

AnyFunction integer_step(const FusedKey& key) {
    using enum ir::Op;
    switch (key.op) {
        case add:
            return binary_step<OnIntegers<Add>>(key.value);
        case sub:
            return binary_step<OnIntegers<Sub>>(key.value);
        case mul:
            return binary_step<OnIntegers<Mul>>(key.value);
        case min:
            return binary_step<OnIntegers<Min>>(key.value);
        case max:
            return binary_step<OnIntegers<Max>>(key.value);
        case neg:
            return any(unary<OnIntegers<Neg>>);
        case abs:
            return any(unary<OnIntegers<Abs>>);
        default:
            return nullptr;
    }
}

}  // namespace

AnyFunction fused_step(const FusedKey& key) {
    using enum ir::Op;
    switch (key.op) {
        case yield:
            return any(end);
        case ir::Op::load:
        case ir::Op::store:
            return memory_step(key);
        case ir::Op::iota:
            return key.out == DType::f32 ? any(HWY_NAMESPACE::iota<true>)
                                         : any(HWY_NAMESPACE::iota<false>);
        case cast:
            return cast_step(key.in, key.out);
        case ir::Op::reduce:
            return key.reduction == ir::Reduction::sum   ? any(HWY_NAMESPACE::reduce<Add>)
                   : key.reduction == ir::Reduction::max ? any(HWY_NAMESPACE::reduce<Max>)
                   : key.reduction == ir::Reduction::min ? any(HWY_NAMESPACE::reduce<Min>)
                                                         : nullptr;
        case select:
            return key.in == DType::i64 ? any(affine_select) : ternary_step<SelectOf>(key.value);
        case ge:
            if (key.in == DType::i64) return any(affine_mask<Ge>);
            return comparison_step<Ge, Le>(key);
        case eq:
            if (key.in == DType::i64) return any(affine_mask<Eq>);
            return comparison_step<Eq>(key);
        case ne:
            if (key.in == DType::i64) return any(affine_mask<Ne>);
            return comparison_step<Ne>(key);
        case le:
            return comparison_step<Le, Ge>(key);
        case lt:
            return comparison_step<Lt, Gt>(key);
        case gt:
            return comparison_step<Gt, Lt>(key);
        case bitwise_and:
            return binary_step<And>(key.value);
        case bitwise_or:
            return binary_step<Or>(key.value);
        case bitwise_xor:
            return binary_step<Xor>(key.value);
        case bitwise_not:
            return any(unary<Not>);
        default:
            return key.in == DType::f32   ? float_step(key)
                   : key.in == DType::i32 ? integer_step(key)
                                          : nullptr;
    }
}

const FusedKernels* fused_kernels() {
    static constexpr FusedKernels kTable = {.lanes = kBlock, .step = fused_step, .run = run};
    return &kTable;
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewright::cpu {

const FusedKernels* vector_fused_kernels(Target target) {
    TW_RETURN_FROM_TARGET(target, fused_kernels())
}

}  // namespace tilewright::cpu
#endif
