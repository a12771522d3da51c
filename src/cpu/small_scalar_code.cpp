// Writes the machine code of scalars, and of picked elements.
#include <algorithm>
#include <limits>

#include "cpu/simd/x86_opcodes.h"
#include "cpu/small_tile_code.h"

namespace tilewright::cpu {
namespace {

using namespace x86;  // opcodes and registers
using ir::Op;

constexpr Opcode kGather{2, 1, 0x92}, kAnd{1, 1, 0xDB}, kMaskedStore{2, 1, 0x2E};
// Masks, which are vectors on AVX2: of the lanes of a vector, of an index inside the tile, and what
// a gather reads.
constexpr int kLanes = 3, kInside = 4, kGathered = 5;

std::int32_t slot_offset(std::uint32_t index) {
    return 8 * static_cast<std::int32_t>(index);
}

/// Elements between neighbours along an axis; nullopt if they are in several panels.
std::optional<std::int64_t> stride_of(const Tile& tile, int axis) {
    if (axis != tile.lane_axis) return tile.stride[static_cast<std::size_t>(axis)];
    return tile.shape[axis] <= tile.width ? std::optional<std::int64_t>(1) : std::nullopt;
}

/// Writes the code of one Pick.
class PickCompiler {
  public:
    PickCompiler(const Program& program, const Pick& pick, ConstantPool& pool, bool wide)
        : program_(program),
          pick_(pick),
          pool_(pool),
          wide_(wide),
          vector_lanes_(wide ? 16 : 8),
          encoder_(wide) {}

    std::optional<std::vector<std::uint8_t>> compile() {
        const ir::Shape& shape = pick_.out.shape;
        const int picked = shape.rank();
        int kept = -1;
        for (int axis = 0; axis < shape.rank(); ++axis) {
            if (shape[axis] == 1) continue;
            if (kept >= 0) return std::nullopt;
            kept = axis;
        }
        count_ = kept < 0 ? 1 : shape[kept];
        const std::int64_t extent = pick_.in.shape[picked];
        const auto step = stride_of(pick_.in, picked);
        const auto stride = kept < 0 ? std::optional<std::int64_t>(1) : stride_of(pick_.in, kept);
        const auto out_stride =
            kept < 0 ? std::optional<std::int64_t>(1) : stride_of(pick_.out, kept);
        const bool words = pick_.in.dtype == DType::f32 || pick_.in.dtype == DType::i32;
        if (!words || !step || !stride || out_stride != 1 || *stride < 0 || count_ < 1 ||
            count_ > kMostSmallElements || pick_.in.home != Home::buffer ||
            extent > std::numeric_limits<std::int32_t>::max() || !is_near(*step) ||
            !is_near(*stride * vector_lanes_))
            return std::nullopt;
        from_ = program_.buffers[pick_.in.index].offset + pick_.in.offset * kWord;
        if (!is_near(from_ + count_ * *stride * kWord)) return std::nullopt;
        find_index(extent, *step);
        encoder_.vector(kZero, kZeroRegister, kZeroRegister, kZeroRegister);
        if (count_ == 1) {
            load(kLoadScalar, 0);
            add_zero();
            if (!store_element()) return std::nullopt;
            return encoder_.code();
        }
        const std::int64_t to = program_.buffers[pick_.out.index].offset + pick_.out.offset * kWord;
        if (pick_.out.home != Home::buffer || !is_near(to + count_ * kWord)) return std::nullopt;
        if (*stride != 1) encoder_.fixed({0x4C, 0x8D, 0x04, 0x87});  // lea r8, [rdi + 4 * rax]
        for (std::int64_t first = 0; first < count_; first += vector_lanes_) {
            const std::int64_t lanes = std::min(vector_lanes_, count_ - first);
            *stride == 1 ? load(kLoad, first) : gather(first, lanes, *stride);
            add_zero();
            store(static_cast<std::int32_t>(to + first * kWord), lanes);
        }
        return encoder_.code();
    }

  private:
    static constexpr std::int64_t kWord = 4;
    static constexpr int kValue = 0, kZeroRegister = 1, kPlaces = 2;

    static bool is_near(std::int64_t offset) {
        return 0 <= offset && offset <= std::numeric_limits<std::int32_t>::max();
    }

