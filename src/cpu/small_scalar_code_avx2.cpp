// Writes the AVX2 code of scalars, and of picked elements.
#include <algorithm>

#include "cpu/simd/x86_opcodes.h"
#include "cpu/small_pick.h"
#include "cpu/small_tile_code.h"

namespace tilewright::cpu {
namespace {

using namespace x86;  // opcodes and registers
using ir::Op;

constexpr Opcode kGather{2, 1, 0x92}, kAnd{1, 1, 0xDB}, kMaskedStore{2, 1, 0x2E};
// Masks, which are vectors: of the lanes of a vector, of an index inside the tile, and what
// a gather reads.
constexpr int kLanes = 3, kInside = 4, kGathered = 5;

std::int32_t slot_offset(std::uint32_t index) {
    return 8 * static_cast<std::int32_t>(index);
}

/// Writes the code of one Pick.
class PickCompiler {
  public:
    PickCompiler(const SmallPick& place, const Pick& pick, ConstantPool& pool,
                 const KnownSlots& known)
        : place_(place), pick_(pick), pool_(pool), index_(known_index(pick, known)) {}

    std::vector<std::uint8_t> compile() {
        from_ = place_.from;
        if (is_inside())
            from_ += *index_ * place_.step * kWord;
        else
            find_index();
        encoder_.vector(kZero, kZeroRegister, kZeroRegister, kZeroRegister);
        if (place_.count == 1) {
            load(kLoadScalar, 0);
            add_zero();
            store_element();
            return encoder_.code();
        }
        if (place_.stride != 1) {
            is_inside() ? encoder_.fixed({0x49, 0x89, 0xF8})         // mov r8, rdi
                        : encoder_.fixed({0x4C, 0x8D, 0x04, 0x87});  // lea r8, [rdi + 4 * rax]
        }
        for (std::int64_t first = 0; first < place_.count; first += kVectorLanes) {
            const std::int64_t lanes = std::min(kVectorLanes, place_.count - first);
            place_.stride == 1 ? load(kLoad, first) : gather(first, lanes);
            add_zero();
            store(static_cast<std::int32_t>(place_.to + first * kWord), lanes);
        }
        return encoder_.code();
    }

  private:
    static constexpr std::int64_t kWord = 4, kVectorLanes = 8;
    static constexpr int kValue = 0, kZeroRegister = 1, kPlaces = 2;

    bool is_inside() const { return index_ && 0 <= *index_ && *index_ < place_.extent; }

    /// rax = the index times its step, or 0 if it is outside; kInside tells which.
    void find_index() {
        const std::int32_t slot = slot_offset(pick_.at);
        pick_.dtype == DType::i32 ? encoder_.load_signed_32(rax, rsi, slot)
                                  : encoder_.load(rax, rsi, slot);
        encoder_.fixed({0x48, 0x3D});  // cmp rax, extent: as unsigned numbers
        encoder_.word(static_cast<std::int32_t>(place_.extent));
        encoder_.fixed({0x48, 0x19, 0xC9});  // sbb rcx, rcx
        encoder_.fixed({0x48, 0x21, 0xC8});  // and rax, rcx
        if (place_.step != 1) {
            encoder_.fixed({0x48, 0x69, 0xC0});  // imul rax, rax, step
            encoder_.word(static_cast<std::int32_t>(place_.step));
        }
        encoder_.move_word(kInside, rcx);
        encoder_.vector(kBroadcastLane, kInside, 0, kInside);
    }
    void set_mask(int mask, std::int64_t lanes) {
        std::array<std::int32_t, ConstantPool::kLanes> words{};
        std::fill_n(words.begin(), lanes, -1);
        encoder_.vector_memory(kLoad, mask, 0, rdx, pool_.at(words));
    }
    /// An index outside reads element 0, which becomes zero.
    void load(Opcode op, std::int64_t first) {
        const auto offset = static_cast<std::int32_t>(from_ + first * kWord);
        if (is_inside()) return encoder_.vector_memory(op, kValue, 0, rdi, offset);
        encoder_.vector_lanes(op, kValue, 0, rdi, offset);
        encoder_.vector(kAnd, kValue, kValue, kInside);
    }
    void store(std::int32_t to, std::int64_t lanes) {
        if (lanes == kVectorLanes) return encoder_.vector_memory(kStore, kValue, 0, rdi, to);
        set_mask(kLanes, lanes);
        encoder_.vector_memory(kMaskedStore, kValue, kLanes, rdi, to);
    }
    void gather(std::int64_t first, std::int64_t lanes) {
        std::array<std::int32_t, ConstantPool::kLanes> places{};
        for (std::int64_t l = 0; l < lanes; ++l)
            places[static_cast<std::size_t>(l)] = static_cast<std::int32_t>(l * place_.stride);
        set_mask(kGathered, lanes);  // a gather clears its mask
        if (!is_inside()) encoder_.vector(kAnd, kGathered, kGathered, kInside);
        encoder_.vector(kZero, kValue, kValue, kValue);
        encoder_.vector_memory(kLoad, kPlaces, 0, rdx, pool_.at(places));
        encoder_.vector_gather(kGather, kValue, kPlaces, r8,
                               static_cast<std::int32_t>(from_ + first * place_.stride * kWord),
                               kGathered);
    }
    /// Zeros become positive.
    void add_zero() {
        if (pick_.in.dtype == DType::f32) encoder_.vector(kAdd, kValue, kValue, kZeroRegister);
    }
    void store_element() {
        if (!place_.to_slot)
            return encoder_.vector_memory(kStoreScalar, kValue, 0, rdi,
                                          static_cast<std::int32_t>(place_.to));
        encoder_.fixed({0xC5, 0xF9, 0x7E, 0xC0});  // vmovd eax, xmm0
        encoder_.store(rsi, slot_offset(pick_.out.index), rax);
    }

    const SmallPick& place_;
    const Pick& pick_;
    ConstantPool& pool_;
    std::optional<std::int64_t> index_;  ///< if it is known
    Encoder encoder_{false};
    std::int64_t from_ = 0;
};

}  // namespace

std::optional<std::vector<std::uint8_t>> pick_code_avx2(const Program& program, const Pick& pick,
                                                        ConstantPool& pool,
                                                        const KnownSlots& known) {
    const auto place = small_pick(program, pick);
    if (!place) return {};
    return PickCompiler(*place, pick, pool, known).compile();
}

std::optional<std::vector<std::uint8_t>> scalar_code_avx2(const ScalarOp& op) {
    Encoder encoder(false);
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

std::vector<std::uint8_t> move_code_avx2(const ScalarMove& move) {
    Encoder encoder(false);
    encoder.load(rax, rsi, slot_offset(move.from));
    encoder.store(rsi, slot_offset(move.to), rax);
    return encoder.code();
}

}  // namespace tilewright::cpu
