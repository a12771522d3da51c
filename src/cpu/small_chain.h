// Which chains on small tiles have code, and where it finds operands.
#pragma once

#include <cstdint>
#include <optional>

#include "cpu/bytecode.h"
#include "cpu/simd/x86_opcodes.h"
#include "cpu/small_tile_code.h"

namespace tilewright::cpu {

/// A chain on few vectors, whose code goes row by row without loops.
class SmallChain {
  public:
    SmallChain(const Program& program, const Chain& chain, const KnownSlots& known,
               int vector_lanes);

  protected:
    /// Where code finds memory: rdi is the arena, rsi the slots, rdx the constants.
    struct Address {
        x86::Gpr base = x86::rdi;
        std::int32_t offset = 0;
    };
    /// Coefficients up to this much do not make sums of 64 bits wrap around.
    static constexpr std::int64_t kSteep = std::int64_t{1} << 20;
    static constexpr std::int64_t kMostOfForm = std::int64_t{1} << 30;

    /// Whether the chain may have code, as far as its shape and its operands tell.
    bool is_known() const;
    Address address(const StripSource& source, std::int64_t row, std::int64_t vector);
    /// The op of this row whose result `source` is; the number of ops if there is none.
    std::size_t maker(const StripSource& source) const;
    bool is_tail(std::int64_t v) const { return tail_ != 0 && v + 1 == vectors_; }

    static bool is_word(DType dtype) { return dtype == DType::f32 || dtype == DType::i32; }
    static bool is_root(const StripOp& op) {
        return op.op == ir::Op::sqrt && op.in[0].dtype == DType::f32;
    }
    static bool is_fma(const StripOp& op) {
        return op.op == ir::Op::fma && op.in[0].dtype == DType::f32;
    }
    static bool is_conversion(const StripOp& op) {
        return op.op == ir::Op::cast && op.in[0].dtype == DType::i32 && op.out.dtype == DType::f32;
    }
    /// Minima and maxima of floats take care of NaN, which these instructions do not.
    static std::optional<x86::Opcode> arithmetic(ir::Op op, DType dtype);
    /// True for maps that code can do.
    static bool is_map(const StripOp& op);
    /// True for selects by a form of which 32 bits tell the sign, once it is limited.
    static bool is_gentle_select(const StripOp& op);

    /// rcx = the form at row and lane 0, of which words need the lower half alone; false if it has
    /// terms that this code does not know.
    bool load_base(const Affine& form);
    /// What that is if the slots are known.
    std::optional<std::int64_t> known_base(const Affine& form) const;
    /// Limits rcx to 2^30 in size: a tile's few elements do not change the sign of what is beyond.
    void limit_base();
    /// What the form adds to its base in the lanes of vector v.
    ConstantPool::Words steps(const Affine& form, std::int64_t v) const;

    const Program& program_;
    const Chain& chain_;
    const KnownSlots& known_;
    x86::Encoder encoder_{false};
    std::int64_t vector_lanes_, vectors_ = 1, row_ = 0;
    int tail_ = 0;  ///< lanes of a row's last vector, if it is not whole
    std::size_t op_ = 0;
    bool failed_ = false;

  private:
    static bool same_places(const StripSource& a, const StripSource& b);
    static bool has_address(const StripSource& source);
    static bool is_row_of_view(const StripSource& source) {
        return source.home == Home::view && is_word(source.dtype) && source.offset == 0 &&
               source.view_lane_axis >= 0;
    }
    bool always_has_memory(std::uint32_t view) const;
};

}  // namespace tilewright::cpu
