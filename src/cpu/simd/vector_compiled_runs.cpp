// Fused runs of norms, softmax and GELU, each compiled as one function.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/vector_compiled_runs.cpp"
// clang-format off
#include "cpu/simd/vector_targets.h"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>
#include <limits>
#include <utility>

#include "cpu/simd/vector.h"
#include "cpu/simd/vector_fused-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewright::cpu {
namespace HWY_NAMESPACE {
#if TW_IS_VECTOR_TARGET
namespace {

// A step of a fused run costs an indirect jump of some cycles: where a run is a few adds and
// multiplications on rows in the cache, most of its time. The runs below are known when the library
// is compiled; their steps are inlined, and a run's temporaries stay in registers.
//
// compiled_runs.inl lists them, one macro call each. The build writes it from the programs
// themselves (docs/design/018-runs-compiled-ahead.md). Their steps use the functions below; runs
// that cli/generate_compiled_runs.cpp cannot express with these are not listed.

using ir::Op;
using Kind = FusedPlace::Kind;
using Shape = FusedShape;

constexpr int kAtOnce = 4;  ///< vectors per step: few enough to leave registers for temporaries
constexpr std::int64_t kLanesAtOnce = kAtOnce * kLanes;
static_assert(kBlock % kLanesAtOnce == 0);

constexpr FusedPlace kInLanes{Kind::lanes, -1}, kSplat{Kind::splat, -1};
constexpr FusedPlace kept(int temporary) {
    return {Kind::temporary, temporary};
}

constexpr Shape load(DType dtype) {
    return {{Op::load, dtype}, {kInLanes}};
}
constexpr Shape store(DType dtype) {
    return {{Op::store, dtype}, {kInLanes}};
}
constexpr Shape keep(int temporary) {
    return {{Op::store, DType::f32}, {kept(temporary)}};
}
constexpr Shape take(int temporary) {
    return {{Op::load, DType::f32}, {kept(temporary)}};
}
/// The block's value is operand `value`, the other one is at `place`.
constexpr Shape binary(Op op, FusedPlace place, int value = 0) {
    return {{op, DType::f32, DType::f32, value}, {place}};
}
constexpr Shape both(Op op) {
    return {{op, DType::f32, DType::f32, FusedKey::kBoth}, {}};
}
/// The block's value is operand `value`.
constexpr Shape fma_with(FusedPlace first, FusedPlace second, int value = 0) {
    return {{Op::fma, DType::f32, DType::f32, value}, {first, second}};
}
constexpr Shape exponential() {
    return {{Op::exp, DType::f32}, {}};
}
constexpr Shape tangent() {
    return {{Op::tanh, DType::f32}, {}};
}
constexpr Shape reduce(ir::Reduction reduction) {
    return {{Op::reduce, DType::f32, DType::f32, 0, reduction}, {}};
}

#define TW_COMPILED_RUN(name, ...) constexpr std::array name = {__VA_ARGS__};
#include "cpu/simd/compiled_runs.inl"
#undef TW_COMPILED_RUN

constexpr int operands_of(const Shape& shape) {
    return static_cast<int>(std::count_if(shape.place.begin(), shape.place.end(),
                                          [](FusedPlace p) { return p.kind != Kind::none; }));
}

/// Sums `count` over the steps before step `end`.
template <const auto& kRun, class Count>
constexpr std::size_t total(std::size_t end, Count count) {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < end; ++i) sum += static_cast<std::size_t>(count(kRun[i]));
    return sum;
}
constexpr std::size_t is_reduction(const Shape& shape) {
    return shape.key.op == Op::reduce;
}
constexpr std::size_t keeps(const Shape& shape) {
    return shape.key.op == Op::store && shape.place[0].kind == Kind::temporary;
}

/// A row of a run's operands, and the run's values in registers.
template <const auto& kRun>
struct Row {
    static constexpr std::size_t kSteps = kRun.size();
    static constexpr std::size_t kOperands = total<kRun>(kSteps, operands_of);
    static constexpr std::size_t kReductions = total<kRun>(kSteps, is_reduction);
    static constexpr std::size_t kTemporaries = total<kRun>(kSteps, keeps);

    std::byte* at[kOperands];
    bool streams[kOperands];
    V splat[kOperands];
    V partial[kReductions + 1];
    V kept[kTemporaries + 1][kAtOnce];

    HWY_INLINE Row(const FusedCall& call, std::int64_t row) {
        set_up(call, row, std::make_index_sequence<kSteps>());
    }

    /// Lanes [lane, lane + kLanesAtOnce).
    HWY_INLINE void run(std::int64_t lane) { run(lane, std::make_index_sequence<kSteps>()); }

    HWY_INLINE void finish(const FusedCall& call, std::int64_t row) {
        finish(call, row, std::make_index_sequence<kSteps>());
    }

