// One kernel for every mask: evaluates bytecode for each pair of a 64 x 64 piece.
//
// A lane evaluates 8 adjacent columns at a time, a byte of the result, with registers in shared
// memory that no other lane reads. The arithmetic is that of generated code (tile/scalar.cuh).
#pragma once

#include "cuda/device/tile/scalar.cuh"
#include "mask/device/interpreter_parameters.h"

namespace twd::mask {

TW_DEVICE u64 to_register(i64 value) {
    return static_cast<u64>(value);
}
TW_DEVICE u64 to_register(u64 value) {
    return value;
}
TW_DEVICE u64 to_register(float value) {
    return __float_as_uint(value);
}
TW_DEVICE u64 to_register(double value) {
    return __builtin_bit_cast(u64, value);
}
template <class T>
TW_DEVICE u64 to_register(T value) {  // for narrower integers and bool
    if constexpr (ops::kSigned<T>) {
        return to_register(static_cast<i64>(value));
    } else {
        return static_cast<u64>(value);
    }
}
TW_DEVICE u64 to_register(bool value) {
    return value ? 1 : 0;
}

template <class T>
TW_DEVICE T from_register(u64 bits) {
    if constexpr (ops::kSame<T, float>) {
        return __uint_as_float(static_cast<u32>(bits));
    } else if constexpr (ops::kSame<T, double>) {
        return __builtin_bit_cast(double, bits);
    } else {
        return static_cast<T>(bits);
    }
}

/// Calls f with an element of the C++ type that represents `type`.
template <class F>
TW_DEVICE void with_type(Type type, F f) {
    switch (type) {
        case kBool:
            return f(boolean{});
        case kI8:
            return f(i8{});
        case kU8:
            return f(u8{});
        case kI16:
            return f(i16{});
        case kU16:
            return f(u16{});
        case kI32:
            return f(i32{});
        case kU32:
            return f(u32{});
        case kI64:
            return f(i64{});
        case kU64:
            return f(u64{});
        case kF16:
            return f(f16{});
        case kBf16:
            return f(bf16{});
        case kF32:
            return f(f32{});
        case kF64:
            return f(f64{});
        case kF8e4m3:
            return f(f8e4m3{});
        case kF8e5m2:
            return f(f8e5m2{});
    }
}

/// The same with the type in which registers compute: i64, u64, float or double.
template <class F>
TW_DEVICE void with_class(Type type, F f) {
    if (type == kF64) return f(double{});
    if (type >= kF16) return f(float{});
    if (type == kI8 || type == kI16 || type == kI32 || type == kI64) return f(i64{});
    f(u64{});
}

/// The same with the integer type in which elements are loaded: floats as their bits.
template <class F>
TW_DEVICE void with_word(Type type, F f) {
    switch (type) {
        case kI8:
            return f(i8{});
        case kI16:
            return f(i16{});
        case kI32:
            return f(i32{});
        case kU16:
        case kF16:
        case kBf16:
            return f(u16{});
        case kU32:
        case kF32:
            return f(u32{});
        case kI64:
        case kU64:
        case kF64:
            return f(u64{});
        default:
            return f(u8{});
    }
}

/// Narrows a result to its type: an integer from 64 bits, a float from 32.
TW_DEVICE u64 finished(Type type, i64 value) {
    const int unused = type == kI64 ? 0 : type == kI32 ? 32 : type == kI16 ? 48 : 56;
    return to_register(static_cast<i64>(static_cast<u64>(value) << unused) >> unused);
}
TW_DEVICE u64 finished(Type type, u64 value) {
    const int unused = type == kU64   ? 0
                       : type == kU32 ? 32
                       : type == kU16 ? 48
                       : type == kU8  ? 56
                                      : 63;
    return value << unused >> unused;
}
TW_DEVICE u64 finished(Type type, float value) {
    if (type == kF16) value = rounded(f16{}, value);
    if (type == kBf16) value = rounded(bf16{}, value);
    return to_register(value);
}
TW_DEVICE u64 finished(Type, double value) {
    return to_register(value);
}

/// A lane's 8 values of an operand.
struct Values {
    const u64* first;
    int stride;
    TW_DEVICE u64 operator[](int element) const { return first[element * stride]; }
};

struct Machine {
    const PieceParameters& p;
    u64* registers;  ///< this lane's registers

