// The scheduled form of a kernel, between tile IR and CUDA text: values with one layout each,
// explicit memory, channels, waits and warp roles. docs/reference/schedule.md defines it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/codegen/layout.h"
#include "ir/function.h"

namespace tilewright::cuda::schedule {

/// A program's level; each pass raises it, and `verify` checks the rules that hold from it on.
enum class Level : std::uint8_t {
    lowered,       ///< the operations of the tile IR
    selected,      ///< dots have a unit and warpgroups
    laid_out,      ///< every tile has one layout
    staged,        ///< operands of dots come through channels
    specialised,   ///< a producer and a consumer role, each in a loop over programs
    waiting,       ///< products are fenced, committed and waited for
    split,         ///< tiles are stored panel by panel
    placed,        ///< buffers and barriers have offsets
    synchronised,  ///< asynchronous reads of ordinary writes are ordered
};
inline constexpr int kNumLevels = 9;
std::string_view name(Level level);
std::optional<Level> parse_level(std::string_view text);

/// Operations. `tile` is an operation of the tile IR, named in Instruction::tile.
enum class Op : std::uint8_t {
    tile,
    // Values.
    zeros,  ///< an accumulator that keeps its registers
    fresh,  ///< an accumulator with undefined registers; `partial`: that of one iteration, which
            ///< ordinary instructions add to the sum
    pack,   ///< tile -> a 16-bit operand of wgmma in registers, two elements per register
    join_lanes,   ///< a value of rows of which each thread has a part -> the sum of the parts
    soft_cap,     ///< x, constants f, a, b -> a logistic(f x) + b, see `join_soft_caps`
    clear,        ///< acc -> the same registers, zero
    group_start,  ///< the first row or column (`axis`) of this warpgroup's part of a tile
    // Dots. Accumulators are updated in place: the result has the operand's registers.
    wgmma,         ///< acc[, accumulate][, packed a], counts; buffers a, b. See Product
    wgmma_fence,   ///< orders ordinary accesses of registers before wgmma
    wgmma_commit,  ///< closes a group of products
    wgmma_wait,    ///< accs -> accs; at most `pending` groups are unfinished
    // Channels. The count n of a channel names slot n mod slots in phase n / slots.
    count,           ///< the first count of a channel
    next,            ///< n -> n + 1
    skip,            ///< n -> n + `by`; `first`: of the second team alone, before its programs
    acquire,         ///< n: waits until the slot is empty
    publish,         ///< n: announces the bytes of the TMA loads that follow
    publish_copies,  ///< n: threads have finished their copies to the slot `lag` before n
    finish_copies,   ///< n, the next one: the same for the last `lag` slots
    await,           ///< n: waits until the slot is full
    release,         ///< n[, condition]: the slot `back` before n may be overwritten
    // Copies.
    tma_load,      ///< coordinates .., n: box of `map` to the slot of `buffer`; `multicast`: each
                   ///< block of a pair loads half of it for both
    thread_load,   ///< the same by the role's threads, in pieces of `bytes`
    share,         ///< tile -> `buffer`, which products read: rounded, each warpgroup its 64 rows
    store_shared,  ///< panel, tile: rounded to the buffer's dtype, by stmatrix, slot panel % slots
    read_panel,    ///< n -> a panel of 16-bit elements of the slot that it `reads`, by ldmatrix
    tma_store,     ///< coordinates .., panel: the slot of `buffer` to the box of `map`
    commit_stores,
    wait_stores,  ///< at most `pending` groups of stores still read shared memory
    // Order.
    fence_async,  ///< ordinary writes to shared memory before, asynchronous reads after
    group_sync,   ///< the warpgroup's threads meet
    all_sync,     ///< those of all consumer warpgroups
    // Programs without roles: all threads of a block run the same statements.
    comment,         ///< in the text
    declare,         ///< [tile] -> variables with its elements, or undefined
    assign,          ///< variables .., tiles ..: all at once
    relabel,         ///< tile -> the same in another layout; elements stay in their threads
    shuffle,         ///< tile -> the same in another layout; elements stay in their warp
    write_tile,      ///< tiles -> `writes`, row-major, one beside the other
    read_tile,       ///< -> a tile in `reads`
    narrow,          ///< tile in f32 -> its elements rounded to the result's dtype
    write_parts,     ///< value[, index]: what each warp has reduced, to `writes`
    join_parts,      ///< value[, index] -> the same registers, reduced over the warps
    write_totals,    ///< scan ..: the last elements of what each thread has scanned, to `writes`
    join_totals,     ///< scan .. -> the elements after those of other warps
    meet,            ///< the threads of all blocks of a cluster meet; `begin`: they go on, `end`:
                     ///< they wait for those that have begun
    fill_lines,      ///< -> lines in `writes`, of words that come after all others
    write_lines,     ///< tile[, lines] -> its elements as words, in lines in `writes`
    sort_lines,      ///< lines -> the same, each in order
    read_lines,      ///< lines -> a tile of the elements in order, or of their places
    print,           ///< [scalar]: thread 0 prints it, or a text
    print_tile,      ///< the same of a tile in `reads`
    copy_tile,       ///< indices ..[, slot]: a tile `to` a buffer by cp.async
    copy,            ///< variables -> their elements, which stay the same
    keep_words,      ///< tile: its words stay in registers, rather than what they are unpacked to
    targets,         ///< indices ..[, mask] -> addresses of elements, which it `writes`; 0: none
    last_writers,    ///< addresses -> which are not those of a later element in `reads`
    store_targets,   ///< addresses, which of them, tile
    write_operand,   ///< tile -> a tile in `writes`, as products read it
    shared_tile,     ///< [slot] -> a tile that has been copied to a buffer
    read_fragments,  ///< tile in shared memory -> a left operand in registers, packed
    mma,             ///< variables, a, b: adds a product by mma.sync
    multiply_add,    ///< the same by multiply-adds
    program_ids,     ///< the indices of the program, from the number of the thread block
    place_scratch,   ///< an array of the program's own: in a buffer that it `uses`, or `at` a place
                     ///< in the workspace
    scope,           ///< a, b: the block is run if a < b, by all threads alike
    loop,            ///< [low, high, step]: the block is repeated
    branch,          ///< condition: the first block is run, or else the second one
    leave,           ///< condition: ends the loop where it does not hold
    index,           ///< scalar -> the same as i64
    following,       ///< i, step[, high] -> the next one of a loop, at most high
    advance,         ///< variable, step[, high]: the same in place
    before,          ///< slot -> the one before it, of `slots`
    next_slot,       ///< variable: the slot after it, of `slots`
    operation,       ///< begins an operation of the tile IR: what that uses is alive at once
    access,          ///< what operations that follow read and write
    barrier,         ///< all threads of the block meet
    settle_copies,   ///< waits for copies where some are under way
    commit_copies,   ///< closes a group of copies
    wait_copies,     ///< at most `pending` groups of copies are under way
    issue_begin,     ///< ping-pong: waits for the issue_end of the other one of two warpgroups;
                     ///< `turn`: of independent ones, which
    issue_end,       ///< `first`: the second warpgroup alone, before the first program
    // Control.
    role,      ///< the block is run by one role's warps
    programs,  ///< init .. -> last; runs once for each program of this thread block
    panels,    ///< accs ..: for each panel of columns, with the panel's registers as arguments
};
inline constexpr int kNumOps = static_cast<int>(Op::panels) + 1;
std::string_view name(Op op);
std::optional<Op> parse_op(std::string_view text);

struct Value {
    std::uint32_t id = UINT32_MAX;
    explicit operator bool() const { return id != UINT32_MAX; }
    auto operator<=>(const Value&) const = default;
};

/// A tile or scalar, or the count of a channel.
struct ValueType {
    bool is_count = false;
    ir::Type type;
    std::optional<Layout> layout;  ///< of tiles, from level laid_out on
    bool packed = false;           ///< the result of `pack`
    bool operator==(const ValueType&) const = default;
};

/// name; name 3; name [1, 2]; name @symbol; name number-as-text; name "text".
struct Attribute {
    enum class Kind : std::uint8_t { flag, number, list, symbol, element, text };
    std::string name;
    Kind kind = Kind::flag;
    std::vector<std::int64_t> numbers;
    std::string text;  ///< of a symbol; of a constant's element; text
    bool operator==(const Attribute&) const = default;
};

struct Block;

struct Instruction {
    Op op = Op::tile;
    ir::Op tile = ir::Op::yield;
    int line = 0;  ///< of the source; 0: unknown
    std::vector<Value> operands, results;
    std::vector<Attribute> attributes;
    std::vector<Block> blocks;

