// Registers for the steps of vector code, and their instructions.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cpu/vector_code.h"

namespace tilewright::cpu {

/// Goes through the steps that are needed, once and in order, and gives them registers. Values that
/// find none go to the stack, those first that are read last; constants are loaded again instead.
/// Instructions are those of a derived class for each instruction set.
class VectorEncoder {
  public:
    virtual ~VectorEncoder() = default;

    std::optional<std::vector<std::uint8_t>> encode();

  protected:
    using Value = VectorCode::Value;
    using Step = VectorCode::Step;
    using Kind = VectorCode::Kind;
    using Logic = VectorCode::Logic;
    using Registers = std::array<int, 4>;  ///< of operands; kNone: in memory
    static constexpr int kNone = VectorCode::kNone;

    /// Values are in the first `vectors` registers, and masks in `masks` of their own, from 1 on,
    /// if there are any.
    VectorEncoder(VectorCode& code, int vectors, int masks);

    // ---- What instruction sets do in their own way.

    /// True where operand k of a step may be in memory, of which a step has one at most.
    virtual bool takes_memory(const Step& step, std::size_t k) const = 0;
    /// Whether what `step` makes may be an operand that is read from the step's place.
    virtual bool is_readable(const Step& step) const = 0;
    /// Whether operand k is part of the instruction.
    virtual bool is_immediate(const Step& step, std::size_t k) const = 0;
    virtual void load_mask(int reg, int bits) = 0;
    virtual void load_spilled_mask(int reg, std::int32_t offset) = 0;
    virtual void store_spilled_mask(std::int32_t offset, int reg) = 0;
    virtual void encode_value(Value value, const Step& step, const Registers& regs) = 0;
    virtual void encode_store(const Step& step, const Registers& regs) = 0;

    // ---- For these.

    struct Memory {
        x86::Gpr base;
        std::int32_t offset;
        bool is_word;  ///< for all lanes
    };
    const Step& step_of(Value value) const { return code_.steps_[static_cast<std::size_t>(value)]; }
    /// reg = opcode(second, operand), which is in `memory_` if `operand` is kNone.
    void encode(x86::Opcode opcode, int reg, int second, int operand, int mask = 0);
    std::int32_t constant_at(const VectorCode::Words& words) { return code_.pool_.at(words); }
    std::int32_t splat_at(std::int32_t word) { return code_.pool_.splat(word); }
    std::optional<int> mask_bits(Value value) const { return code_.mask_bits(value); }
    /// Gives back the registers of what the step that is encoded reads for the last time.
    void release(const Step& step);
    /// The register of a result, which none of the operands of `step` has.
    int result(Value value, const Step& step);
    /// A register that holds operand k: its own if nothing else reads it.
    int result_over(Value value, const Step& step, std::size_t k);
    /// Instructions on general registers that come first.
    void setup(const Step& step);
    /// What stores to slots do by way of general registers.
    void store_slot_end(const Step& step);

    x86::Encoder encoder_;
    Memory memory_{};  ///< the step's operand there

  private:
    /// Registers of one kind, and the values in them.
    struct File {
        int first;
        std::vector<Value> held;
    };
    struct Home {
        int reg = kNone, spilled = kNone;
        std::size_t next = 0;    ///< in `reads`
        std::vector<int> reads;  ///< the steps that read it
    };

    Home& home_of(Value value) { return homes_[static_cast<std::size_t>(value)]; }
    bool has_mask(Value value) const { return !masks_.held.empty() && step_of(value).is_mask(); }
    File& file_of(Value value) { return has_mask(value) ? masks_ : vectors_; }
    std::int32_t spill_offset(int spilled) const { return vector_bytes_ * spilled; }

    void find_reads();
    void find_operands();
    int next_read(Value value) const;
    Memory memory_of(Value operand);
    bool stays_in_memory(const Step& step, std::size_t k);

    int free_register(File& file, const Step& step);
    void spill(Value value);
    void bring(Value value, const Step& step);
    void load_constant(int reg, Value value);
    void encode_step(Value value);

    VectorCode& code_;
    const int vector_bytes_;
    std::vector<Home> homes_;
    std::vector<int> places_;       ///< of steps in the order
    std::vector<bool> is_operand_;  ///< an operand in memory of the only step that reads it
    File vectors_, masks_;
    int at_ = 0, spills_ = 0;
    std::vector<int> free_spills_;
    std::vector<int> read_spills_;  ///< free after the step that is encoded
};

std::unique_ptr<VectorEncoder> avx512_encoder(VectorCode& code);
std::unique_ptr<VectorEncoder> avx2_encoder(VectorCode& code);

}  // namespace tilewright::cpu