  private:
    template <std::size_t kStep>
    static constexpr std::size_t kOperand = total<kRun>(kStep, operands_of);
    template <std::size_t kStep>
    static constexpr std::size_t kReduction = total<kRun>(kStep, is_reduction);

    template <std::size_t... kStep>
    HWY_INLINE void set_up(const FusedCall& call, std::int64_t row, std::index_sequence<kStep...>) {
        (set_up<kStep>(call, row), ...);
    }
    template <std::size_t... kStep>
    HWY_INLINE void run(std::int64_t lane, std::index_sequence<kStep...>) {
        V v[kAtOnce];
        (step<kStep>(v, lane), ...);
    }
    template <std::size_t... kStep>
    HWY_INLINE void finish(const FusedCall& call, std::int64_t row, std::index_sequence<kStep...>) {
        (finish<kStep>(call, row), ...);
    }

    template <std::size_t kStep>
    HWY_INLINE void set_up(const FusedCall& call, std::int64_t row) {
        constexpr Shape kShape = kRun[kStep];
        constexpr std::size_t kIndex = kOperand<kStep>;
        const D d;
        each<operands_of(kShape)>([&](int k) HWY_ATTR {
            const FusedOperand& operand = call.operands[kIndex + k];
            at[kIndex + k] = operand.data + row * operand.row_bytes;
        });
        if constexpr (kShape.key.op == Op::reduce) {
            partial[kReduction<kStep>] = hn::Set(d, kShape.key.reduction == ir::Reduction::max
                                                        ? -std::numeric_limits<float>::infinity()
                                                        : 0.0F);
        } else if constexpr (kShape.place[0].kind == Kind::splat) {
            splat[kIndex] = hn::Set(d, *reinterpret_cast<const float*>(at[kIndex]));
        } else if constexpr (kShape.key.op == Op::store) {
            constexpr std::size_t kAlignment = kLanes * sizeof(float);
            streams[kIndex] = call.operands[kIndex].streams && call.lanes % kLanes == 0 &&
                              reinterpret_cast<std::uintptr_t>(at[kIndex]) % kAlignment == 0;
        }
    }

    template <std::size_t kStep>
    HWY_INLINE void finish(const FusedCall& call, std::int64_t row) {
        constexpr Shape kShape = kRun[kStep];
        if constexpr (kShape.key.op == Op::reduce) {
            const FusedReduction& to = call.reductions[kReduction<kStep>];
            using F = std::conditional_t<kShape.key.reduction == ir::Reduction::max, Max, Add>;
            HWY_ALIGN float lanes[kLanes];
            hn::Store(partial[kReduction<kStep>], D(), lanes);
            end_reduction<F>(lanes, to.out[row * to.row_stride]);
        }
    }

    /// Operand k of a step, for vector i.
    template <std::size_t kStep, std::size_t k>
    HWY_INLINE V other(const V (&v)[kAtOnce], int i, std::int64_t lane) const {
        constexpr FusedPlace kPlace = kRun[kStep].place[k];
        constexpr std::size_t kIndex = kOperand<kStep> + k;
        if constexpr (kPlace.kind == Kind::lanes) {
            return widened<DType::f32>(at[kIndex], lane + i * kLanes);
        } else if constexpr (kPlace.kind == Kind::splat) {
            return splat[kIndex];
        } else if constexpr (kPlace.kind == Kind::temporary) {
            return kept[kPlace.temporary][i];
        } else {
            return v[i];
        }
    }

    template <class F, std::size_t kStep>
    HWY_INLINE void binary_step(V (&v)[kAtOnce], std::int64_t lane) const {
        constexpr bool kFirst = kRun[kStep].key.value != 1;
        each<kAtOnce>([&](int i) HWY_ATTR {
            const V x = other<kStep, 0>(v, i, lane);
            v[i] = kFirst ? F()(D(), v[i], x) : F()(D(), x, v[i]);
        });
    }

    template <DType dtype, std::size_t kIndex>
    HWY_INLINE void store_step(const V (&v)[kAtOnce], std::int64_t lane) const {
        each<kAtOnce>([&](int i) HWY_ATTR {
            store_widened<dtype>(v[i], at[kIndex], lane + i * kLanes, streams[kIndex]);
        });
    }

