// What scalars and picked elements do, as steps of straight-line code.
#include <algorithm>
#include <limits>

#include "cpu/simd/x86_opcodes.h"
#include "cpu/small_pick.h"
#include "cpu/small_tile_code.h"
#include "cpu/vector_code.h"

namespace tilewright::cpu {
namespace {

using namespace x86;  // opcodes and registers
using ir::Op;

constexpr std::int64_t kWord = 4;

std::int32_t slot_offset(std::uint32_t index) {
    return 8 * static_cast<std::int32_t>(index);
}

/// Elements between neighbours along an axis; nullopt if they are in several panels.
std::optional<std::int64_t> stride_of(const Tile& tile, int axis) {
    if (axis != tile.lane_axis) return tile.stride[static_cast<std::size_t>(axis)];
    return tile.shape[axis] <= tile.width ? std::optional<std::int64_t>(1) : std::nullopt;
}

/// rax = the index times the step, or 0 if it is outside, where rcx is 0 and not -1; r8 = that far
/// into the arena.
VectorCode::Setup index_setup(const Pick& pick, const SmallPick& place) {
    Encoder encoder(true);
    const std::int32_t slot = slot_offset(pick.at);
    pick.dtype == DType::i32 ? encoder.load_signed_32(rax, rsi, slot)
                             : encoder.load(rax, rsi, slot);
    encoder.fixed({0x48, 0x3D});  // cmp rax, extent: as unsigned numbers
    encoder.word(static_cast<std::int32_t>(place.extent));
    encoder.fixed({0x48, 0x19, 0xC9, 0x48, 0x21, 0xC8});  // sbb rcx, rcx; and rax, rcx
    if (place.step != 1) {
        encoder.fixed({0x48, 0x69, 0xC0});  // imul rax, rax, step
        encoder.word(static_cast<std::int32_t>(place.step));
    }
    if (place.stride != 1) encoder.fixed({0x4C, 0x8D, 0x04, 0x87});  // lea r8, [rdi + 4 * rax]
    const std::int64_t read =
        (place.extent - 1) * place.step + (place.count - 1) * place.stride + 1;
    return {encoder.code(),
            {{{rsi, slot}, 8}, {{rdi, static_cast<std::int32_t>(place.from)}, kWord * read}}};
}

/// The same for an index that is known and inside.
VectorCode::Setup known_setup(const SmallPick& place, std::int64_t from) {
    const std::int64_t read = (place.count - 1) * place.stride + 1;
    // mov rcx, -1; mov r8, rdi
    return {{0x48, 0xC7, 0xC1, 0xFF, 0xFF, 0xFF, 0xFF, 0x49, 0x89, 0xF8},
            {{{rdi, static_cast<std::int32_t>(from)}, kWord * read}}};
}

VectorCode::Words places_of(std::int64_t stride, int lanes) {
    VectorCode::Words places{};
    for (int l = 0; l < lanes; ++l)
        places[static_cast<std::size_t>(l)] = static_cast<std::int32_t>(l * stride);
    return places;
}

}  // namespace

bool SmallPick::is_near(std::int64_t offset) {
    return 0 <= offset && offset <= std::numeric_limits<std::int32_t>::max();
}

std::optional<SmallPick> small_pick(const Program& program, const Pick& pick) {
    const ir::Shape& shape = pick.out.shape;
    const int picked = shape.rank();
    int kept = -1;
    for (int axis = 0; axis < shape.rank(); ++axis) {
        if (shape[axis] == 1) continue;
        if (kept >= 0) return {};
        kept = axis;
    }
    SmallPick result;
    const auto step = stride_of(pick.in, picked);
    const auto stride = kept < 0 ? std::optional<std::int64_t>(1) : stride_of(pick.in, kept);
    const auto out_stride = kept < 0 ? std::optional<std::int64_t>(1) : stride_of(pick.out, kept);
    const bool words = pick.in.dtype == DType::f32 || pick.in.dtype == DType::i32;
    if (!words || !step || !stride || out_stride != 1 || pick.in.home != Home::buffer) return {};
    result.count = kept < 0 ? 1 : shape[kept];
    result.stride = *stride;
    result.extent = pick.in.shape[picked];
    result.step = *step;
    result.from = program.buffers[pick.in.index].offset + pick.in.offset * kWord;
    result.to_slot = pick.out.home == Home::slot && result.count == 1;
    if (!result.to_slot && pick.out.home != Home::buffer) return {};
    if (!result.to_slot)
        result.to = program.buffers[pick.out.index].offset + pick.out.offset * kWord;
    const std::int64_t last = result.extent * result.step + result.count * result.stride;
    if (result.count < 1 || result.count > kMostSmallElements || result.stride < 0 ||
        !SmallPick::is_near(result.step) || !SmallPick::is_near(result.extent) ||
        !SmallPick::is_near(result.stride * ConstantPool::kLanes) ||
        !SmallPick::is_near(result.from + last * kWord) ||
        !SmallPick::is_near(result.to + result.count * kWord))
        return {};
    return result;
}

std::optional<std::int64_t> known_index(const Pick& pick, const KnownSlots& known) {
    const auto slot = known.find(pick.at);
    if (slot == known.end()) return {};
    return pick.dtype == DType::i32 ? static_cast<std::int32_t>(slot->second)
                                    : static_cast<std::int64_t>(slot->second);
}

bool add_pick(VectorCode& code, const Program& program, const Pick& pick, const KnownSlots& known) {
    const auto found = small_pick(program, pick);
    if (!found) return false;
    const SmallPick& place = *found;
    const auto index = known_index(pick, known);
    const bool outside = index && (*index < 0 || *index >= place.extent);
    const auto place_of = [&](std::int64_t first) {
        const std::int64_t start = index && !outside ? *index * place.step : 0;
        return VectorCode::Address{
            rdi, static_cast<std::int32_t>(place.from + (start + first * place.stride) * kWord)};
    };
    const auto value_at = [&](std::int64_t first, int lanes) {
        const VectorCode::Address from = place_of(first);
        if (outside) return code.splat(0);
        if (place.count == 1)
            return index ? code.broadcast(from)
                         : code.indexed_load(index_setup(pick, place), from, true);
        if (place.stride == 1)
            return index ? code.load(from, lanes)
                         : code.indexed_load(index_setup(pick, place), from, false);
        if (index) {
            if (const auto known_words = code.gathered(from, place.stride, lanes))
                return *known_words;
        }
        return code.indexed_gather(
            index ? known_setup(place, place_of(0).offset) : index_setup(pick, place), from,
            places_of(place.stride, lanes), lanes);
    };
    for (std::int64_t first = 0; first < place.count; first += code.lanes()) {
        const int lanes =
            static_cast<int>(std::min<std::int64_t>(code.lanes(), place.count - first));
        VectorCode::Value value = value_at(first, lanes);
        // Zeros become positive.
        if (pick.in.dtype == DType::f32) value = code.add_zero(value);
        const VectorCode::Address to{rdi, static_cast<std::int32_t>(place.to + first * kWord)};
        if (place.to_slot)
            code.store_slot(slot_offset(pick.out.index), value);
        else if (place.count == 1)
            code.store_element(to, value);
        else
            code.store(to, value, lanes);
    }
    return true;
}

std::optional<std::uint64_t> known_result(const ScalarOp& op, const KnownSlots& known) {
    if (op.dtype != DType::i64 || op.num_inputs > 2) return {};
    std::array<std::uint64_t, 2> in{};
    for (std::size_t i = 0; i < static_cast<std::size_t>(op.num_inputs); ++i) {
        const auto slot = known.find(op.in[i]);
        if (slot == known.end()) return {};
        in[i] = slot->second;
    }
    switch (op.op) {
        case Op::cast:
            if (op.function != kernels().elementwise(Op::cast, DType::i64, DType::i32, false))
                return {};
            return in[0] & 0xFFFFFFFF;
        case Op::add:
            return in[0] + in[1];
        case Op::sub:
            return in[0] - in[1];
        case Op::mul:
            return in[0] * in[1];
        default:
            return {};
    }
}

bool add_scalar(VectorCode& code, const ScalarOp& op) {
    const auto slot = [](std::uint32_t index) {
        return VectorCode::Address{rsi, slot_offset(index)};
    };
    const bool cast = op.op == Op::cast && op.dtype == DType::i64 &&
                      op.function == kernels().elementwise(Op::cast, DType::i64, DType::i32, false);
    const bool sum = op.op == Op::add && op.dtype == DType::i64;
    if (cast || sum) {
        Encoder encoder(true);
        VectorCode::Setup setup;
        setup.reads.push_back({slot(op.in[0]), 8});
        encoder.load(rax, rsi, slot_offset(op.in[0]));
        if (cast) {
            encoder.fixed({0x89, 0xC0});  // mov eax, eax
        } else {
            setup.reads.push_back({slot(op.in[1]), 8});
            encoder.add(rax, rsi, slot_offset(op.in[1]));
        }
        encoder.store(rsi, slot_offset(op.out), rax);
        setup.code = encoder.code();
        code.general(std::move(setup), slot(op.out));
        return true;
    }
    // Minima and maxima take care of NaN, which these instructions do not.
    if (op.op == Op::min || op.op == Op::max) return false;
    const auto opcode =
        op.op == Op::sqrt ? std::optional(kSqrt) : arithmetic_opcode(op.op, op.dtype);
    if (!opcode || op.dtype != DType::f32) return false;
    const VectorCode::Value a = code.broadcast(slot(op.in[0]));
    code.store_slot(slot_offset(op.out),
                    op.num_inputs > 1 ? code.binary(*opcode, a, code.broadcast(slot(op.in[1])))
                                      : code.unary(*opcode, a));
    return true;
}

bool add_move(VectorCode& code, const ScalarMove& move) {
    Encoder encoder(true);
    encoder.load(rax, rsi, slot_offset(move.from));
    encoder.store(rsi, slot_offset(move.to), rax);
    code.general({encoder.code(), {{{rsi, slot_offset(move.from)}, 8}}},
                 {rsi, slot_offset(move.to)});
    return true;
}

}  // namespace tilewright::cpu