    bool is(Op other) const { return op == other && op != Op::tile; }
    bool is(ir::Op other) const { return op == Op::tile && tile == other; }
    Value result() const { return results.at(0); }
    const Attribute* find(std::string_view attribute) const;
    bool has(std::string_view attribute) const { return find(attribute) != nullptr; }
    std::int64_t number(std::string_view attribute, std::int64_t otherwise = 0) const;
    const std::vector<std::int64_t>& list(std::string_view attribute) const;
    /// Of an attribute of kind symbol or text.
    const std::string& symbol(std::string_view attribute) const;
    Instruction& flag(std::string attribute);
    Instruction& with(std::string attribute, std::int64_t number);
    Instruction& with(std::string attribute, std::vector<std::int64_t> list);
    Instruction& with_symbol(std::string attribute, std::string symbol);
    Instruction& with_text(std::string attribute, std::string text);

  private:
    Attribute& add(std::string attribute, Attribute::Kind kind);
};

struct Block {
    std::vector<Value> arguments;
    std::vector<Instruction> body;
};

/// A parameter of the kernel: a global Ref, or a scalar.
struct Parameter {
    std::string name;
    bool is_ref = false;
    DType dtype = DType::f32;
    std::vector<std::int64_t> extents;     ///< of a Ref, kDynamic allowed
    bool vectors = false, tensor = false;  ///< as in RefFacts
    bool dense = false;                    ///< likewise
    int copy_bytes = 0;                    ///< likewise
    bool scratch = false;                  ///< memory of the program's own
    Value value;                           ///< of a scalar
};

/// Shared memory: slots of a tile, whose rows are cut into panels of 128 bytes with 128-byte
/// swizzle; in programs without roles, so many bytes.
struct Buffer {
    std::string name;
    DType dtype = DType::bf16;
    std::int64_t rows = 0, columns = 0;  ///< as in memory: columns are contiguous
    int slots = 1;
    bool per_group = false;  ///< each consumer warpgroup has one of its own
    std::int64_t offset = -1;
    std::string purpose;  ///< for messages