    TW_DEVICE u64* target(int number) const { return registers + number * kElements * kLanes; }
    TW_DEVICE Values values(int operand) const {
        if (operand < kRegisters) return {target(operand), kLanes};
        return {p.constants + (operand - kRegisters), 0};
    }
    template <class F>
    TW_DEVICE void each(const Step& step, F f) const {
        u64* const out = target(step.result);
#pragma unroll 2  // more would be no faster, and compile longer
        for (int e = 0; e < kElements; ++e) out[e * kLanes] = f(e);
    }
    /// For rare or long operations: unrolled, they would dominate the kernel's compile time.
    template <class F>
    TW_DEVICE void each_in_order(const Step& step, F f) const {
        u64* const out = target(step.result);
#pragma unroll 1
        for (int e = 0; e < kElements; ++e) out[e * kLanes] = f(e);
    }

    template <class T>
    TW_DEVICE void arithmetic(const Step& step) const {
        const Values a = values(step.operands[0]), b = values(step.operands[1]);
        const auto unary = [&](auto f) {
            each_in_order(step,
                          [&](int e) { return finished(step.in, f(from_register<T>(a[e]))); });
        };
        const auto in_order = [&](auto f) {
            each_in_order(step, [&](int e) {
                return finished(step.in, f(from_register<T>(a[e]), from_register<T>(b[e])));
            });
        };
        const auto binary = [&](auto f) {
            if constexpr (ops::kIsFloat<T>) return in_order(f);
            each(step, [&](int e) {
                return finished(step.in, f(from_register<T>(a[e]), from_register<T>(b[e])));
            });
        };
        const auto compare = [&](auto f) {
            const auto one = [&](int e) {
                return to_register(
                    static_cast<bool>(f(from_register<T>(a[e]), from_register<T>(b[e]))));
            };
            if constexpr (ops::kIsFloat<T>) return each_in_order(step, one);
            each(step, one);
        };
        switch (step.code) {
            case kNeg:
                if constexpr (ops::kIsFloat<T>) {
                    return unary([](T x) { return -x; });
                } else {
                    return unary([](T x) { return ops::neg(x); });
                }
            case kAbs:
                return unary([](T x) { return ops::abs(x); });
            case kSign:
                return unary([](T x) { return ops::sign(x); });
            case kAdd:
                return binary([](T x, T y) { return sum(x, y); });
            case kSub:
                return binary([](T x, T y) { return difference(x, y); });
            case kMul:
                return binary([](T x, T y) { return product(x, y); });
            case kDiv:
                return in_order([](T x, T y) { return quotient(x, y); });
            case kFloorDiv:
                return in_order([](T x, T y) { return ops::floordiv(x, y); });
            case kMin:
                return binary([](T x, T y) { return ops::min(x, y); });
            case kMax:
                return binary([](T x, T y) { return ops::max(x, y); });
            case kEq:
                return compare([](T x, T y) { return x == y; });
            case kNe:
                return compare([](T x, T y) { return x != y; });
            case kLt:
                return compare([](T x, T y) { return x < y; });
            case kLe:
                return compare([](T x, T y) { return x <= y; });
            case kGt:
                return compare([](T x, T y) { return x > y; });
            case kGe:
                return compare([](T x, T y) { return x >= y; });
            case kClamp: {
                const Values c = values(step.operands[2]);
                return each_in_order(step, [&](int e) {
                    return finished(step.in,
                                    ops::clamp(from_register<T>(a[e]), from_register<T>(b[e]),
                                               from_register<T>(c[e])));
                });
            }
            default:
                break;
        }
        if constexpr (ops::kIsFloat<T>) {
            switch (step.code) {
                case kSqrt:
                    return unary([](T x) { return ops::sqrt(x); });
                case kFloor:
                    return unary([](T x) { return ops::floor(x); });
                case kCeil:
                    return unary([](T x) { return ops::ceil(x); });
                case kRound:
                    return unary([](T x) { return ops::round(x); });
                case kIsNan:
                    return compare([](T x, T) { return x != x; });
                case kFma: {
                    const Values c = values(step.operands[2]);
                    return each_in_order(step, [&](int e) {
                        return finished(step.in,
                                        ops::fma(from_register<T>(a[e]), from_register<T>(b[e]),
                                                 from_register<T>(c[e])));
                    });
                }
                default:
                    return;
            }
        } else {
            // A shift by more than the width of a narrower type moves all of its bits out of the
            // 64, too.
            switch (step.code) {
                case kNot:
                    return unary([](T x) { return static_cast<T>(~x); });
                case kRem:
                    return in_order([](T x, T y) { return ops::rem(x, y); });
                case kFloorMod:
                    return in_order([](T x, T y) { return ops::floormod(x, y); });
                case kAnd:
                    return binary([](T x, T y) { return x & y; });
                case kOr:
                    return binary([](T x, T y) { return x | y; });
                case kXor:
                    return binary([](T x, T y) { return x ^ y; });
                case kShiftLeft:
                    return binary([](T x, T y) { return ops::shift_left(x, y); });
                case kShiftRight:
                    return binary([](T x, T y) { return ops::shift_right(x, y); });
                default:
                    return;
            }
        }
    }

