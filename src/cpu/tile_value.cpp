// Tiles of the reference machine: storage, element conversions, text.
#include "cpu/tile_value.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "ir/evaluate.h"

namespace tilewright::cpu {
namespace {

std::string element_text(DType dtype, std::uint64_t bits) {
    const std::uint64_t constant = to_constant(dtype, bits);
    if (dtype == DType::boolean) return constant != 0 ? "true" : "false";
    if (dtype == DType::f64) return fmt::format("{}", std::bit_cast<double>(constant));
    // Every narrower float is exact in f32, whose shortest text is the readable one.
    if (is_float(dtype))
        return fmt::format("{}", static_cast<float>(std::bit_cast<double>(constant)));
    if (is_signed(dtype)) return fmt::format("{}", static_cast<std::int64_t>(constant));
    return fmt::format("{}", constant);
}

void append_text(const TileValue& tile, int axis, std::size_t& next, std::string& text) {
    if (axis == tile.type.shape.rank()) {
        text += element_text(tile.type.dtype, tile.bits[next++]);
        return;
    }
    text += "[";
    for (std::int64_t i = 0; i < tile.type.shape[axis]; ++i) {
        if (i > 0) text += ", ";
        append_text(tile, axis + 1, next, text);
    }
    text += "]";
}

}  // namespace

void TileValue::reset(const ir::Type& new_type) {
    type = new_type;
    bits.assign(type.shape.size(), 0);
    poison.clear();
}

void TileValue::set_poison(std::size_t i, Poison value) {
    if (poison.empty()) {
        if (value == 0) return;
        poison.assign(bits.size(), 0);
    }
    poison[i] = value;
}

std::uint64_t read_bits(const std::byte* address, DType dtype) {
    if (!is_float(dtype)) return ir::read_element(dtype, address);
    std::uint64_t bits = 0;
    std::memcpy(&bits, address, size_of(dtype));
    return bits;
}

void write_bits(std::byte* address, DType dtype, std::uint64_t bits) {
    // Little endian: the low bytes of the 64-bit pattern are the element.
    static_assert(std::endian::native == std::endian::little);
    std::memcpy(address, &bits, size_of(dtype));
}

std::uint64_t to_constant(DType dtype, std::uint64_t bits) {
    return is_float(dtype) ? ir::read_element(dtype, &bits) : bits;
}

std::uint64_t from_constant(DType dtype, std::uint64_t constant) {
    if (!is_float(dtype)) return constant;
    std::uint64_t bits = 0;
    ir::write_element(dtype, &bits, constant);
    return bits;
}

std::string to_string(const TileValue& tile) {
    std::string text;
    std::size_t next = 0;
    append_text(tile, 0, next, text);
    return text;
}

}  // namespace tilewright::cpu