    std::int64_t panel() const { return 128 / size_of(dtype); }  ///< columns
    std::int64_t slot_bytes() const { return rows * columns * size_of(dtype); }
};

/// The tensor map of a Ref, and the box of one copy.
struct Map {
    std::string name, ref;
    std::vector<std::int64_t> box;  ///< one extent per dimension of the Ref
};

/// A ring of slots, each with a tile of each of its buffers.
struct Channel {
    std::string name;
    std::vector<std::string> buffers;
    int slots = 1;
    std::int64_t bytes = 0;   ///< of a slot
    std::int64_t copied = 0;  ///< the part of them that threads copy; TMA loads the rest
    int empty_arrivals = 0;   ///< warps that release a slot
    std::int64_t full = -1, empty = -1;
};

/// Warps that run one block of the program.
struct Role {
    std::string name;
    int first_warp = 0, warps = 0;
    int registers = 0;  ///< per thread; 0: as at entry
    bool one = false;   ///< a single one of their threads
};

/// The order of a grid's tiles: groups of rows of tiles share what L2 holds.
struct TileOrder {
    std::vector<int> rows, columns;  ///< grid axes; the others are outermost
    int group = 8;
    /// Axes that the operands of the loops do not depend on: programs that differ only in these are
    /// consecutive, so that they find the same operands in L2.
    std::vector<int> inner;
    /// Programs differ in length, the last along `inner` first, and go side by side with others of
    /// their length (`unequal_order`): those at the end of the grid have thread blocks of their
    /// own.
    bool unequal = false;
    /// Their lengths depend on what is loaded, too: each program has its own thread block.
    bool irregular = false;
};

/// Clusters of thread blocks with tiles beside each other, which load once what two of them read.
enum class Pairs : std::uint8_t {
    none,
    rows,     ///< tiles of two rows: both read the same right operand
    columns,  ///< of two columns: the same left operand
    both,     ///< of two rows and two columns: each shares an operand with two others
};
std::string_view name(Pairs pairs);

/// Rows and columns of a tile that warpgroups multiply, and which thread blocks share operands.
struct Tile {
    std::int64_t rows = 128, columns = 256;
    Pairs pairs = Pairs::none;
    /// Two warpgroups have whole tiles in turn: one multiplies while the other one stores.
    bool turns = false;
    bool operator==(const Tile&) const = default;
};

/// One way to schedule a product.
struct Choice {
    Tile tile;
    int group = 8;           ///< rows of tiles that share what L2 holds
    int stages = 0;          ///< slots of the ring; 0: what the kernel's hint asks for
    std::int64_t parts = 1;  ///< of the inner dimension, see `split_product`
    bool operator==(const Choice&) const = default;
};

struct Program {
    std::string name, arch;
    Level level = Level::lowered;
    std::vector<Parameter> parameters;
    std::vector<std::int64_t> grid;
    std::vector<int> groups;  ///< consumer warpgroups along rows and columns
    int blocks = 1;           ///< of a cluster, which share a program; without roles
    int turns = 1;            ///< so many times these warpgroups, which have programs alternately
    TileOrder order;
    Pairs wanted_pairs = Pairs::none;  ///< until `pair_blocks`
    Pairs pairs = Pairs::none;
    std::vector<Buffer> buffers;
    std::vector<Map> maps;
    std::vector<Channel> channels;
    std::vector<Role> roles;
    std::int64_t shared_bytes = 0;
    int stages = 0;           ///< requested by the caller; 0: none
    bool mark_lines = false;  ///< as in Target
    Block body;

