// Prints a program without roles as CUDA C++: print_threads.cpp has statements and control flow,
// print_registers.cpp values in registers and their ways through shared memory, print_lanes.cpp
// reductions, print_scan.cpp scans, print_combine.cpp those with functions, print_sort.cpp sorts,
// print_debug.cpp what kernels print, print_arrays.cpp accesses to arrays, print_copies.cpp copies
// of arrays to shared memory, print_dots.cpp products.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/codegen/mma_steps.h"
#include "cuda/codegen/positions.h"
#include "cuda/schedule/array_access.h"
#include "cuda/schedule/program.h"
#include "cuda/schedule/register_names.h"

namespace tilewright::cuda::schedule {

/// The text of an access to an array.
struct AccessText {
    std::string pointer;  ///< to the first element of a thread
    Names address;        ///< per register
    Names inside;         ///< per register: condition, "" is always
    int vector = 1;       ///< registers per access
    std::string window;   ///< bounds along the vector axis where they may cut a vector
    Names beside;         ///< per register: `inside` where `window` is `true`
    Names position;       ///< per register: coordinate along the vector axis
};

struct ScanLine;

class ThreadPrinter {
  public:
    explicit ThreadPrinter(const Program& program)
        : p_(program), names_(program, positions_, program.warps()) {}

    std::string run();
    /// The device functions of products that the statements call.
    const std::set<MmaStep>& steps() const { return steps_; }

  private:
    /// Variables of the parameters that are scalars.
    void scalars();

    // ---- Text.

    template <typename... Args>
    void line(fmt::format_string<Args...> format, Args&&... args) {
        text_.append(static_cast<std::size_t>(4 * depth_), ' ');
        fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
        text_ += '\n';
    }
    void block(const Block& of) {
        for (const Instruction& made : of.body) instruction(made);
    }
    void instruction(const Instruction& made);
    void tile(const Instruction& made);
    void blocks(const Instruction& made);
    /// What stands before a block.
    std::string head(const Instruction& made);
    std::string advance(const Instruction& made) const;
    void program_ids(const Instruction& made);
    void place_scratch(const Instruction& made);

    // ---- Values in registers.

    const Layout& layout(Value value) const { return names_.layout(value); }
    DType dtype(Value value) const { return p_.type(value).type.dtype; }
    /// The text of each register.
    const Names& registers(Value value) const { return names_.of(value); }
    void elementwise(const Instruction& made);
    void declare(const Instruction& made);
    void assign(const Instruction& made);
    void copy(const Instruction& made);
    void shuffle(const Instruction& made);
    void write_tile(const Instruction& made);
    void read_tile(const Instruction& made);

    // ---- Reductions and scans.

    bool has_phantoms(const Instruction& reduction) const {
        return layout(reduction.operands[0])
            .has_phantoms(static_cast<int>(reduction.number("axis")));
    }
    /// Combines b into the variable a; the indices are those of extreme elements.
    void fold(ir::Reduction kind, DType of, const std::string& a, const std::string& b,
              const std::string& a_index, const std::string& b_index);
    void reduce(const Instruction& made);
    void write_parts(const Instruction& made);
    void join_parts(const Instruction& made);
    void join_lanes(const Instruction& made);
    /// Variables with the place of a thread's lane and of its warp along the axis of a scan, in the
    /// scan's order: the lowest bits of their numbers.
    void number_threads(const std::string& base, bool reverse, int lane_bits, int warp_bits);
    void scan(const Instruction& made);
    void write_totals(const Instruction& made);
    void join_totals(const Instruction& made);
    /// Declares the pointer `memory` to the totals of a line in a buffer, and writes a thread's
    /// there; in clusters, those of warps to all blocks.
    void write_total(const std::string& buffer, std::size_t line, const std::string& memory,
                     const std::string& type, const std::string& total);
    /// That of the `nth` of the warps along an axis, the last of which is number `last`.
    std::string total_of_warp(const std::string& memory, const std::string& type, int last,
                              const std::string& nth) const;
    struct Scan;
    /// The lanes of each warp scan `each` totals in turn, of 32 times as many warps.
    void join_in_lanes(const Scan& scan, const std::string& p, int each,
                       const std::function<std::string(const std::string&)>& total);
    /// The elements of a line by a thread and by the lanes before it; and by those before these.
    void scan_lanes(const Scan& scan, std::size_t line, const Names& elements, const Names& sums);
    void finish_line(const Scan& scan, std::size_t line, const Names& sums, Value result,
                     std::string total);
    /// Variables of the totals of lines, from those with what is carried to the end of each.
    void totals(const std::vector<ScanLine>& lines, int axis, const Layout& of, Value result,
                const Names& carries);
    void combine_scan(const Instruction& made);
    void write_combined(const Instruction& made);
    void join_combined(const Instruction& made);
    struct CombineScan;
    /// Likewise; warps before `start` have nothing.
    void join_in_lanes(const CombineScan& scan, std::size_t line, int each, int start, bool carried,
                       const std::function<std::string(std::size_t, const std::string&)>& total);
    /// A function that combines variables of what comes after with what comes before.
    void combining_function(const Instruction& made, const CombineScan& scan);
    /// As scan_lanes and finish_line, for tuples; `earlier` precedes what precedes a line.
    void combine_lanes(const CombineScan& scan, std::size_t line,
                       const std::vector<Names>& elements, const std::vector<Names>& sums,
                       bool parts);
    void precede(const CombineScan& scan, std::size_t line, const Names& earlier);
    void finish_combined(const CombineScan& scan, std::size_t line, const std::vector<Names>& sums,
                         std::span<const Value> results, const Names& total);
    void combined_totals(const CombineScan& scan, const Instruction& made);
    static Names total_of(const CombineScan& scan, std::size_t line,
                          const std::vector<Names>& sums);
    void clear(const Instruction& made);
    void narrow(const Instruction& made);