    template <std::size_t kStep>
    HWY_INLINE void step(V (&v)[kAtOnce], std::int64_t lane) {
        constexpr Shape kShape = kRun[kStep];
        constexpr Op kOp = kShape.key.op;
        constexpr std::size_t kIndex = kOperand<kStep>;
        if constexpr (kOp == Op::load && kShape.place[0].kind == Kind::temporary) {
            each<kAtOnce>([&](int i) HWY_ATTR { v[i] = kept[kShape.place[0].temporary][i]; });
        } else if constexpr (kOp == Op::load) {
            each<kAtOnce>([&](int i) HWY_ATTR {
                v[i] = widened<kShape.key.in>(at[kIndex], lane + i * kLanes);
            });
        } else if constexpr (keeps(kShape)) {
            each<kAtOnce>([&](int i) HWY_ATTR { kept[kShape.place[0].temporary][i] = v[i]; });
        } else if constexpr (kOp == Op::store) {
            store_step<kShape.key.in, kIndex>(v, lane);
        } else if constexpr (kOp == Op::reduce) {
            using F = std::conditional_t<kShape.key.reduction == ir::Reduction::max, Max, Add>;
            const D d;
            const F f;
            V& sum = partial[kReduction<kStep>];
            sum = f(d, sum, f(d, f(d, v[0], v[1]), f(d, v[2], v[3])));
        } else if constexpr (kOp == Op::exp) {
            exps(D(), v);
        } else if constexpr (kOp == Op::tanh) {
            each<kAtOnce>([&](int i) HWY_ATTR { v[i] = Tanh()(D(), v[i]); });
        } else if constexpr (kOp == Op::fma) {
            each<kAtOnce>([&](int i) HWY_ATTR {
                const V a = other<kStep, 0>(v, i, lane), b = other<kStep, 1>(v, i, lane);
                v[i] = kShape.key.value == 2 ? hn::MulAdd(a, b, v[i]) : hn::MulAdd(v[i], a, b);
            });
        } else if constexpr (kOp == Op::add) {
            binary_step<Add, kStep>(v, lane);
        } else if constexpr (kOp == Op::sub) {
            binary_step<Sub, kStep>(v, lane);
        } else {
            static_assert(kOp == Op::mul);
            binary_step<Mul, kStep>(v, lane);
        }
    }
};

template <const auto& kRun>
void compiled_run(const FusedCall& call) {
    // The next bytes to prefetch for each prefetch, and the distance from block to block.
    struct Ahead {
        const char* at;
        std::int64_t bytes, step;
    };
    const std::size_t num_ahead = call.num_prefetches;
    Ahead ahead[FusedCall::kMaxPrefetches];
    const std::int64_t lanes = call.blocks * kBlock;
    for (std::int64_t r = 0; r < call.rows; ++r) {
        Row<kRun> row(call, r);
        for (std::size_t k = 0; k < num_ahead; ++k) {
            const FusedPrefetch& next = call.prefetches[k];
            const FusedOperand& operand = call.operands[next.operand];
            const std::byte* const first = operand.data + r * operand.row_bytes + next.ahead;
            ahead[k] = {reinterpret_cast<const char*>(first), next.block_bytes,
                        kBlock * operand.lane_bytes};
        }
        for (std::int64_t first = 0; first < lanes; first += kBlock) {
            for (std::size_t k = 0; k < num_ahead; ++k) {
                prefetch(ahead[k].at, ahead[k].bytes);
                ahead[k].at += ahead[k].step;
            }
            for (std::int64_t at = 0; at < kBlock; at += kLanesAtOnce) row.run(first + at);
        }
        if (call.lanes > lanes) {
            for (std::int64_t at = call.lanes - kBlock; at < call.lanes; at += kLanesAtOnce)
                row.run(at);
        }
        row.finish(call, r);
    }
}

using CompiledRun = void (*)(const FusedCall&);

struct Entry {
    std::span<const Shape> shapes;
    CompiledRun run;
};
template <const auto& kRun>
constexpr Entry entry() {
    return {kRun, compiled_run<kRun>};
}

/// Which operands are parts of one row makes no difference: each is loaded by itself.
bool same_steps(const Shape& a, const Shape& b) {
    return a.key == b.key && std::equal(a.place.begin(), a.place.end(), b.place.begin(),
                                        [](const FusedPlace& x, const FusedPlace& y) {
                                            return x.kind == y.kind && x.temporary == y.temporary;
                                        });
}

CompiledRun find(std::span<const Shape> shapes) {
    static constexpr Entry kEntries[] = {
#define TW_COMPILED_RUN(name, ...) entry<name>(),
#include "cpu/simd/compiled_runs.inl"
#undef TW_COMPILED_RUN
    };
    for (const Entry& e : kEntries) {
        if (std::equal(e.shapes.begin(), e.shapes.end(), shapes.begin(), shapes.end(),
                       same_steps)) {
            return e.run;
        }
    }
    return nullptr;
}

}  // namespace

decltype(FusedKernels::compiled) compiled_runs() {
    return find;
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tilewright::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewright::cpu {

decltype(FusedKernels::compiled) vector_compiled_runs(Target target) {
    TW_RETURN_FROM_TARGET(target, compiled_runs())
}

}  // namespace tilewright::cpu
#endif
