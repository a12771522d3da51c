// Scalar semantics: element representation and reductions; evaluate_op.cpp has the ops.
#include "ir/evaluate.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "ir/bits.h"
#include "ir/function_values.h"
#include "support/check.h"
#include "support/small_float.h"

namespace tilewright::ir {

std::uint64_t wrap_to(DType dtype, std::uint64_t bits) {
    if (dtype == DType::boolean) return bits != 0;
    const int unused = 64 - width(dtype);
    if (is_signed(dtype)) {
        return static_cast<std::uint64_t>(static_cast<std::int64_t>(bits << unused) >> unused);
    }
    return bits << unused >> unused;
}

double round_to(DType dtype, double value) {
    switch (dtype) {
        case DType::f16:
            return f16_to_f32(f64_to_f16(value));
        case DType::bf16:
            return bf16_to_f32(f64_to_bf16(value));
        case DType::f8e4m3:
            return f8e4m3_to_f32(f64_to_f8e4m3(value));
        case DType::f8e5m2:
            return f8e5m2_to_f32(f64_to_f8e5m2(value));
        case DType::f32:
            return static_cast<float>(value);
        default:
            return value;
    }
}

std::uint64_t encode(DType dtype, double value) {
    if (is_float(dtype)) return from_double(round_to(dtype, value));
    if (dtype == DType::boolean) return value != 0;
    const bool fits = value == std::trunc(value) && value >= -0x1p63 && value < 0x1p64;
    const std::uint64_t bits = !fits ? 0
                               : value < 0x1p63
                                   ? static_cast<std::uint64_t>(static_cast<std::int64_t>(value))
                                   : static_cast<std::uint64_t>(value);
    if (!fits || decode(dtype, wrap_to(dtype, bits)) != value) {
        user_error("constant", "expected a value of {} but got {}", name(dtype), value);
    }
    return bits;
}

std::uint64_t encode_int(DType dtype, std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    if (is_float(dtype)) return evaluate(Op::cast, DType::i64, dtype, &bits);
    if (wrap_to(dtype, bits) != bits) {
        user_error("constant", "expected a value of {} but got {}", name(dtype), value);
    }
    return bits;
}

double decode(DType dtype, std::uint64_t bits) {
    if (is_float(dtype)) return to_double(bits);
    if (is_signed(dtype)) return static_cast<double>(static_cast<std::int64_t>(bits));
    return static_cast<double>(bits);
}

std::uint64_t read_element(DType dtype, const void* memory) {
    std::uint64_t raw = 0;
    static_assert(std::endian::native == std::endian::little);
    std::memcpy(&raw, memory, size_of(dtype));
    switch (dtype) {
        case DType::f16:
            return from_double(f16_to_f32(static_cast<std::uint16_t>(raw)));
        case DType::bf16:
            return from_double(bf16_to_f32(static_cast<std::uint16_t>(raw)));
        case DType::f8e4m3:
            return from_double(f8e4m3_to_f32(static_cast<std::uint8_t>(raw)));
        case DType::f8e5m2:
            return from_double(f8e5m2_to_f32(static_cast<std::uint8_t>(raw)));
        case DType::f32:
            return from_double(std::bit_cast<float>(static_cast<std::uint32_t>(raw)));
        case DType::f64:
            return raw;
        default:
            return wrap_to(dtype, raw);
    }
}

double next_after(DType dtype, double x, double y) {
    if (dtype == DType::f64) return std::nextafter(x, y);
    if (std::isnan(x) || std::isnan(y) || x == y) return std::isnan(x) ? x : y;
    // In sign and magnitude the bits of neighbours differ by 1, and both zeros have the same ones.
    std::uint32_t bits = 0;
    const std::uint32_t sign = std::uint32_t{1} << (width(dtype) - 1);
    write_element(dtype, &bits, from_double(x));
    if ((bits & ~sign) == 0)
        bits = (y < 0 ? sign : 0) | 1;
    else
        bits += (x < y) == (x > 0) ? 1 : -1U;
    return to_double(read_element(dtype, &bits));
}

void write_element(DType dtype, void* memory, std::uint64_t bits) {
    std::uint64_t raw = bits;
    switch (dtype) {
        case DType::f16:
            raw = f64_to_f16(to_double(bits));
            break;
        case DType::bf16:
            raw = f64_to_bf16(to_double(bits));
            break;
        case DType::f8e4m3:
            raw = f64_to_f8e4m3(to_double(bits));
            break;
        case DType::f8e5m2:
            raw = f64_to_f8e5m2(to_double(bits));
            break;
        case DType::f32:
            raw = std::bit_cast<std::uint32_t>(static_cast<float>(to_double(bits)));
            break;
        default:
            break;
    }
    std::memcpy(memory, &raw, size_of(dtype));
}

DType accumulator(Reduction kind, DType dtype) {
    const bool adds =
        kind == Reduction::sum || kind == Reduction::prod || kind == Reduction::logsumexp;
    return adds && is_float(dtype) && size_of(dtype) < 4 ? DType::f32 : dtype;
}

std::uint64_t combine(Reduction kind, DType dtype, std::uint64_t a, std::uint64_t b) {
    const std::uint64_t operands[] = {a, b};
    switch (kind) {
        case Reduction::sum:
            return evaluate(Op::add, dtype, dtype, operands);
        case Reduction::prod:
            return evaluate(Op::mul, dtype, dtype, operands);
        case Reduction::max:
            return evaluate(Op::max, dtype, dtype, operands);
        case Reduction::min:
            return evaluate(Op::min, dtype, dtype, operands);
        case Reduction::any:
            return a | b;
        case Reduction::all:
            return a & b;
        case Reduction::logsumexp:
            return from_double(round_to(dtype, log_add_exp(to_double(a), to_double(b))));
        default:
            TW_ASSERT(false, "{} has no combining step", name(kind));
    }
}

std::uint64_t identity(Reduction kind, DType dtype) {
    const double infinity = std::numeric_limits<double>::infinity();
    switch (kind) {
        case Reduction::sum:
        case Reduction::any:
            return encode(dtype, 0);
        case Reduction::prod:
        case Reduction::all:
            return encode(dtype, 1);
        case Reduction::max:
        case Reduction::min:
        case Reduction::logsumexp: {
            const bool highest = kind == Reduction::min;
            if (dtype == DType::boolean) return highest;
            if (dtype == DType::f8e4m3) return encode(dtype, highest ? 448 : -448);
            if (is_float(dtype)) return from_double(highest ? infinity : -infinity);
            if (!is_signed(dtype)) return highest ? wrap_to(dtype, ~std::uint64_t{0}) : 0;
            const std::uint64_t top = std::uint64_t{1} << (width(dtype) - 1);
            return highest ? top - 1 : wrap_to(dtype, top);
        }
        default:
            TW_ASSERT(false, "{} has no identity", name(kind));
    }
}

bool replaces_extreme(Reduction kind, DType dtype, std::uint64_t a, std::uint64_t b) {
    if (is_float(dtype) && std::isnan(to_double(a))) return false;
    if (is_float(dtype) && std::isnan(to_double(b))) return true;
    const std::uint64_t operands[] = {b, a};
    return evaluate(kind == Reduction::argmax ? Op::gt : Op::lt, dtype, DType::boolean, operands);
}

bool comes_before(DType dtype, std::uint64_t a, std::uint64_t b) {
    if (is_float(dtype) && std::isnan(to_double(b))) return !std::isnan(to_double(a));
    const std::uint64_t operands[] = {a, b};
    return evaluate(Op::lt, dtype, DType::boolean, operands);
}

std::uint32_t philox(std::uint64_t key, std::uint64_t counter) {
    std::uint32_t words[4] = {static_cast<std::uint32_t>(counter),
                              static_cast<std::uint32_t>(counter >> 32), 0, 0};
    auto key_low = static_cast<std::uint32_t>(key);
    auto key_high = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t product_0 = std::uint64_t{0xD2511F53u} * words[0];
        const std::uint64_t product_1 = std::uint64_t{0xCD9E8D57u} * words[2];
        const std::uint32_t next[4] = {
            static_cast<std::uint32_t>(product_1 >> 32) ^ words[1] ^ key_low,
            static_cast<std::uint32_t>(product_1),
            static_cast<std::uint32_t>(product_0 >> 32) ^ words[3] ^ key_high,
            static_cast<std::uint32_t>(product_0)};
        std::memcpy(words, next, sizeof(words));
        key_low += 0x9E3779B9u;
        key_high += 0xBB67AE85u;
    }
    return words[0];
}

}  // namespace tilewright::ir