    // ---- Sorts and prints.

    void fill_lines(const Instruction& made);
    void write_lines(const Instruction& made);
    void sort_lines(const Instruction& made);
    void read_lines(const Instruction& made);
    /// The place of a register's element, or of its word, in lines.
    std::string place_in_lines(const Instruction& made, Value lines, const Layout& layout, int reg);
    void print(const Instruction& made);
    void print_tile(const Instruction& made);

    // ---- Places in shared memory.

    /// Text of the place of a register's element in a tile in shared memory, in elements; `part`
    /// counts the tiles that are written one beside the other.
    std::string place(const Instruction& made, const Layout& layout, int reg, std::size_t part);
    /// The number of a register's element in a row-major tile of such extents, without an axis.
    std::string row_major(const Layout& layout, int reg, const ir::Shape& extents,
                          int without = -1);
    /// The pointer to the elements of a buffer.
    static std::string pointer(std::string_view buffer) { return fmt::format("{}_data", buffer); }

    // ---- Arrays.

    /// A scalar index as i64.
    std::string index(Value value) const { return names_.index(value); }
    /// Prints what the text refers to.
    AccessText access_text(const ArrayAccess& access, const Layout& layout);
    template <typename TimesStride>
    void gathered(const ArrayAccess& access, std::size_t dim, const Layout& layout,
                  TimesStride&& times_stride, Names& condition, Names& offset);
    void load(const Instruction& made);
    void load_into(const ArrayAccess& access);
    void store(const Instruction& made);
    void store_vectors(const AccessText& text, const Layout& layout, const Names& names);
    void atomic(const Instruction& made);
    void copy_tile(const Instruction& made);
    void targets(const Instruction& made);
    void last_writers(const Instruction& made);
    void store_targets(const Instruction& made);

    // ---- Products.

    struct Operand;
    struct Product;
    Operand operand(Value value, bool k_first) const;
    Product product(const Instruction& made) const;
    void shared_tile(const Instruction& made);
    void write_operand(const Instruction& made);
    void read_fragments(const Instruction& made);
    void mma(const Instruction& made);
    void multiply_add(const Instruction& made);
    void round_sums(Value sums);
    /// The address of a fragment for ldmatrix.
    std::string fragment_address(const Operand& of, const std::string& row, const std::string& byte,
                                 std::int64_t row_part, std::int64_t byte_part);
    std::string left_address(const Operand& left, const Layout& a, std::int64_t batch,
                             std::int64_t row, std::int64_t k);
    /// Text that adds the rows of a warp's element of the batch.
    std::string batch_rows(const Operand& of, const Layout& fragments);
    /// The four words of 16 rows and 32 bytes of a left operand.
    void load_left(const Operand& left, const Layout& a, const Names& words, std::int64_t batch,
                   std::int64_t row, std::int64_t k);
    /// The words of an instruction's operand, loaded one by one.
    Names words(const Product& of, const Operand& operand, bool is_left, std::int64_t batch,
                std::int64_t outer, std::int64_t k);
    std::string word(const Product& of, const Operand& operand, bool is_left, std::int64_t batch,
                     std::int64_t outer, std::int64_t k);
    /// The words of a tile in registers.
    Names packed_words(const Product& of, Value tile, std::int64_t batch, std::int64_t row,
                       std::int64_t k);
    /// The words of the left operand for each row of instructions.
    std::vector<Names> left_words(const Product& of, Value value, std::size_t batch,
                                  std::int64_t k);
    /// The registers that an instruction adds to.
    static Names sums(const Product& of, std::int64_t batch, std::int64_t row, std::int64_t column);
    void multiply(const Product& of, const Names& sums, const Names& a, const Names& b,
                  std::size_t first_b);
    void multiply_halves(const Product& of, std::int64_t batch, std::int64_t k,
                         const std::vector<Names>& a);
    /// ldmatrix.x4 of the right operand, or x2 of one that is not a pair of columns.
    std::string right_address(const Product& of, std::int64_t batch, std::int64_t column,
                              std::int64_t k, bool pair);
    /// Some steps along k as one statement, of operands that are both in shared memory. Returns
    /// how far; 0 where there is no such statement.
    std::int64_t multiply_steps(const Product& of, std::int64_t batch, std::int64_t k);

    const Program& p_;
    Positions positions_;
    RegisterNames names_;
    std::map<Value, AccessText> targets_;
    std::string text_;
    int depth_ = 1;
    int copies_ = 0;  ///< of variables that are assigned to before they are read
    int pointers_ = 0;
    std::map<Value, const Instruction*> in_memory_;  ///< tiles in shared memory
    /// Variables of fragments' addresses in the blocks that are being printed, by the thread's part
    /// and the tile's offset.
    std::vector<std::map<std::pair<std::string, std::string>, std::string>> addresses_{1};
    std::set<MmaStep> steps_;
    int fragments_ = 0;
};

}  // namespace tilewright::cuda::schedule
