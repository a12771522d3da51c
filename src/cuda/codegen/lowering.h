// What is known while a kernel becomes a program without roles: which value has which layouts, and
// where statements go.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <initializer_list>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/codegen/generate.h"
#include "cuda/codegen/kernel_facts.h"
#include "cuda/codegen/layout.h"
#include "cuda/codegen/plan.h"
#include "cuda/schedule/program.h"

namespace tilewright::cuda {

/// A tile in registers.
struct Held {
    Layout layout;
    schedule::Value value;
};

/// A tile in shared memory, in rows along the last axis, swizzled in groups of `group` bytes.
struct SharedTile {
    schedule::Value value;  ///< what products read
    int buffer = -1;
    ir::Shape shape;
    DType dtype = DType::f32;
    std::int64_t row_bytes = 0;
    std::int64_t group = 16;
};

/// A left operand of products that is in registers, packed.
struct Fragments {
    ir::Value value;
    bool transposed;
    Held held;
};

/// Values known in a block and in those inside of it.
struct Scope {
    std::map<ir::Value, std::vector<Held>> held;
    std::map<ir::Value, SharedTile> shared;
    std::vector<Fragments> fragments;
};

/// A load that the loop being lowered issues an iteration ahead.
struct Prefetched {
    const ir::Instruction* loop = nullptr;
    bool in_words = false;  ///< of 16 bytes; else element by element
    Held next, now;         ///< of the next iteration and of this one
};

/// What each warp has reduced and written to shared memory.
struct WarpParts {
    const ir::Instruction* reduce;
    Layout layout;
    std::vector<schedule::Value> values;  ///< for argmax and argmin, the indices, too
    std::vector<std::int64_t> warps;      ///< bits of their number, along the axis
    std::vector<int> buffers;
};

/// The context of the functions lower_*: what they read, and what they have written so far. All
/// decisions that the tile IR allows are in the plan.
struct Lowering {
    /// `in_workspace`: scratch is in global memory. `shared_by`: blocks of a cluster, which have
    /// the warps together.
    Lowering(const KernelFacts& kernel_facts, const Plan& kernel_plan, const Target& kernel_target,
             bool in_workspace, int shared_by);

    const ir::Function& function;
    const Target& target;
    const KernelFacts& facts;
    const Plan& plan;
    int warps = 4;
    bool workspace = false;

    // ---- Statements.

    schedule::Program program;
    std::vector<schedule::Block*> blocks;  ///< being written, outermost first
    std::string buffers_for = "scratch";   ///< the use of buffers that are added now
    int counter = 0;

    schedule::Instruction& append(schedule::Op op);
    schedule::Instruction& append(schedule::Instruction made) {
        return blocks.back()->body.emplace_back(std::move(made));
    }
    template <typename... Args>
    void comment(fmt::format_string<Args...> format, Args&&... args) {
        append(schedule::Op::comment)
            .with_text("text", fmt::format(format, std::forward<Args>(args)...));
    }
    /// A block and a scope of names; loops and branches run it any number of times.
    schedule::Block& open(schedule::Instruction made);
    void open_else();
    void close();
    void begin_operation(std::string_view name);
    std::string fresh(const char* prefix) { return fmt::format("{}{}", prefix, counter++); }

    // ---- Values.

    std::vector<Scope> scopes;
    std::map<ir::Value, schedule::Value>
        packed;                     ///< loads whose elements are unpacked at their use
    std::set<ir::Value> forgotten;  ///< computed again at their use
    std::map<ir::Value, Prefetched> prefetched;
    const ir::Block* block = nullptr;           ///< being lowered
    std::vector<WarpParts> unread;              ///< of that block
    std::set<const ir::Instruction*> streamed;  ///< loads that the loop being lowered copies

    const ir::Type& type(ir::Value value) const { return facts.type(value); }
    Layout home(ir::Value value) const { return home_of(facts, plan.layouts, value); }
    Layout scalar_layout() const { return Layout(ir::Shape(), warps); }
    /// Elements held in some layout, or none.
    const Held* find(ir::Value value) const;
    const Held* find(ir::Value value, const Layout& layout) const;
    void hold(ir::Value value, Held held);
    /// Variables with the elements of a value, or undefined ones.
    Held declare(const std::string& name, const Layout& layout, DType dtype,
                 schedule::Value init = {});
    /// All at once.
    void assign(std::span<const Held> variables, std::span<const schedule::Value> values);
    /// A value of the program.
    schedule::Value add(std::string name, const Layout& layout, DType dtype);
    /// The result of an operation that has just been appended; without a name where it needs no
    /// variable.
    Held result_of(schedule::Instruction& made, std::string name, const Layout& layout,
                   DType dtype);

    // ---- Memory.

    /// A buffer of so many bytes in shared memory.
    int buffer(std::int64_t bytes);
    /// What follows accesses buffers: "reads", "writes", "copies" (asynchronously) or
    /// "uses".
    void access_shared(const char* how, std::initializer_list<int> ids);
    void access_global(ir::Value ref, bool write);
    /// Copies under way are waited for here, up to the last `pending` groups.
    void settle_copies(int pending = 0);
    /// The totals of scans go to buffers of all blocks of the cluster: attributes of what writes
    /// and reads them, and the buffer, with one half for every other exchange.
    int exchange_buffer(std::int64_t bytes);
    /// All blocks of the cluster have begun, before the first exchange.
    void await_blocks();
    bool blocks_begin = false;   ///< they have arrived, but not waited
    std::vector<int> exchanged;  ///< the buffers
    /// A buffer is in use, without another access.
    void touch(int id) { access_shared("uses", {id}); }
};

std::string buffer_name(int id);

}  // namespace tilewright::cuda