    template <class T>
    TW_DEVICE static T sum(T x, T y) {
        if constexpr (ops::kIsFloat<T>) {
            return x + y;
        } else {
            return ops::add(x, y);
        }
    }
    template <class T>
    TW_DEVICE static T difference(T x, T y) {
        if constexpr (ops::kIsFloat<T>) {
            return x - y;
        } else {
            return ops::sub(x, y);
        }
    }
    template <class T>
    TW_DEVICE static T product(T x, T y) {
        if constexpr (ops::kIsFloat<T>) {
            return x * y;
        } else {
            return ops::mul(x, y);
        }
    }
    template <class T>
    TW_DEVICE static T quotient(T x, T y) {
        if constexpr (ops::kIsFloat<T>) {
            return x / y;
        } else {
            return ops::div(x, y);
        }
    }

    TW_DEVICE void cast(const Step& step) const {
        const Values a = values(step.operands[0]);
        with_class(step.in, [&](auto from) {
            with_type(step.out, [&](auto to) {
                each_in_order(step, [&](int e) {
                    return to_register(
                        ops::cast<decltype(to)>(from_register<decltype(from)>(a[e])));
                });
            });
        });
    }

    /// Elements outside the array, or masked off, read `other` and touch no memory.
    TW_DEVICE void load(const Step& step) const {
        const Array& array = p.arrays[step.array];
        i64 offsets[kElements];
        u32 inside = 0;  // a bit for each element
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
            offsets[e] = 0;
            if (!step.masked || values(step.operands[step.rank])[e] != 0) inside |= 1u << e;
        }
        for (int d = 0; d < step.rank; ++d) {
            const Values indices = values(step.operands[d]);
            const i64 extent = array.extents[d], stride = array.strides[d];
#pragma unroll
            for (int e = 0; e < kElements; ++e) {
                const i64 index = static_cast<i64>(indices[e]);
                if (index >= 0 && index < extent) {
                    offsets[e] += index * stride;
                } else {
                    inside &= ~(1u << e);
                }
            }
        }
        const int place = step.rank + (step.masked ? 1 : 0);
        with_word(step.in, [&](auto word) {
            using Word = decltype(word);
            const Word* const data = static_cast<const Word*>(array.data);
            each(step, [&](int e) {
                if ((inside >> e & 1) != 0) return to_register(data[offsets[e]]);
                return step.other ? values(step.operands[place])[e] : u64{0};
            });
        });
        if (step.in == kBool || (step.in >= kF16 && step.in != kF32 && step.in != kF64))
            widen_loaded(step, inside);
    }

