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

// The vectors of a block are passed in the argument registers.
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

/// Addresses of operands and values of affine forms, where a row begins. Only those that a run has
/// are ever set: clearing all of them would cost as much as some blocks.
struct Position {
    alignas(64) std::array<std::int64_t, FusedCall::kMaxOperands> at;
    alignas(64) std::array<std::int32_t, FusedCall::kMaxAffine> index;
};

/// The numbers of addresses and forms that a run has; addresses are handled in vectors.
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
};

/// The state of a run, for its steps.
struct State : Position {
    HWY_ALIGN float partial[FusedCall::kMaxReductions][HWY_MAX_BYTES / sizeof(float)];
    const FusedCall* call;
};

/// `lane` of the row is the block's first.
using Function = void (*)(State&, const FusedStep*, std::int64_t lane, TW_PARAMETERS);
using AnyFunction = void (*)();

HWY_INLINE void next(State& s, const FusedStep* step, std::int64_t lane, TW_PARAMETERS) {
    reinterpret_cast<Function>(step[1].function)(s, step + 1, lane, TW_VALUES);
}

void end(State&, const FusedStep*, std::int64_t, TW_PARAMETERS) {
#define X(i) (void)v##i;
    TW_EACH(X)
#undef X
}

template <typename T = float>
HWY_INLINE T* address(const State& s, const FusedStep* step, std::int64_t lane, std::size_t k) {
    return reinterpret_cast<T*>(s.at[step->operand[k]]) + (lane & step->walks[k]);
}

// ---- Steps.

/// kValue: which operand the block's value is; FusedKey::kBoth: both. kSplat: the other one is one
/// element for all lanes.
template <class F, int kValue, bool kSplat>
void binary(State& s, const FusedStep* step, std::int64_t lane, TW_PARAMETERS) {
    const D d;
    const F f;
    const auto combine = [&](V value, V other) HWY_ATTR {
        return kValue == 0 ? f(d, value, other) : f(d, other, value);
    };
    if constexpr (kValue == FusedKey::kBoth) {
#define X(i) v##i = f(d, v##i, v##i);
        TW_EACH(X)
#undef X
    } else if constexpr (kSplat) {
        const V other = hn::Set(d, *address(s, step, 0, 0));
#define X(i) v##i = combine(v##i, other);
        TW_EACH(X)
#undef X
    } else {
        const float* other = address(s, step, lane, 0);
#define X(i) v##i = combine(v##i, hn::LoadU(d, other + (i)*kLanes));
        TW_EACH(X)
#undef X
    }
    next(s, step, lane, TW_VALUES);
}

/// Cheap functions, on all vectors at once.
template <class F>
void unary(State& s, const FusedStep* step, std::int64_t lane, TW_PARAMETERS) {
    const D d;
    const F f;
#define X(i) v##i = f(d, v##i);
    TW_EACH(X)
#undef X
    next(s, step, lane, TW_VALUES);
}

/// Functions that need most registers: with 16 of them, on one vector at a time; with 32, on all,
/// so that the latency of one is hidden by the others.
template <class F>
void function(State& s, const FusedStep* step, std::int64_t lane, TW_PARAMETERS) {
#if HWY_TARGET == HWY_AVX3
    unary<F>(s, step, lane, TW_VALUES);
#else
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
    next(s, step, lane, TW_VALUES);
#endif
}

/// The operands of a step beside the block's value, vector by vector.
template <bool kSplat>
struct Other {
    const float* at;
    V all;

    HWY_INLINE Other(const State& s, const FusedStep* step, std::int64_t lane, std::size_t k)
        : at(address(s, step, kSplat ? 0 : lane, k)), all(hn::Set(D(), kSplat ? *at : 0)) {}
    HWY_INLINE V operator[](std::int64_t i) const {
        return kSplat ? all : hn::LoadU(D(), at + i * kLanes);
    }
};

template <class F, int kValue, bool kFirstSplat, bool kSecondSplat>
void ternary(State& s, const FusedStep* step, std::int64_t lane, TW_PARAMETERS) {
    const D d;
    const F f;
    const Other<kFirstSplat> x(s, step, lane, 0);
    const Other<kSecondSplat> y(s, step, lane, 1);
    const auto combine = [&](V value, V a, V b) HWY_ATTR {
        if constexpr (kValue == 0) return f(d, value, a, b);
        if constexpr (kValue == 1) return f(d, a, value, b);
        return f(d, a, b, value);
    };
#define X(i) v##i = combine(v##i, x[i], y[i]);
    TW_EACH(X)
#undef X
    next(s, step, lane, TW_VALUES);
}

