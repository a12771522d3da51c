// Encodes the few x86-64 instructions that compiled runs are made of.
#pragma once

#include <cstdint>
#include <vector>

namespace tilewright::cpu::x86 {

enum Gpr : std::uint8_t {
    rax,
    rcx,
    rdx,
    rbx,
    rsp,
    rbp,
    rsi,
    rdi,
    r8,
    r9,
    r10,
    r11,
    r12,
    r13,
    r14,
    r15
};

/// A vector instruction: its opcode map (1: 0F, 2: 0F38, 3: 0F3A), its prefix (1: 66) and its byte.
struct Opcode {
    std::uint8_t map, prefix, byte;
};

/// Bytes of code. Vector instructions are VEX ones on 32 bytes, or EVEX ones on 64 if `wide`.
class Encoder {
  public:
    explicit Encoder(bool wide) : wide_(wide) {}

    const std::vector<std::uint8_t>& code() const { return code_; }
    std::size_t here() const { return code_.size(); }

    /// reg = op(second, rm), registers all; `mask` leaves lanes of reg as they are (EVEX alone).
    void vector(Opcode op, int reg, int second, int rm, int mask = 0) {
        prefix(op, reg, second, rm >> 4, rm >> 3, mask);
        byte(0xC0 | (reg & 7) << 3 | (rm & 7));
    }
    /// The same with base + 4 * rax + offset in memory.
    void vector_lanes(Opcode op, int reg, int second, Gpr base, std::int32_t offset, int mask = 0) {
        constexpr int kScale = 2 << 6;
        memory(op, reg, second, base, kScale | rax << 3, offset, mask);
    }
    /// The same with what `base` points at.
    void vector_at(Opcode op, int reg, int second, Gpr base) {
        memory(op, reg, second, base, kNoIndex, 0);
    }
    /// The same with what lies `offset` bytes from there.
    void vector_memory(Opcode op, int reg, int second, Gpr base, std::int32_t offset,
                       int mask = 0) {
        memory(op, reg, second, base, kNoIndex, offset, mask);
    }
    /// The same with words at base + 4 * each lane of `index` + offset. `mask` is a vector unless
    /// the code is EVEX.
    void vector_gather(Opcode op, int reg, int index, Gpr base, std::int32_t offset, int mask) {
        constexpr int kScale = 2 << 6;
        prefix(op, reg, wide_ ? index & 16 : mask, index >> 3, base >> 3, wide_ ? mask : 0);
        address(reg, kScale | (index & 7) << 3, base, offset);
    }
    void immediate(int value) { byte(value); }

    /// The first word of a vector = `word`, which is one of the first eight; the rest is zero.
    void move_word(int reg, Gpr word) {
        fixed({0xC5, 0x79 | (~reg >> 3 & 1) << 7, 0x6E, 0xC0 | (reg & 7) << 3 | word});
    }
    /// rax = the first 64 bits of a vector.
    void move_to_rax(int reg) {
        fixed({0xC4, 0x61 | (~reg >> 3 & 1) << 7, 0xF9, 0x7E, 0xC0 | (reg & 7) << 3});
    }

    void load(Gpr reg, Gpr base, std::int32_t offset) { general(0x8B, reg, base, offset); }
    void load_signed_32(Gpr reg, Gpr base, std::int32_t offset) {
        general(0x63, reg, base, offset);
    }
    void store(Gpr base, std::int32_t offset, Gpr reg) { general(0x89, reg, base, offset); }
    void add(Gpr reg, Gpr base, std::int32_t offset) { general(0x03, reg, base, offset); }
    void add_to(Gpr base, std::int32_t offset, Gpr reg) { general(0x01, reg, base, offset); }
    void push(Gpr reg) { stack(0x50, reg); }
    void pop(Gpr reg) { stack(0x58, reg); }
    void load_constant(Gpr reg, std::uint64_t value) {
        byte(0x48 | reg >> 3);
        byte(0xB8 | (reg & 7));
        for (int i = 0; i < 64; i += 8) byte(static_cast<int>(value >> i & 0xFF));
    }
    /// The bytes of an instruction without variable parts.
    void fixed(std::initializer_list<int> bytes) {
        for (const int b : bytes) byte(b);
    }
    void word(std::int32_t value) {
        for (int i = 0; i < 32; i += 8)
            byte(static_cast<int>(static_cast<std::uint32_t>(value) >> i & 0xFF));
    }
    /// The conditional jump of this byte after 0F, to a place before it.
    void jump_back(int condition, std::size_t target) {
        fixed({0x0F, condition});
        word(static_cast<std::int32_t>(target) - static_cast<std::int32_t>(here()) - 4);
    }