    /// Converts loaded bits of bools and narrow floats to what registers hold.
    TW_DEVICE void widen_loaded(const Step& step, u32 inside) const {
        const u64* const loaded = target(step.result);
        each_in_order(step, [&](int e) {
            const u64 bits = loaded[e * kLanes];
            if ((inside >> e & 1) == 0) return bits;
            if (step.in == kBool) return to_register(bits != 0);
            if (step.in == kF16) return to_register(widen(f16{static_cast<u16>(bits)}));
            if (step.in == kBf16) return to_register(widen(bf16{static_cast<u16>(bits)}));
            if (step.in == kF8e4m3) return to_register(widen(f8e4m3{static_cast<u8>(bits)}));
            return to_register(widen(f8e5m2{static_cast<u8>(bits)}));
        });
    }

    TW_DEVICE void run(const Step& step) const {
        switch (step.code) {
            case kLoad:
                return load(step);
            case kCast:
                return cast(step);
            case kSelect: {
                const Values c = values(step.operands[0]), a = values(step.operands[1]),
                             b = values(step.operands[2]);
                return each(step, [&](int e) { return c[e] != 0 ? a[e] : b[e]; });
            }
            case kRandomBits: {
                const Values key = values(step.operands[0]), counter = values(step.operands[1]);
                return each(
                    step, [&](int e) { return to_register(ops::random_bits(key[e], counter[e])); });
            }
            default:
                with_class(step.in, [&](auto type) { arithmetic<decltype(type)>(step); });
        }
    }

    /// The bits of columns kv to kv + 7 in row q.
    TW_DEVICE u8 bits(i64 b, i64 h, i64 q, i64 kv) const {
        const i64 scalars[4] = {b, h, q, kv};
        for (int s = 0; s < 4; ++s) {
            if (p.scalars[s] < 0) continue;
            for (int e = 0; e < kElements; ++e)
                target(p.scalars[s])[e * kLanes] = static_cast<u64>(scalars[s] + (s == 3 ? e : 0));
        }
        for (int i = 0; i < p.num_steps; ++i) run(p.steps[i]);
        const Values result = values(p.result);
        u32 byte = 0;
        for (int e = 0; e < kElements; ++e) byte |= result[e] != 0 ? 1u << e : 0;
        return static_cast<u8>(byte);
    }
};

/// Evaluates one piece per thread block.
TW_DEVICE void evaluate_piece(const PieceParameters& p) {
    __shared__ u64 registers[kRegisters * kElements * kLanes];
    constexpr int kBytes = kPiece / kElements;  // bytes per row
    const Machine machine{p, registers + threadIdx.x};
    const Place place = p.places[blockIdx.x];
    u8* const out = p.bits + static_cast<i64>(blockIdx.x) * kPiece * kBytes;
    for (int part = threadIdx.x; part < kPiece * kBytes; part += kLanes) {
        out[part] = machine.bits(place.b, place.h, place.q + part / kBytes,
                                 place.kv + part % kBytes * kElements);
    }
}

/// Finds the range of one block of elements per thread.
TW_DEVICE void evaluate_ranges(const RangeParameters& p) {
    const i64 block = static_cast<i64>(blockIdx.x) * kLanes + threadIdx.x;
    const i64 first = block * kRangeBlock,
              end = first + kRangeBlock < p.size ? first + kRangeBlock : p.size;
    if (first >= p.size) return;
    with_type(p.type, [&](auto element) {
        using S = decltype(element);
        const S* const data = static_cast<const S*>(p.array.data);
        Register<S> low{}, high{};
        bool some = false, nan = false;
        for (i64 i = first; i < end; ++i) {
            i64 rest = i, offset = 0;
            for (int d = p.rank; d-- > 0;) {
                offset += rest % p.array.extents[d] * p.array.strides[d];
                rest /= p.array.extents[d];
            }
            const Register<S> value = widen(data[offset]);
            nan |= value != value;
            if (value != value) continue;
            if (!some || value < low) low = value;
            if (!some || value > high) high = value;
            some = true;
        }
        u64* const out = p.ranges + block * 3;
        if constexpr (ops::kIsFloat<Register<S>>) {
            // If all are NaN, the ends are reversed: an empty range.
            out[0] = to_register(some ? static_cast<double>(low) : 1.0);
            out[1] = to_register(some ? static_cast<double>(high) : -1.0);
        } else {
            out[0] = to_register(low);
            out[1] = to_register(high);
        }
        out[2] = nan ? 1 : 0;
    });
}

}  // namespace twd::mask