template <DType dtype, bool kSplat>
void load(State& s, const FusedStep* step, std::int64_t lane, TW_PARAMETERS) {
    const D d;
    const auto* p = address<typename Element<dtype>::Storage>(s, step, kSplat ? 0 : lane, 0);
    if constexpr (kSplat) {
        V x;
        if constexpr (dtype == DType::f32) {
            x = hn::Set(d, *p);
        } else {
            HWY_ALIGN typename Element<dtype>::Storage splat[kLanes];
            for (auto& element : splat) element = *p;
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
    next(s, step, lane, TW_VALUES);
}

template <DType dtype>
void store(State& s, const FusedStep* step, std::int64_t lane, TW_PARAMETERS) {
    const std::size_t operand = step->operand[0];
    auto* p = address<typename Element<dtype>::Storage>(s, step, lane, 0);
    const bool streams = s.call->operands[operand].streams &&
                         reinterpret_cast<std::uintptr_t>(p) % (kLanes * sizeof(float)) == 0;
#define X(i) store_widened<dtype>(v##i, p, (i)*kLanes, streams);
    TW_EACH(X)
#undef X
    next(s, step, lane, TW_VALUES);
}

/// An affine form over the lanes of the block.
struct AffineForm {
    hn::Vec<DI> at, step;

    HWY_INLINE AffineForm(const State& s, const FusedStep* form, std::int64_t first) {
        const DI di;
        const std::int32_t lane = s.call->affine[form->index].lane;
        const std::int32_t base = s.index[form->index] + lane * static_cast<std::int32_t>(first);
        at = hn::Add(hn::Mul(hn::Iota(di, 0), hn::Set(di, lane)), hn::Set(di, base));
        step = hn::Set(di, static_cast<std::int32_t>(kLanes) * lane);
    }
    /// Returns the form at this vector of the block and advances to the next.
    HWY_INLINE hn::Vec<DI> next() {
        const auto here = at;
        at = hn::Add(at, step);
        return here;
    }
};

template <bool kFloat>
void iota(State& s, const FusedStep* step, std::int64_t lane, TW_PARAMETERS) {
    const D d;
    AffineForm form(s, step, lane);
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
    next(s, step, lane, TW_VALUES);
}

template <class F>
void affine_mask(State& s, const FusedStep* step, std::int64_t lane, TW_PARAMETERS) {
    const D d;
    const DI di;
    const auto zero = hn::Zero(di);
    AffineForm form(s, step, lane);
#define X(i) v##i = hn::BitCast(d, hn::VecFromMask(di, F()(di, form.next(), zero)));
    TW_EACH(X)
#undef X
    next(s, step, lane, TW_VALUES);
}

void affine_select(State& s, const FusedStep* step, std::int64_t lane, TW_PARAMETERS) {
    const D d;
    const V no = hn::Set(d, step->immediate);
    AffineForm form(s, step, lane);
    // The sign of the form chooses.
#define X(i) v##i = hn::IfNegativeThenElse(hn::BitCast(d, form.next()), no, v##i);
    TW_EACH(X)
#undef X
    next(s, step, lane, TW_VALUES);
}

// Sums are added in pairs, which rounds less than one after the other.
template <class F>
void reduce(State& s, const FusedStep* step, std::int64_t lane, TW_PARAMETERS) {
    const D d;
    const F f;
    float* partial = s.partial[step->index];
    V block = f(d, f(d, v0, v1), f(d, v2, v3));
#if HWY_TARGET != HWY_AVX3
    block = f(d, block, f(d, f(d, v4, v5), f(d, v6, v7)));
#endif
    hn::Store(f(d, hn::Load(d, partial), block), d, partial);
    next(s, step, lane, TW_VALUES);
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
    Position to_row;
    std::size_t k = 0;
    for (; k < call.num_operands; ++k) {
        s.at[k] = reinterpret_cast<std::int64_t>(call.operands[k].data);
        to_row.at[k] = call.operands[k].row_bytes;
    }
    for (; k % kAddresses != 0; ++k) s.at[k] = to_row.at[k] = 0;
    for (std::size_t form = 0; form < call.num_affine; ++form) {
        s.index[form] = call.affine[form].base;
        to_row.index[form] = call.affine[form].row;
    }
    const Extent extent{call.num_operands, call.num_affine};
    const FusedStep* const steps = call.steps;
    const auto first = reinterpret_cast<Function>(steps[0].function);
    // Rows are walked along, as they lie in memory.
    for (std::int64_t row = 0; row < call.rows; ++row) {
        start_reductions(call, s);
        const auto run_block = [&](std::int64_t lane) HWY_ATTR {
            const V v = hn::Undefined(D());
#if HWY_TARGET == HWY_AVX3
            first(s, steps, lane, v, v, v, v);
#else
            first(s, steps, lane, v, v, v, v, v, v, v, v);
#endif
        };
        for (std::int64_t block = 0; block < call.blocks; ++block) {
            run_block(block * kBlock);
            for (std::size_t p = 0; p < call.num_prefetches; ++p) {
                const FusedPrefetch& next = call.prefetches[p];
                prefetch(reinterpret_cast<const char*>(s.at[next.operand]) + next.ahead +
                             block * next.block_bytes,
                         next.block_bytes);
            }
        }
        if (call.lanes > call.blocks * kBlock) run_block(call.lanes - kBlock);
        end_reductions(call, s, row);
        extent.move(s, to_row);
    }
}

// ---- Tables.

AnyFunction any(Function f) {
    return reinterpret_cast<AnyFunction>(f);
}

bool is_splat(const FusedShape& shape, std::size_t k) {
    return shape.place[k].kind == FusedPlace::Kind::splat;
}

template <class F, bool kSplat>
AnyFunction binary_step(int value) {
    return value == 0 ? any(binary<F, 0, kSplat>) : any(binary<F, 1, kSplat>);
}
template <class F>
AnyFunction binary_step(const FusedShape& shape) {
    const int value = shape.key.value;
    if (value == FusedKey::kBoth) return any(binary<F, FusedKey::kBoth, false>);
    return is_splat(shape, 0) ? binary_step<F, true>(value) : binary_step<F, false>(value);
}

template <class F, int kValue>
AnyFunction ternary_step(bool first_splat, bool second_splat) {
    if (first_splat)
        return second_splat ? any(ternary<F, kValue, true, true>)
                            : any(ternary<F, kValue, true, false>);
    return second_splat ? any(ternary<F, kValue, false, true>)
                        : any(ternary<F, kValue, false, false>);
}
template <class F>
AnyFunction ternary_step(const FusedShape& shape) {
    const bool first = is_splat(shape, 0), second = is_splat(shape, 1);
    return shape.key.value == 0   ? ternary_step<F, 0>(first, second)
           : shape.key.value == 1 ? ternary_step<F, 1>(first, second)
           : shape.key.value == 2 ? ternary_step<F, 2>(first, second)
                                  : nullptr;
}

/// OfMasks: the same comparison for masks, in which true is -1.
template <class F, class OfMasks = F>
AnyFunction comparison_step(const FusedShape& shape) {
    if (shape.key.in == DType::boolean) return binary_step<CompareIntegers<OfMasks>>(shape);
    return shape.key.in == DType::f32 ? binary_step<Compare<F>>(shape)
                                      : binary_step<CompareIntegers<F>>(shape);
}

template <DType dtype>
AnyFunction memory_step(const FusedShape& shape) {
    if (shape.key.op == ir::Op::store) return any(store<dtype>);
    return is_splat(shape, 0) ? any(load<dtype, true>) : any(load<dtype, false>);
}
AnyFunction memory_step(const FusedShape& shape) {
    switch (shape.key.in) {
        case DType::f32:
        case DType::i32:
            return memory_step<DType::f32>(shape);
        case DType::f16:
            return memory_step<DType::f16>(shape);
        case DType::bf16:
            return memory_step<DType::bf16>(shape);
        case DType::boolean:
            return memory_step<DType::boolean>(shape);
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

AnyFunction float_step(const FusedShape& shape) {
    using enum ir::Op;
    switch (shape.key.op) {
        case add:
            return binary_step<Add>(shape);
        case sub:
            return binary_step<Sub>(shape);
        case mul:
            return binary_step<Mul>(shape);
        case div:
            return binary_step<Div>(shape);
        case min:
            return binary_step<Min>(shape);
        case max:
            return binary_step<Max>(shape);
        case fma:
            return ternary_step<FmaOf>(shape);
        case clamp:
            return ternary_step<ClampOf>(shape);
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

AnyFunction integer_step(const FusedShape& shape) {
    using enum ir::Op;
    switch (shape.key.op) {
        case add:
            return binary_step<OnIntegers<Add>>(shape);
        case sub:
            return binary_step<OnIntegers<Sub>>(shape);
        case mul:
            return binary_step<OnIntegers<Mul>>(shape);
        case min:
            return binary_step<OnIntegers<Min>>(shape);
        case max:
            return binary_step<OnIntegers<Max>>(shape);
        case neg:
            return any(unary<OnIntegers<Neg>>);
        case abs:
            return any(unary<OnIntegers<Abs>>);
        default:
            return nullptr;
    }
}

}  // namespace

AnyFunction fused_step(const FusedShape& shape) {
    using enum ir::Op;
    const FusedKey& key = shape.key;
    switch (key.op) {
        case yield:
            return any(end);
        case ir::Op::load:
        case ir::Op::store:
            return memory_step(shape);
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
            return key.in == DType::i64 ? any(affine_select) : ternary_step<SelectOf>(shape);
        case ge:
            if (key.in == DType::i64) return any(affine_mask<Ge>);
            return comparison_step<Ge, Le>(shape);
        case eq:
            if (key.in == DType::i64) return any(affine_mask<Eq>);
            return comparison_step<Eq>(shape);
        case ne:
            if (key.in == DType::i64) return any(affine_mask<Ne>);
            return comparison_step<Ne>(shape);
        case le:
            return comparison_step<Le, Ge>(shape);
        case lt:
            return comparison_step<Lt, Gt>(shape);
        case gt:
            return comparison_step<Gt, Lt>(shape);
        case bitwise_and:
            return binary_step<And>(shape);
        case bitwise_or:
            return binary_step<Or>(shape);
        case bitwise_xor:
            return binary_step<Xor>(shape);
        case bitwise_not:
            return any(unary<Not>);
        default:
            return key.in == DType::f32   ? float_step(shape)
                   : key.in == DType::i32 ? integer_step(shape)
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