    Value add(ValueType type, std::string hint = "");
    const ValueType& type(Value value) const { return values_.at(value.id).type; }
    ValueType& type(Value value) { return values_.at(value.id).type; }
    const std::string& value_name(Value value) const { return values_.at(value.id).name; }
    std::size_t num_values() const { return values_.size(); }
    bool is_tile(Value value) const {
        return !type(value).is_count && !type(value).type.is_scalar();
    }

    /// Of all blocks that share a program.
    int warps() const;
    int cluster() const { return pairs == Pairs::none ? blocks : pairs == Pairs::both ? 4 : 2; }
    bool pairs_rows() const { return pairs == Pairs::rows || pairs == Pairs::both; }
    bool pairs_columns() const { return pairs == Pairs::columns || pairs == Pairs::both; }
    /// Thread blocks that write to a block's slots, with itself.
    int sharers() const { return 1 + (pairs_rows() ? 1 : 0) + (pairs_columns() ? 1 : 0); }
    /// Those that compute a program together, and all of them.
    int consumer_groups() const { return groups.empty() ? 0 : groups[0] * groups[1]; }
    int all_consumer_groups() const { return consumer_groups() * turns; }
    const Buffer& buffer(std::string_view called) const;
    const Map& map(std::string_view called) const;
    const Channel& channel(std::string_view called) const;
    Channel& channel(std::string_view called);
    /// The channel that a buffer belongs to.
    const Channel& channel_of(std::string_view buffer) const;
    const Role& role(std::string_view called) const;
    const Parameter& ref(std::string_view called) const;

  private:
    struct Info {
        ValueType type;
        std::string name;
    };
    std::vector<Info> values_;
    std::set<std::string> names_;
};

/// Calls `visit(instruction)` for every instruction, outer before inner.
template <typename BlockType, typename Visitor>
void each_instruction(BlockType& block, Visitor&& visit) {
    for (auto& made : block.body) {
        visit(made);
        for (auto& inner : made.blocks) each_instruction(inner, visit);
    }
}

/// A program that this form cannot schedule; the text says why.
class Refused : public std::exception {
  public:
    explicit Refused(std::string reason) : reason_(std::move(reason)) {}
    const char* what() const noexcept override { return reason_.c_str(); }