    /// The same to a place after it, where `land` is called with what this returns.
    std::size_t jump_ahead(int condition) {
        fixed({0x0F, condition});
        word(0);
        return here();
    }
    void land(std::size_t jump) {
        const auto distance = static_cast<std::uint32_t>(here() - jump);
        for (std::size_t i = 0; i < 4; ++i)
            code_[jump - 4 + i] = static_cast<std::uint8_t>(distance >> 8 * i & 0xFF);
    }

  private:
    static constexpr int kNoIndex = 4 << 3;

    void byte(int value) { code_.push_back(static_cast<std::uint8_t>(value)); }

    /// Prefixes hold the upper bits of registers inverted.
    void prefix(Opcode op, int reg, int second, int x, int b, int mask) {
        const auto inverted = [](int bit, int at) { return (~bit & 1) << at; };
        const int length = !wide_ && op.prefix == 2 ? 0 : 4;  // of 256 bits, but for scalars
        if (!wide_ && op.map == 1 && ((x | b) & 1) == 0) {
            byte(0xC5);
            byte(inverted(reg >> 3, 7) | (~second & 15) << 3 | length | op.prefix);
            return byte(op.byte);
        }
        byte(wide_ ? 0x62 : 0xC4);
        byte(inverted(reg >> 3, 7) | inverted(x, 6) | inverted(b, 5) |
             (wide_ ? inverted(reg >> 4, 4) : 0) | op.map);
        byte((~second & 15) << 3 | length | op.prefix);
        if (wide_) byte(2 << 5 | inverted(second >> 4, 3) | mask);
        byte(op.byte);
    }
    void memory(Opcode op, int reg, int second, Gpr base, int scale_and_index, std::int32_t offset,
                int mask = 0) {
        prefix(op, reg, second, 0, base >> 3, mask);
        address(reg, scale_and_index, base, offset);
    }
    /// In as few bytes as it takes. EVEX instructions count offsets of one byte in operands, whose
    /// size is not known here.
    void address(int reg, int scale_and_index, Gpr base, std::int32_t offset) {
        const bool near = !wide_ && -128 <= offset && offset <= 127;
        const bool here = offset == 0 && (base & 7) != rbp;
        const int mode = here ? 0 : near ? 0x40 : 0x80;
        if (scale_and_index == kNoIndex && (base & 7) != rsp) {
            byte(mode | (reg & 7) << 3 | (base & 7));
        } else {
            byte(mode | (reg & 7) << 3 | 4);
            byte(scale_and_index | (base & 7));
        }
        if (here) return;
        near ? byte(offset & 0xFF) : word(offset);
    }
    /// Of 64 bits; `base` is neither rsp nor r12.
    void general(int opcode, Gpr reg, Gpr base, std::int32_t offset) {
        byte(0x48 | (reg >> 3) << 2 | base >> 3);
        byte(opcode);
        byte(0x80 | (reg & 7) << 3 | (base & 7));
        word(offset);
    }
    void stack(int opcode, Gpr reg) {
        if (reg >= r8) byte(0x41);
        byte(opcode | (reg & 7));
    }

    bool wide_;
    std::vector<std::uint8_t> code_;
};

}  // namespace tilewright::cpu::x86
