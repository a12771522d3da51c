// Prints a program of the form as CUDA C++: print_cuda.cpp has control flow, print_memory.cpp
// copies and products of slots, print_tiles.cpp the tile IR's operations.
#pragma once

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/codegen/generate.h"
#include "cuda/codegen/wgmma_shapes.h"
#include "cuda/schedule/materialise.h"
#include "cuda/schedule/tools.h"

namespace tilewright::cuda::schedule {

/// A name of the form as a C++ identifier.
std::string identifier(std::string_view name);

class CudaPrinter {
  public:
    explicit CudaPrinter(const Program& program)
        : p_(program), uses_(program), index_(program), chained_(is_chained(program)) {}

    Generated run();

  private:
    /// Do the blocks of a launch's first row go through many programs, all others through one?
    bool has_rows() const { return p_.order.unequal && !p_.order.irregular; }

    // ---- Text.

    template <typename... Args>
    void line(fmt::format_string<Args...> format, Args&&... args) {
        text_.append(static_cast<std::size_t>(4 * depth_), ' ');
        text_ += fmt::format(format, std::forward<Args>(args)...) + "\n";
    }
    template <typename... Args>
    void open(fmt::format_string<Args...> format, Args&&... args) {
        line("{} {{", fmt::format(format, std::forward<Args>(args)...));
        ++depth_;
    }
    void close() {
        --depth_;
        line("}}");
    }

    // ---- Names.

    static std::string ref_name(std::string_view name) { return "ref_" + identifier(name); }
    std::string scalar_name(Value value) const { return "s" + identifier(p_.value_name(value)); }
    /// The variable of a value; accumulators and counts that pass through loops share one variable.
    std::string name(Value value) const;
    void alias(Value value, Value of) { names_[value] = name(of); }
    std::string scalar(Value value) const;
    std::string constant(const Instruction& made) const;
    const Layout& layout(Value value) const;
    /// The number of registers of a tile, and the declaration of their array.
    int registers(Value value) const;
    std::string declaration(Value value, const std::string& name) const;

    // ---- Control flow.

    void frame();
    /// All threads of a cluster meet.
    void meet_cluster();
    /// The thread's position in tiles, for index math.
    void thread_positions();
    std::string extent(int axis) const;
    /// Positions along axes from a linear one, the last axis fastest.
    void decode(const std::vector<int>& axes, const std::string& linear);
    void block(const Block& of) {
        for (const Instruction& made : of.body) instruction(made);
    }
    void instruction(const Instruction& made);
    void role(const Instruction& made);
    /// What one thread of a role does.
    void single(const Role& role, const Instruction& made);
    std::string thread_coordinate(const Layout& layout, int axis) const;
    void programs(const Instruction& made);
    /// The first of the two barriers with which warpgroups alternate.
    int barrier_of_turn(const Instruction& made) const {
        return 2 + p_.all_consumer_groups() + 2 * static_cast<int>(made.number("turn"));
    }
    void panels(const Instruction& made);
    void for_loop(const Instruction& made);
    void if_else(const Instruction& made);
    /// Assigns to the variables of these values, all at once.
    void assign(const std::vector<Value>& to, const std::vector<Value>& from);
    void set(const std::string& variable, Value value);

    // ---- Slots of shared memory.

    struct Operand {
        std::string descriptor, stride;
    };
    void ties(const std::vector<Value>& registers);
    const Channel& channel(const Instruction& made) const {
        return p_.channel(made.symbol("channel"));
    }
    static const char* tag(DType dtype) { return wgmma_tag(dtype); }
    /// A tile as an array of 32 registers or more, for the functions that take panels.
    std::string array(Value value);
    /// Descriptor of an operand's slot (PTX ISA, wgmma, matrix descriptors). Each of the warpgroups
    /// that `group` numbers has `of_group` rows (or columns) of the result.
    Operand operand(const std::string& buffer_name, bool k_major, std::int64_t of_group,
                    const std::string& group, const std::string& count) const;
    /// The index of this warpgroup among those along an axis; none where there is one.
    static std::string group_along(const std::vector<int>& groups, int axis);
    void wgmma(const Instruction& made);
    void read_fragments(const Instruction& made);
    void read_panel(const Instruction& made);
    /// For TMA, the last dimension first; `last` is added to it, `by` to the dimension `moved`.
    std::string coordinates(const Instruction& made, const std::string& last,
                            std::size_t moved = SIZE_MAX, const std::string& by = "") const;
    void tma_load(const Instruction& made);
    void thread_load(const Instruction& made);
    /// What a single thread does in code that all of the producer's threads run.
    const char* by_one() const { return by_all_ ? "if (threadIdx.x % 128 == 0) " : ""; }
    void tma_store(const Instruction& made);
    void store_shared(const Instruction& made);
    void share(const Instruction& made);
    void release(const Instruction& made);

    // ---- Operations of the tile IR.

    /// Is a tile computed at each use?
    bool is_lazy(Value value) const;
    /// Text of the element of a tile at register `index`.
    std::string element(Value value, const std::string& index);
    std::string compute(const Instruction& made, const std::string& index);
    /// Sets `count` elements of an array, one for each value of i.
    template <typename Text>
    void each(int count, const std::string& target, Text&& text) {
        std::vector<std::string> temporaries;
        temporaries_ = &temporaries;
        const std::string value = text();
        temporaries_ = nullptr;
        shared_.clear();
        if (temporaries.empty()) {
            line("TW_UNROLL for (int i = 0; i < {}; ++i) {} = {};", count, target, value);
            return;
        }
        open("TW_UNROLL for (int i = 0; i < {}; ++i)", count);
        for (const std::string& one : temporaries) line("{}", one);
        line("{} = {};", target, value);
        close();
    }
    void tile(const Instruction& made);
    void elementwise(const Instruction& made);
    void reduce(const Instruction& made);
    void join_lanes(const Instruction& made);
    void soft_cap(const Instruction& made);
    void pack(const Instruction& made);
    /// Elements between global memory and registers, two at a time where neighbours are in
    /// registers that are `pairs` apart.
    void access(const Instruction& made);
    void elements(const Instruction& made, int pairs, const std::string& held);
    /// Text: lies all of a load inside its array, and at an even place where `pairs` are loaded?
    std::string holds_all(const Instruction& load, bool pairs) const;

    const Program& p_;
    Uses uses_;
    IndexTiles index_;
    bool chained_;
    std::map<Value, std::string> names_;
    std::map<std::string, std::string> positions_;  ///< of threads, by text
    std::vector<std::string>* temporaries_ = nullptr;
    std::map<std::pair<Value, std::string>, std::string> shared_;  ///< in temporaries
    std::vector<int> others_;
    std::set<WgmmaShape> shapes_set_;
    std::vector<WgmmaShape> shapes_;
    std::string text_;
    int depth_ = 1, counter_ = 0;
    bool producer_ = false;
    bool by_all_ = false;  ///< the producer's threads copy, too
};

}  // namespace tilewright::cuda::schedule
