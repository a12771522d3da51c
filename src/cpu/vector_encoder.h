// Registers for the steps of vector code, and their instructions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "cpu/vector_code.h"

namespace tilewright::cpu {

/// Goes through the steps that are needed, once and in order. Values that find no register go to
/// the stack, those first that are read last; constants are loaded again instead.
class VectorEncoder {
  public:
    explicit VectorEncoder(VectorCode& code);

    std::optional<std::vector<std::uint8_t>> encode();

  private:
    using Value = VectorCode::Value;
    using Step = VectorCode::Step;
    using Kind = VectorCode::Kind;
    static constexpr int kNone = VectorCode::kNone;

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

    const Step& step_of(Value value) const { return code_.steps_[static_cast<std::size_t>(value)]; }
    Home& home_of(Value value) { return homes_[static_cast<std::size_t>(value)]; }
    File& file_of(Value value) { return step_of(value).is_mask() ? masks_ : vectors_; }

    void find_reads();
    void find_operands();
    static int memory_operand(const Step& step);
    int next_read(Value value) const;

    int free_register(File& file, const Step& step);
    void spill(Value value);
    int in_register(Value value, const Step& step);
    void release(const Step& step);
    int result(Value value, const Step& step);
    int result_over(Value value, const Step& step, std::size_t k);
    void load_constant(int reg, Value value);
    void load_mask(int reg, std::uint64_t bits);
    void encode_step(Value value);
    using Registers = std::array<int, 4>;  ///< of operands
    void encode_value(Value value, const Step& step, const Registers& regs);
    void encode_store(const Step& step, const Registers& regs);
    void setup(const Step& step);

    VectorCode& code_;
    x86::Encoder encoder_{true};
    std::vector<Home> homes_;
    std::vector<int> places_;       ///< of steps in the order
    std::vector<bool> is_operand_;  ///< an operand in memory of the only step that reads it
    File vectors_, masks_;
    int at_ = 0, spills_ = 0;
    std::vector<int> free_spills_;
};

}  // namespace tilewright::cpu
