// Fused runs: ops of a strip chain on a block of lanes that stays in registers from op to op.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ir/op.h"
#include "tilewright/dtype.h"

namespace tilewright::cpu {

// The block has one value, of 32 bits per lane: f32, i32, or a mask with all bits set or clear; f16
// and bf16 values are held as the f32 that they round to. Each step replaces the value, stores it,
// or adds it to a reduction, with further operands from memory.

/// What a step does. Elementwise ops: `in` is the dtype of the operands (f32, i32, or boolean),
/// `value` says which of them is the block's value (both: every operand of a binary op is). load
/// and store: `in` is the dtype in memory. cast: from `in` to `out`. iota: base + row * r + lane *
/// l of FusedCall::affine[index], as `out` f32 or i32. ge, eq and ne of `in` i64: that form
/// compared with 0. select of `in` i64: the value where the form is >= 0, else the immediate.
/// reduce: over lanes, `reduction`. yield: the end.
struct FusedKey {
    ir::Op op = ir::Op::yield;
    DType in = DType::f32, out = DType::f32;
    int value = 0;
    static constexpr int kBoth = 3;
    ir::Reduction reduction = ir::Reduction::sum;

    bool operator==(const FusedKey&) const = default;
};

/// Where a step's operand is: an element for each lane, one for all of them, or a block that an
/// earlier step of the run has stored.
struct FusedPlace {
    enum class Kind : std::uint8_t { none, lanes, splat, temporary };
    Kind kind = Kind::none;
    int temporary = -1;
    /// The operand whose lanes, from lane `shift` on, these are, which names itself; -1 if they are
    /// not known to be those of another operand.
    int base = -1;
    int shift = 0;
    static constexpr int kMostShift = 15;

    bool operator==(const FusedPlace&) const = default;
};

/// What a step does and where its operands are. The operands of a run are numbered in the order of
/// its steps.
struct FusedShape {
    FusedKey key;
    std::array<FusedPlace, 2> place{};

    bool operator==(const FusedShape&) const = default;
};

struct FusedStep {
    void (*function)() = nullptr;  ///< with the target's own signature
    std::array<std::uint8_t, 2> operand{};
    std::array<std::int8_t, 2> walks{};  ///< -1: an element for each lane of a row; else 0
    std::uint8_t index = 0;              ///< of an affine form or a reduction
    float immediate = 0;
};

// No initialisers below: a call fills in what it uses, and clearing the rest would cost as much as
// some blocks.

struct FusedOperand {
    std::byte* data;
    std::int64_t row_bytes, lane_bytes;
    bool streams;  ///< of stores: non-temporal where a vector is aligned
};

struct FusedReduction {
    ir::Reduction kind;
    float* out;  ///< one element per row, combined with what is there
    std::int64_t row_stride;
};

/// Data to prefetch into the L2 cache: for each block of the operand, `block_bytes` bytes at a
/// distance of `ahead` bytes.
struct FusedPrefetch {
    std::size_t operand;
    std::int64_t ahead;
    std::int64_t block_bytes;
};

struct FusedCall {
    static constexpr std::size_t kMaxOperands = 32, kMaxAffine = 8, kMaxReductions = 4,
                                 kMaxPrefetches = 4;
    struct Index {
        std::int32_t base, row, lane;
    };
    const FusedStep* steps;
    /// Lanes after the last whole block are done by a block that ends with the last lane: there are
    /// such lanes only where doing lanes twice changes nothing.
    std::int64_t rows, blocks, lanes;
    std::size_t num_operands, num_affine, num_reductions, num_prefetches;
    std::array<FusedOperand, kMaxOperands> operands;
    std::array<Index, kMaxAffine> affine;
    std::array<FusedReduction, kMaxReductions> reductions;
    std::array<FusedPrefetch, kMaxPrefetches> prefetches;
};

struct FusedKernels {
    std::int64_t lanes = 0;  ///< of a block
    /// The function of a step; nullptr where there is none.
    void (*(*step)(const FusedShape& shape))() = nullptr;
    void (*run)(const FusedCall& call) = nullptr;  ///< nullptr: this table has no fused runs
    /// A function that does a whole run of these steps, for common runs; nullptr for others.
    void (*(*compiled)(std::span<const FusedShape> shapes))(const FusedCall& call) = nullptr;
};

}  // namespace tilewright::cpu
