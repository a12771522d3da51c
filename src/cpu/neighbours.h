// Neighbouring programs of the grid whose blocks lie side by side in memory, run as one.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/execute.h"

namespace tilewright::cpu {

/// A block of few lanes and many rows reads memory in short pieces, which costs twice the time of
/// long ones; a small block ends before its beginning is paid for. Where the next programs of the
/// grid go on where this one ends, along its rows or after the last of them, or do the same in
/// other rows, one of them does the work of all. A scan down the rows also reads memory along rows
/// then.
class Neighbours {
  public:
    explicit Neighbours(const Program& program);

    /// So many programs may be worth running as one; 1: none but this one.
    std::int64_t most(std::int64_t programs, int threads) const;
    /// As many of at most `most` threads as so many programs are worth: waking one takes longer
    /// than a small call.
    int threads(std::int64_t programs, int most) const;

    /// Begins a call. What was found in the calls before is forgotten unless only the addresses of
    /// arrays differ.
    void begin_call(const ir::Arguments& arguments);
    /// As many programs from number `first` on, of `most` at most, as ran as one in a call before;
    /// 0 if that is not known. `run` runs them.
    std::int64_t known(const Frame& frame, std::int64_t first, std::int64_t most);
    /// Keeps what was found about the programs from `first` on: `n` follow each other.
    void keep(const Frame& frame, std::int64_t first, std::int64_t most, std::int64_t n);

    /// Runs what comes before the chain. False where no other program can follow.
    bool begin(Frame& frame);
    /// The same for the program that comes `n` after the first; true when its blocks lie where `n`
    /// steps from those of the first lead, and all else is equal.
    bool follows(Frame& frame, std::int64_t n);
    /// True when positions are linear in the program's index along each axis of the grid: along an
    /// axis, programs between two that follow the first then follow it as well.
    bool is_linear() const { return linear_; }
    /// Runs the first `n` programs.
    void run(Frame& frame, std::int64_t n);

  private:
    struct Operand {
        std::uint32_t view = 0;
        std::int64_t step = 0;  ///< bytes from one program to the next
        int element = 1;        ///< bytes
        bool has_lanes = false;
        int row_axis = -1;  ///< of the view; -1: every row is the same
    };

    /// What they read and write; false where that is not in arrays.
    bool add(const Chain& chain);
    bool add(const CombineScan& scan);
    bool add(const StripSource& source);
    /// Keeps track of the scalars that differ from program to program.
    void compute(const ScalarOp& op);
    bool all_in_arrays(const Frame& frame) const;
    void set_row_stride(StripSource& source) const;

    const Program& program_;
    std::size_t at_ = 0;                 ///< of the chain; 0: the program has to run alone
    Chain chain_;                        ///< of several programs,
    CombineScan combine_;                ///< or this
    std::int64_t rows_ = 0, lanes_ = 0;  ///< of one program
    int widest_ = 1;                     ///< bytes of an element
    std::int64_t cost_ = 1;              ///< of a program, in bytes of its widest operand
    bool scans_ = false;                 ///< down the rows
    bool down_ = false;                  ///< the next program's rows follow those of this one
    bool linear_ = true;
    std::vector<bool> varying_;  ///< by slot
    std::vector<Operand> operands_;
    std::vector<std::uint32_t> array_views_, slots_;
    std::vector<std::uint32_t> ref_of_view_;
    std::vector<View> first_views_;
    std::vector<std::uint64_t> first_slots_;

    /// Programs that run as one.
    struct Group {
        std::int64_t first = 0, most = 0, n = 0;
        bool down = false;
        std::vector<std::int64_t> steps;  ///< of the operands
        std::vector<View> views;          ///< of the first program,
        std::vector<std::int64_t> at;     ///< with these distances from the start of their arrays
        std::vector<std::uint64_t> slots;
    };
    static constexpr std::size_t kMostGroups = 4;  ///< small calls have few
    static constexpr std::size_t kDims = ir::kMaxRefRank;
    std::vector<Group> groups_;
    std::vector<std::int64_t> layout_;  ///< of the arguments of the last call
    std::vector<std::uint64_t> scalars_;
};

}  // namespace tilewright::cpu