  private:
    std::string reason_;
};

/// Text that print(parse(text)) reproduces.
std::string print(const Program& program);
/// UserError with line and column where the text is not a program.
Program parse(std::string_view text);

/// Checks the rules of docs/reference/schedule.md that hold at the program's level. Returns the
/// first broken one, "V6: ..", or nothing.
std::optional<std::string> broken_rule(const Program& program);

/// Why thread blocks cannot share the programs; nothing where they can.
std::optional<std::string> broken_sharing(const Program& program);

/// Asserts that no rule is broken; prints the program where TILEWRIGHT_DEBUG_PASSES is 1.
void check(const Program& program);

/// The parts of a wgmma.
struct Product {
    explicit Product(const Instruction& made);
    Value accumulator;
    std::optional<Value> condition;  ///< whether to add
    std::optional<Value> registers;  ///< a, where it is no buffer
    std::optional<Value> count_a;    ///< of the channel that a comes through; none: shared
    Value count_b;
};
/// The warpgroups along rows and columns of a product: the program's, or its own.
std::vector<int> groups_of(const Program& program, const Instruction& product);
/// The channels that a product, `read_fragments` or `read_panel` reads slots of.
std::set<std::string> channels_of(const Program& program, const Instruction& product);
/// Does a product depend on another one, as in attention?
bool is_chained(const Program& program);
/// Do warps have roles, as in kernels with wgmma, from `warp_specialise` on? Otherwise all threads
/// of a block do the same.
bool has_roles(const Program& program);
/// The n-th attribute of a kind, a symbol: @b of `writes @a writes @b` is 1.
const std::string& nth_symbol(const Instruction& made, std::string_view attribute, int n);
/// How a `reduce`, `scan` or `join_parts` combines elements.
ir::Reduction reduction_of(const Instruction& made);
/// Does an operation update variables, so that results have the operands' registers?
inline bool is_in_place(const Instruction& made) {
    return made.is(Op::join_parts) || made.is(Op::join_lanes);
}
/// Does a reduction give the place of an extreme element?
inline bool gives_index(ir::Reduction kind) {
    return kind == ir::Reduction::argmax || kind == ir::Reduction::argmin;
}

/// The dtype in which elements are combined: narrow floats are f32 in registers.
inline DType combined_dtype(DType dtype) {
    return is_float(dtype) && size_of(dtype) <= 2 ? DType::f32 : dtype;
}
/// Is the result an operand of products in shared memory?
inline bool is_operand_in_memory(const Instruction& made) {
    return made.is(Op::write_operand) || made.is(Op::shared_tile);
}
/// Is the result lines in shared memory, which are sorted there?
inline bool is_lines(const Instruction& made) {
    return made.is(Op::fill_lines) || made.is(Op::write_lines) || made.is(Op::sort_lines);
}
/// Does an instruction have attributes that say what memory it accesses?
bool is_access(const Instruction& made);
/// The type of the elements of a tile in the buffer to which it is written, or from which it is
/// read.
DType dtype_in_memory(const Program& program, const Instruction& made, Value tile);
/// In the `index` of an access: by an index tile, in the shape of the result.
inline constexpr std::int64_t kGathered = -1;
/// Likewise: a slice without elements.
inline constexpr std::int64_t kEmpty = -2;
/// Is an instruction a load by index tiles?
bool is_gather(const Instruction& made);
/// Is each element of a result computed from the operands' elements at the same place?
inline bool is_pointwise(ir::Op op) {
    return ir::is_elementwise(op) || op == ir::Op::random_bits;
}

/// An instruction of the given kind.
Instruction make(Op op, std::vector<Value> operands, std::vector<Value> results = {});
Instruction make(ir::Op op, std::vector<Value> operands, std::vector<Value> results = {});
/// Is a cast free, because narrow floats are f32 in registers?
bool is_free_cast(const Program& program, const Instruction& made);
/// An operation of the tile IR with its attributes, without its operands. That of an `extent` has
/// no Ref yet.
Instruction tile_instruction(const ir::Function& function, const ir::Instruction& made);
/// The attribute of a `constant`.
Attribute element_attribute(DType dtype, std::uint64_t bits);
/// Appends a scalar computed from scalars of type i64.
Value append_scalar(Program& program, Block& block, ir::Op op, std::vector<Value> operands);
Value append_constant(Program& program, Block& block, std::int64_t value);
/// Copies the instructions of a block that `keep` accepts to the end of another, with new values
/// for their results; `copies` maps old values to new ones and is extended.
void clone(Program& program, const Block& from, Block& to, std::map<Value, Value>& copies,
           const std::function<bool(const Instruction&)>& keep);
/// Removes tile operations without effects whose results are unused.
void remove_unused(Program& program);
/// Replaces every use of a value inside a block.
void replace(Block& block, Value old, Value by);
/// The same in one instruction and its blocks.
void replace(Instruction& made, Value old, Value by);
/// The layout of the accumulator of a product of `groups` warpgroups (PTX ISA, wgmma, m64nNk16).
/// Where a warpgroup has 128 rows, registers of its second 64 follow those of the first in each
/// panel of 64 columns.
Layout accumulator_layout(const ir::Shape& shape, const std::vector<int>& groups);
/// How a program's sums lie in registers.
enum class Sums : std::uint8_t {
    plain,      ///< as those of products of two operands in shared memory, `accumulator_layout`
    fragments,  ///< their rows in the order of left operands that `read_fragments` reads
    swapped,    ///< likewise, and the product is computed as its transpose: (a b)^T = b^T a^T
};
Sums sums_of(const Program& program);
/// The layout of sums of this program, of all products' shape or of some of its rows or columns.
Layout sums_layout(const Program& program, const ir::Shape& shape, const std::vector<int>& groups);
/// Of a left operand of tf32 in registers, rows by inner dimension (PTX ISA, wgmma, m64nNk8).
Layout fragments_layout(const Program& program, const ir::Shape& shape);
/// The axis of sums along the columns of wgmma, which a thread has many of: 1, or 0 where swapped.
inline int columns_axis(Sums sums) {
    return sums == Sums::swapped ? 0 : 1;
}
/// The buffers of a product's left and right operand, as the tile IR has them.
std::pair<std::string, std::string> operand_buffers(const Program& program,
                                                    const Instruction& product);

}  // namespace tilewright::cuda::schedule