    /// rax = the index times its stride, or 0 if it is outside; kInside tells which.
    void find_index(std::int64_t extent, std::int64_t step) {
        const std::int32_t slot = slot_offset(pick_.at);
        pick_.dtype == DType::i32 ? encoder_.load_signed_32(rax, rsi, slot)
                                  : encoder_.load(rax, rsi, slot);
        encoder_.fixed({0x48, 0x3D});  // cmp rax, extent: as unsigned numbers
        encoder_.word(static_cast<std::int32_t>(extent));
        encoder_.fixed({0x48, 0x19, 0xC9});  // sbb rcx, rcx
        encoder_.fixed({0x48, 0x21, 0xC8});  // and rax, rcx
        if (step != 1) {
            encoder_.fixed({0x48, 0x69, 0xC0});  // imul rax, rax, step
            encoder_.word(static_cast<std::int32_t>(step));
        }
        if (wide_) return encoder_.fixed({0xC5, 0xF8, 0x92, 0xC1 | kInside << 3});  // kmovw
        encoder_.move_word(kInside, rcx);
        encoder_.vector(kBroadcastLane, kInside, 0, kInside);
    }
    void set_mask(int mask, std::int64_t lanes) {
        if (!wide_) {
            std::array<std::int32_t, ConstantPool::kLanes> words{};
            std::fill_n(words.begin(), lanes, -1);
            encoder_.vector_memory(kLoad, mask, 0, rdx, pool_.at(words));
            return;
        }
        encoder_.fixed({0xB9});  // mov ecx, lanes
        encoder_.word((1 << lanes) - 1);
        encoder_.fixed({0xC5, 0xF8, 0x92, 0xC1 | mask << 3});  // kmovw
    }
    /// An index outside reads element 0, which becomes zero.
    void load(Opcode op, std::int64_t first) {
        encoder_.vector_lanes(op, kValue, 0, rdi, static_cast<std::int32_t>(from_ + first * kWord),
                              wide_ ? kInside | kZeros : 0);
        if (!wide_) encoder_.vector(kAnd, kValue, kValue, kInside);
    }
    void store(std::int32_t to, std::int64_t lanes) {
        const bool whole = lanes == vector_lanes_;
        if (!whole) set_mask(kLanes, lanes);
        if (wide_ || whole)
            encoder_.vector_memory(kStore, kValue, 0, rdi, to, whole ? 0 : kLanes);
        else
            encoder_.vector_memory(kMaskedStore, kValue, kLanes, rdi, to);
    }
    void gather(std::int64_t first, std::int64_t lanes, std::int64_t stride) {
        std::array<std::int32_t, ConstantPool::kLanes> places{};
        for (std::int64_t l = 0; l < lanes; ++l)
            places[static_cast<std::size_t>(l)] = static_cast<std::int32_t>(l * stride);
        set_mask(kLanes, lanes);
        // A gather clears its mask.
        if (wide_)  // kandw
            encoder_.fixed(
                {0xC5, 0x84 | (~kLanes & 15) << 3, 0x41, 0xC0 | kGathered << 3 | kInside});
        else
            encoder_.vector(kAnd, kGathered, kLanes, kInside);
        encoder_.vector(kZero, kValue, kValue, kValue);
        encoder_.vector_memory(kLoad, kPlaces, 0, rdx, pool_.at(places));
        encoder_.vector_gather(kGather, kValue, kPlaces, r8,
                               static_cast<std::int32_t>(from_ + first * stride * kWord),
                               kGathered);
    }
    /// Zeros become positive.
    void add_zero() {
        if (pick_.in.dtype == DType::f32) encoder_.vector(kAdd, kValue, kValue, kZeroRegister);
    }
    bool store_element() {
        if (pick_.out.home == Home::slot) {
            encoder_.fixed({0xC5, 0xF9, 0x7E, 0xC0});  // vmovd eax, xmm0
            encoder_.store(rsi, slot_offset(pick_.out.index), rax);
            return true;
        }
        const std::int64_t to = program_.buffers[pick_.out.index].offset + pick_.out.offset * kWord;
        if (pick_.out.home != Home::buffer || !is_near(to)) return false;
        encoder_.vector_memory(kStoreScalar, kValue, 0, rdi, static_cast<std::int32_t>(to));
        return true;
    }

    const Program& program_;
    const Pick& pick_;
    ConstantPool& pool_;
    bool wide_;
    std::int64_t vector_lanes_;
    Encoder encoder_;
    std::int64_t count_ = 1, from_ = 0;
};

}  // namespace

std::optional<std::vector<std::uint8_t>> pick_code(const Program& program, const Pick& pick,
                                                   ConstantPool& pool, bool wide) {
    return PickCompiler(program, pick, pool, wide).compile();
}

std::optional<std::vector<std::uint8_t>> scalar_code(const ScalarOp& op, bool wide) {
    Encoder encoder(wide);
    if (op.op == Op::cast && op.dtype == DType::i64 &&
        op.function == kernels().elementwise(Op::cast, DType::i64, DType::i32, false)) {
        encoder.load(rax, rsi, slot_offset(op.in[0]));
        encoder.fixed({0x89, 0xC0});  // mov eax, eax
        encoder.store(rsi, slot_offset(op.out), rax);
        return encoder.code();
    }
    if (op.op == Op::add && op.dtype == DType::i64) {
        encoder.load(rax, rsi, slot_offset(op.in[0]));
        encoder.add(rax, rsi, slot_offset(op.in[1]));
        encoder.store(rsi, slot_offset(op.out), rax);
        return encoder.code();
    }
    // Minima and maxima take care of NaN, which these instructions do not.
    if (op.op == Op::min || op.op == Op::max) return std::nullopt;
    auto opcode = op.op == Op::sqrt ? std::optional(kSqrt) : arithmetic_opcode(op.op, op.dtype);
    if (!opcode || op.dtype != DType::f32) return std::nullopt;
    opcode->prefix = 2;
    encoder.vector_memory(kLoadScalar, 0, 0, rsi, slot_offset(op.in[0]));
    if (op.num_inputs > 1) encoder.vector_memory(kLoadScalar, 1, 0, rsi, slot_offset(op.in[1]));
    encoder.vector(*opcode, 0, 0, op.num_inputs > 1 ? 1 : 0);
    encoder.fixed({0xC5, 0xF9, 0x7E, 0xC0});  // vmovd eax, xmm0
    encoder.store(rsi, slot_offset(op.out), rax);
    return encoder.code();
}

}  // namespace tilewright::cpu
