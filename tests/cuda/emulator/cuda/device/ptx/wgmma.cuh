// Warpgroup products on the host. An accumulator is NaN from the issue of a product to the wait
// that covers it, which is when shared memory is read, so that overwriting it too early is
// detected.
#pragma once

#include "cuda/device/ptx/convert.cuh"

namespace twd::ptx {

/// Bytes of an element, and its value.
struct ElementType {
    int bytes = 2;
    double (*value)(const void* bits) = nullptr;
    bool integer = false;
};
template <class Bits>
inline Bits bits_of(const void* from) {
    Bits bits;
    std::memcpy(&bits, from, sizeof(bits));
    return bits;
}
/// An 8-bit float; only e4m3 has no infinities.
inline double small_float(u8 bits, int exponent_bits, int mantissa_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1,
              exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const bool special = exponent_bits == 4 ? (bits & 0x7f) == 0x7f : exponent == 31;
    const double size = special         ? (exponent_bits == 5 && mantissa == 0 ? HUGE_VAL : NAN)
                        : exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                        : std::ldexp(mantissa + (1 << mantissa_bits),
                                                     exponent - bias - mantissa_bits);
    return bits & 0x80 ? -size : size;
}
inline ElementType element_type(F16) {
    return {2, [](const void* at) -> double { return from_bits(F16{}, bits_of<u16>(at)); }};
}
inline ElementType element_type(Bf16) {
    return {2, [](const void* at) -> double { return low(Bf16{}, bits_of<u16>(at)); }};
}
inline ElementType element_type(Tf32) {
    return {4, [](const void* at) -> double {
                return __uint_as_float(bits_of<u32>(at) & 0xffffe000u);
            }};
}
inline ElementType element_type(E4m3) {
    return {1, [](const void* at) { return small_float(bits_of<u8>(at), 4, 3); }};
}
inline ElementType element_type(E5m2) {
    return {1, [](const void* at) { return small_float(bits_of<u8>(at), 5, 2); }};
}
inline ElementType element_type(S8) {
    return {1, [](const void* at) -> double { return bits_of<signed char>(at); }, true};
}
inline ElementType element_type(U8) {
    return {1, [](const void* at) -> double { return bits_of<u8>(at); }, true};
}

struct Product {
    void* accumulator[128];
    std::vector<double> before[128];
    u64 a = 0, b = 0;
    bool add = false, transpose_a = false, transpose_b = false, chained = false;
    ElementType type;
    int halves = 1;  // of rows, whose registers alternate by 32
    int place(int i) const { return i / 32 * 32 * halves + i % 32; }
    double sum(int t, int i) const {
        return type.integer ? static_cast<double>(static_cast<int*>(accumulator[t])[place(i)])
                            : static_cast<float*>(accumulator[t])[place(i)];
    }
    void set(int t, int i, double value) const {
        i = place(i);
        if (type.integer) {
            static_cast<int*>(accumulator[t])[i] =
                value != value ? 0x55555555 : static_cast<int>(static_cast<long>(value));
        } else {
            static_cast<float*>(accumulator[t])[i] = static_cast<float>(value);
        }
    }
    int n = 0;
    std::vector<int> a_steps, b_steps;
    const u32* words[128] = {};    // of a in registers
    std::vector<u32> issued[128];  // their values at issue
};
struct Warpgroup {
    int arrived = 0;
    unsigned generation = 0;
    Product next;
    std::vector<Product> open;
    std::vector<std::vector<Product>> flying;
};
inline Warpgroup warpgroups[8 * kMostBlocks];

/// The threads of the warpgroup meet; the last one to arrive runs `last`.
template <class Last>
inline void meet_group(Last&& last) {
    Warpgroup& group = warpgroups[emulator::current / 128];
    const unsigned mine = group.generation;
    if (++group.arrived == 128) {
        group.arrived = 0;
        last(group);
        ++group.generation;
        return;
    }
    emulator::wait_until([&] { return group.generation != mine; });
}

/// Element (row, k) of an operand given by its descriptor (PTX ISA, matrix descriptors).
inline double operand_element(const Product& product, u64 descriptor, bool mn_major, int row, int k,
                              int step) {
    const auto field = [&](int bit) { return static_cast<u32>(descriptor >> bit & 0x3fff) * 16; };
    const u32 start = field(0) + static_cast<u32>(step) * 16, leading = field(16),
              stride = field(32);
    if (descriptor >> 62 != 1) emulator::fail("a descriptor without the swizzle of 128 bytes");
    const int bytes = product.type.bytes;
    if (mn_major && bytes != 2) emulator::fail("an operand that cannot be transposed");
    u32 at = mn_major ? start + row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2
                      : start + row / 8 * stride + row % 8 * 128 + k * bytes;
    at ^= (at >> 7 & 7) << 4;
    at += emulator::rank() * kSharedBytes;
    if (!emulator::unfenced.empty() && emulator::unfenced.count(at / 128) != 0) {
        emulator::fail("a product reads what was written without a fence");
    }
    return product.type.value(memory + at);
}

/// Element (row, k) of a step of an operand in registers (PTX ISA, wgmma, fragments of a).
inline double register_element(const Product& product, int row, int k, int step) {
    if (product.type.bytes == 4) {
        const int owner = row / 16 * 32 + row % 8 * 4 + k % 4;
        return product.type.value(&product.words[owner][4 * step + row / 8 % 2 + k / 4 * 2]);
    }
    const int thread = row / 16 * 32 + row % 8 * 4 + k % 8 / 2;
    const u32 word = product.words[thread][4 * step + row / 8 % 2 + k / 8 * 2];
    const u16 bits = static_cast<u16>(k % 2 ? word >> 16 : word);
    return product.type.value(&bits);
}

inline void run(Product& product) {
    const int n = product.n;
    for (int t = 0; t < 128 && product.words[0] != nullptr; ++t) {
        const std::vector<u32>& issued = product.issued[t];
        if (!std::equal(issued.begin(), issued.end(), product.words[t])) {
            emulator::fail("an operand in registers changes while a product reads it");
        }
    }
    std::vector<double> sums(64u * n, 0.0), a(64), b(n);
    for (std::size_t step = 0; step < product.a_steps.size(); ++step) {
        for (int k = 0; k < 32 / product.type.bytes; ++k) {
            for (int row = 0; row < 64; ++row) {
                a[row] = product.words[0] != nullptr
                             ? register_element(product, row, k, static_cast<int>(step))
                             : operand_element(product, product.a, product.transpose_a, row, k,
                                               product.a_steps[step]);
            }
            for (int column = 0; column < n; ++column) {
                b[column] = operand_element(product, product.b, product.transpose_b, column, k,
                                            product.b_steps[step]);
            }
            for (int row = 0; row < 64; ++row) {
                for (int column = 0; column < n; ++column) {
                    sums[row * n + column] += a[row] * b[column];
                }
            }
        }
    }
    for (int t = 0; t < 128; ++t) {
        for (int i = 0; i < n / 2; ++i) {
            const int row = t / 32 * 16 + t % 32 / 4 + (i & 2 ? 8 : 0);
            const int column = i / 4 * 8 + t % 4 * 2 + (i & 1);
            const double before = product.chained ? product.sum(t, i) : product.before[t][i];
            product.set(t, i, (product.add ? before : 0.0) + sums[row * n + column]);
        }
    }
}

inline void wgmma_fence() {}
inline void wgmma_commit() {
    meet_group([](Warpgroup& group) {
        group.flying.push_back(std::move(group.open));
        group.open.clear();
    });
}
template <int kPending>
inline void wgmma_wait() {
    meet_group([](Warpgroup& group) {
        while (group.flying.size() > kPending) {
            for (Product& product : group.flying.front()) run(product);
            group.flying.erase(group.flying.begin());
        }
        // Products still in flight accumulate on the results of those that are done.
        for (auto& products : group.flying) {
            for (Product& product : products) {
                if (!product.chained) continue;
                product.chained = false;
                for (int t = 0; t < 128; ++t) {
                    product.before[t].clear();
                    for (int i = 0; i < product.n / 2; ++i) {
                        product.before[t].push_back(product.sum(t, i));
                        product.set(t, i, NAN);
                    }
                }
            }
        }
    });
}
template <int kCount>
inline void wgmma_tie(float (&)[kCount]) {}
template <int kCount>
inline void wgmma_tie(u32 (&)[kCount]) {}
template <int kCount>
inline void wgmma_tie(int (&)[kCount]) {}

inline u64 wgmma_descriptor_swizzle128(u32 address, u32 leading, u32 stride) {
    return static_cast<u64>((address & 0x3ffff) >> 4) | static_cast<u64>(leading >> 4) << 16 |
           static_cast<u64>(stride >> 4) << 32 | 1ull << 62;
}
template <int>
struct Steps {};
template <int kStepBytes, int kFourBytes = 4 * kStepBytes>
struct Stride {
    static constexpr int at(int step) {
        return (step / 4 * kFourBytes + step % 4 * kStepBytes) >> 4;
    }
};
template <int kPanelBytes>
using AlongRows = Stride<32, kPanelBytes>;
using AlongColumns = Stride<16 * 128>;

inline void poison(float& sum) {
    sum = NAN;
}
inline void poison(int& sum) {
    sum = 0x55555555;
}

/// The thread's part of a product, which the last thread of its warpgroup starts.
template <class StrideB, class Element, int kSteps, class Sum, int kCount>
inline void issue(Element element, Steps<kSteps>, Sum (&all)[kCount], u64 b, u32 add,
                  int transpose_b, int halves = 1, int half = 0) {
    Warpgroup& group = warpgroups[emulator::current / 128];
    const int t = emulator::current % 128;
    Product& next = group.next;
    Sum* const d = all + 32 * half;
    next.accumulator[t] = d;
    next.halves = halves;
    next.before[t].clear();
    for (int i = 0; i < kCount / halves; ++i) next.before[t].push_back(d[next.place(i)]);
    next.type = element_type(element);
    next.add = add != 0;
    next.transpose_b = transpose_b != 0;
    next.n = 2 * kCount / halves;
    if (t == 0) next.b = b;
    next.b_steps.clear();
    for (int step = 0; step < kSteps; ++step) next.b_steps.push_back(StrideB::at(step));
    meet_group([](Warpgroup& own) {
        own.next.chained = false;
        const auto follows = [&](const Product& other) {
            own.next.chained |= other.accumulator[0] == own.next.accumulator[0];
        };
        for (const auto& products : own.flying) {
            for (const Product& other : products) follows(other);
        }
        for (const Product& other : own.open) follows(other);
        own.open.push_back(own.next);
    });
    Product one;
    one.halves = halves;
    for (int i = 0; i < kCount / halves; ++i) poison(d[one.place(i)]);
}

/// A product of 64 rows: all of the accumulator's, or one of two halves.
template <int kTransposeB, int kTransposeA, class StrideA, class StrideB, class Element, int kSteps,
          class Sum, int kCount>
inline void multiply(Element element, Steps<kSteps> steps, Sum (&d)[kCount], u64 a, u64 b, u32 add,
                     int halves, int half) {
    Product& next = warpgroups[emulator::current / 128].next;
    const int t = emulator::current % 128;
    if (t == 0) next.a = a;
    next.words[t] = nullptr;
    next.transpose_a = kTransposeA != 0;
    next.a_steps.clear();
    for (int step = 0; step < kSteps; ++step) next.a_steps.push_back(StrideA::at(step));
    issue<StrideB>(element, steps, d, b, add, kTransposeB, halves, half);
}

template <int kTransposeB, int kTransposeA, class StrideA, class StrideB, class Element, int kSteps,
          class Sum, int kCount>
inline void wgmma(Element element, Steps<kSteps> steps, Sum (&d)[kCount], u64 a, u64 b, u32 add) {
    multiply<kTransposeB, kTransposeA, StrideA, StrideB>(element, steps, d, a, b, add, 1, 0);
}

/// The same for 128 rows.
template <int kTransposeB, int kTransposeA, class StrideA, class StrideB, class Element, int kSteps,
          class Sum, int kCount>
inline void wgmma(Element element, Steps<kSteps> steps, Sum (&d)[kCount], u64 a, u64 lower, u64 b,
                  u32 add) {
    multiply<kTransposeB, kTransposeA, StrideA, StrideB>(element, steps, d, a, b, add, 2, 0);
    multiply<kTransposeB, kTransposeA, StrideA, StrideB>(element, steps, d, lower, b, add, 2, 1);
}

template <int kTransposeB, class StrideB, class Element, int kSteps, int kCount>
inline void wgmma(Element element, Steps<kSteps> steps, float (&d)[kCount],
                  const u32 (&a)[4 * kSteps], u64 b, u32 add) {
    Product& next = warpgroups[emulator::current / 128].next;
    const int t = emulator::current % 128;
    next.words[t] = a;
    next.issued[t].assign(a, a + 4 * kSteps);
    next.a_steps.assign(kSteps, 0);
    issue<StrideB>(element, steps, d, b, add, kTransposeB);
}

}  // namespace twd::ptx
