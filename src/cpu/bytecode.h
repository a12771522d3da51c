// The bytecode of the tile machine: where tiles are and what instructions do to them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "cpu/simd/kernels.h"
#include "ir/function.h"
#include "support/integer.h"

namespace tilewright::cpu {

/// Lanes of a panel, the unit in which tiles are stored and computed.
inline constexpr std::int64_t kPanelLanes = 64;

/// Elements of a strip: 16 rows of a panel, so that a chain's temporaries stay in the L1 cache.
inline constexpr std::int64_t kStripElements = 16 * kPanelLanes;

/// Lanes that neighbouring programs may scan together, down their rows.
inline constexpr std::int64_t kScannedLanes = 4096;

/// One number for each axis of a tile.
using Coordinates = std::array<std::int64_t, ir::kMaxTileRank>;

/// The same number for every axis.
template <typename T>
constexpr std::array<T, ir::kMaxTileRank> every_axis(T value) {
    std::array<T, ir::kMaxTileRank> result{};
    result.fill(value);
    return result;
}

/// What the address of an operand is relative to.
enum class Home : std::uint8_t {
    none,
    buffer,    ///< a tile buffer in the arena of the running thread
    constant,  ///< read-only data of the program; `index` is a byte offset
    slot,      ///< a scalar register
    view,      ///< a rectangle of a global array, its pointer and strides known at run time
    strip,     ///< a temporary of a strip chain, live for one strip only
};

/// Where the elements of a tile value are. Element c is at the sum over axes of c[a] * stride[a],
/// except along the lane axis of a panel-major tile: lane l is at (l / width) * panel_stride + l %
/// width. Broadcast axes have stride 0.
struct Tile {
    Home home = Home::none;
    std::uint32_t index = 0;
    DType dtype = DType::f32;
    ir::Shape shape;
    std::int64_t offset = 0;  ///< elements
    Coordinates stride{};
    int lane_axis = -1;  ///< -1: no panels, plain strides
    std::int64_t width = kPanelLanes;
    std::int64_t panel_stride = 0;
    /// home == view: which axis of the view this axis walks along, -1 for a broadcast one.
    std::array<int, ir::kMaxTileRank> view_axis = every_axis(-1);
    int unit_axis = -1;  ///< home == view: the axis of the view that has stride 1
    /// home == view: elements are words, each of `group` elements of the array along unit_axis (see
    /// LoadView::group).
    int group = 1;
};

/// An operand of a strip: a Tile as panels x rows x lanes.
struct StripSource {
    Home home = Home::none;
    std::uint32_t index = 0;
    DType dtype = DType::f32;
    std::int64_t offset = 0;  ///< elements, like the strides
    std::int64_t panel_stride = 0;
    std::int64_t row_stride = 0;
    std::int64_t lane_stride = 0;
    /// home == view: the axis of the view that gives the row stride; -1: every row is the same.
    int view_row_axis = -1;
    int view_lane_axis = -1;  ///< home == view: the axis of the view that lanes walk along

    bool operator==(const StripSource&) const = default;
};

// ---- Instructions.

struct ScalarOp {
    ir::Op op = ir::Op::add;
    DType dtype = DType::i64;  ///< of the operands
    StripFunction function = nullptr;
    std::array<std::uint32_t, 3> in{};
    int num_inputs = 0;
    std::uint32_t out = 0;
};

struct ScalarMove {
    std::uint32_t from = 0, to = 0;
};

/// program_id, num_programs and extent.
struct ScalarQuery {
    ir::Op op = ir::Op::program_id;
    int axis = 0;
    std::uint32_t ref = 0;
    std::uint32_t out = 0;
};

struct Jump {
    std::size_t target = 0;
};

struct JumpUnless {
    std::uint32_t condition = 0;
    std::size_t target = 0;
};

/// Jumps to `target` (after the loop) when iv >= hi. estimate_cost counts the trips here.
struct LoopTest {
    std::uint32_t iv = 0, hi = 0, step = 0;
    std::size_t target = 0;
};

struct LoopNext {
    std::uint32_t iv = 0, step = 0;
    std::size_t target = 0;  ///< the LoopTest
};

/// A run of operations that one kernel does (Superinstructions in simd/kernels.h).
enum class Super : std::uint8_t {
    none,
    exp2_sum,
    exp2_sum_pairs,
    round_pairs,  ///< a cast to bf16 that writes pairs of rows
    mul_sub_mul,
    softcap,
    affine_add,
    affine_select
};

/// What listings and profiles say of a superinstruction, in the order of Super.
struct SuperInfo {
    std::string_view name;
    double flops;  ///< float operations per element, without its reduction
};
inline constexpr SuperInfo kSuperInfo[] = {
    {"", 0},
    {"exp2_sum", 3},
    {"exp2_sum_pairs", 3},
    {"round_pairs", 0},
    {"mul_sub_mul", 3},
    {"softcap", 4},
    {"affine_add", 3},
    {"affine_select", 0},
};
static_assert(std::size(kSuperInfo) == static_cast<std::size_t>(Super::affine_select) + 1);

/// constant + sum of coefficient * scalar + row * r + lane * l, over the elements of a space.
struct Affine {
    struct Term {
        std::uint32_t slot = 0;
        DType dtype = DType::i64;
        std::int64_t coefficient = 1;
    };
    std::vector<Term> terms;
    std::int64_t constant = 0;
    std::int64_t row = 0, lane = 0;
    /// Values of 32 bits that may wrap around, which the form does not: the two that it compares,
    /// or the one that it stands for. With `strict`, the first has to be greater than the second,
    /// and otherwise at least as great.
    std::vector<Affine> words;
    bool strict = false;
};

/// One operation of a strip chain.
struct StripOp {
    enum class Kind : std::uint8_t { map, reduce_rows, reduce_lanes, scan_rows, scan_lanes };
    Kind kind = Kind::map;
    ir::Op op = ir::Op::add;
    ir::Reduction reduction = ir::Reduction::sum;
    StripFunction function = nullptr;
    std::array<StripSource, 4> in{};
    int num_inputs = 0;
    StripSource out;
    /// Superinstructions: optional sums or maxima over rows, lane by lane. Scans: the running
    /// combination, one element for each lane or row.
    StripSource sum;
    Super super = Super::none;
    std::uint64_t identity = 0;  ///< reductions: bits of the initial element
    std::array<double, 4> immediate{};
    Affine affine;           ///< affine superinstructions: gives the first three immediates
    bool padded = false;     ///< all tile operands and the result have padded rows
    std::uint32_t line = 0;  ///< of the user's source: an index in Program::locations
    // A store copies in[0], where in[1] is true, to a view set by StoreView.
    std::int64_t stored_ref = -1;    ///< the Ref it writes to; -1: no store
    StripFunction stream = nullptr;  ///< the same with non-temporal stores
    int writer = -1;                 ///< the op that can write there directly; -1: none

    bool scans() const { return kind == Kind::scan_rows || kind == Kind::scan_lanes; }
    /// True for ops that give an element for each one of their operands: a strip needs no other
    /// strip, except that scans need those before it.
    bool makes_tile() const { return kind == Kind::map || scans(); }
    /// True for ops that write rows in pairs: their strips have an even number of rows.
    bool writes_pairs() const {
        return super == Super::exp2_sum_pairs || super == Super::round_pairs;
    }
    /// True for superinstructions whose first three immediates are those of `affine`.
    bool is_affine() const { return super == Super::affine_select || super == Super::affine_add; }

    const SuperInfo& super_info() const { return kSuperInfo[static_cast<std::size_t>(super)]; }
    std::string_view name() const {
        return super == Super::none ? ir::name(op) : super_info().name;
    }
};

/// Ops [first, last) of a chain as steps on blocks of lanes; lanes that fill no whole block are
/// left to the ops themselves.
struct FusedRun {
    static constexpr int kMaxTemporaries = 16;

    /// Input `input` of op `op`, its result (-1), or a block of memory kept between steps.
    struct Operand {
        std::size_t op = 0;
        int input = -1;
        int temporary = -1;
    };
    std::size_t first = 0, last = 0;
    std::vector<FusedStep> steps;
    std::vector<FusedShape> shapes;  ///< of all steps but the last, which ends the run
    /// Does all steps in one function; nullptr where none was compiled.
    void (*compiled)(const FusedCall& call) = nullptr;
    std::vector<Operand> operands;
    std::vector<Affine> forms;
    std::vector<std::size_t> reductions;  ///< ops
    std::vector<std::size_t> prefetches;  ///< operands in views whose next rectangle is prefetched
    int num_temporaries = 0;
    /// All operands of the chain have contiguous panels, which may be run as one.
    bool joins_panels = false;
    /// Repeating lanes changes nothing: lanes after the last whole block may be done together with
    /// lanes before them. Known once buffers have their offsets.
    bool repeats = false;

    /// A form compared with 0 (ge, eq, ne), or what joins the two results before it (bitwise_and,
    /// bitwise_or, bitwise_xor).
    struct RangeTest {
        ir::Op op = ir::Op::ge;
        Affine form;
    };
    /// Conditions of selects, tests in postfix order each, and the run for every combination of
    /// their results (bit i is that of condition i). Where many lanes have the same results, these
    /// do the work: they do not read what is not selected.
    std::vector<std::vector<RangeTest>> conditions;
    std::vector<FusedRun> by_conditions;
};

/// Operations over one panels x rows x lanes space, executed strip by strip.
struct Chain {
    static constexpr std::size_t kMaxOps = 64;
    std::int64_t rows = 1, lanes = 1, width = kPanelLanes;
    std::int64_t strip_rows = 1;
    std::uint32_t num_temporaries = 0;  ///< strip-local values
    /// The order in which scans need the rows of a panel and the panels of a row.
    enum class Order : std::uint8_t { any, forward, backward };
    Order row_order = Order::any, lane_order = Order::any;
    std::vector<StripOp> ops;
    std::vector<FusedRun> fused;  ///< in order

    /// True when the ops of both may go through a space together.
    bool agrees(const Chain& other) const {
        const auto agree = [](Order a, Order b) {
            return a == b || a == Order::any || b == Order::any;
        };
        return agree(row_order, other.row_order) && agree(lane_order, other.lane_order);
    }
    /// Also adopts the order that `other` needs.
    void follow(const Chain& other) {
        row_order = std::max(row_order, other.row_order);
        lane_order = std::max(lane_order, other.lane_order);
    }
};

/// Reduction along a row axis that has further row axes around it.
struct ReduceRows {
    ir::Reduction reduction = ir::Reduction::sum;
    StripFunction function = nullptr;
    StripSource in, out;
    std::int64_t outer = 1, extent = 1, inner = 1;
    std::int64_t lanes = 1, width = kPanelLanes;
    std::uint64_t identity = 0;
};

/// argmax and argmin.
struct ArgReduce {
    ir::Reduction reduction = ir::Reduction::argmax;
    int axis = 0;
    Tile in, out;
};

/// A scan along a row axis that has further row axes around it.
struct ScanRows {
    ir::Reduction reduction = ir::Reduction::sum;
    StripFunction function = nullptr;
    bool reverse = false, exclusive = false;
    StripSource in, out, carried;  ///< carried: one element a lane of a panel
    std::int64_t outer = 1, extent = 1, inner = 1;
    std::int64_t lanes = 1, width = kPanelLanes;
    std::uint64_t identity = 0;
};

/// A scan with the user's function. Rows of the values combined so far and of those that come next
/// make the rows combined with these. Down rows, lanes are combined side by side. Along lanes, so
/// many elements of kSegments segments are transposed, and segments combined side by side.
struct CombineScan {
    static constexpr std::int64_t kSegments = 64, kSteps = 32;
    /// Most operands, and bytes of temporaries for one value, of an op that runs by itself.
    static constexpr std::size_t kMaxValues = 8;
    static constexpr std::int64_t kTemporaryLanes = 128;
    /// Elements of work memory for each value: rows, a line, totals and a segment.
    static constexpr std::int64_t kRowElements = 4096, kLineElements = 3072;
    static constexpr std::int64_t kWork =
        kRowElements + kLineElements + 6 * kSegments + kSteps + 4 * 64;
    static_assert((kSteps + 2) * kSegments <= kRowElements);
    static_assert(kSteps * kSegments <= kLineElements);

    /// One row of ops, the last of which store the results. Operands by home: buffers 0 to n - 1
    /// are what comes before, n to 2n - 1 what comes after, further ones temporaries; slots are
    /// those of the program; view i is result i. `last` makes only results that are kept, and
    /// `in_turn` these and what they need from element to element.
    Chain combine, last, in_turn;
    std::vector<bool> carried;  ///< the results of `in_turn`
    /// Scans rows in registers (simd/scan_compiler.h); nullptr where there is no such code. What it
    /// broadcasts are the elements in these slots.
    void (*in_registers)(void* arguments) = nullptr;
    /// The same down rows: along them, and for columns of some lanes.
    void (*down_rows)(void* arguments) = nullptr;
    void (*down_columns)(void* arguments) = nullptr;
    std::int64_t column_lanes = 0;
    std::vector<std::uint32_t> splats;
    std::uint32_t num_temporaries = 0;
    std::vector<std::uint32_t> captured;    ///< slots
    std::vector<StripSource> in, out;       ///< out of home none: nothing reads it
    std::vector<std::int64_t> stored_refs;  ///< the Refs that results in views are in
    std::vector<StripFunction> transpose, stream;
    bool along_lanes = false, reverse = false;
    std::int64_t outer = 1, extent = 1, inner = 1;  ///< rows; along lanes, there are outer * extent
    std::int64_t lanes = 1, width = kPanelLanes;
    Tile work;  ///< bytes
};

/// Lines along an axis in order, or the first elements of them.
struct SortLines {
    SortFunction function = nullptr;
    int axis = 0;
    bool descending = false;
    Tile in;           ///< lines whose elements lie side by side
    Tile out, places;  ///< likewise; home none: not wanted
    Tile work;         ///< sort_work(length) bytes
};

/// out[start + c] = in[start + c * step] for c in `box`; dtypes agree.
struct Move {
    ir::Shape box;
    Tile in, out;
    Coordinates in_start{}, in_step = every_axis<std::int64_t>(1), out_start{};
    bool whole = true;  ///< every element of `out` is written
};

/// out[c] = in[c, i], where i is the integer of a slot; 0 if `in` has no such index. Zeros are
/// positive.
struct Pick {
    Tile in, out;
    std::uint32_t at = 0;
    DType dtype = DType::i64;  ///< of the slot: i32 or i64
};

/// Groups rows, (batch, k, lanes) to (batch, k / group, lanes) of u32: pairs of bf16 (or of f32,
/// rounded) or i16, quads of bytes.
struct Interleave {
    StripFunction function = nullptr;
    Tile in, out;   ///< with contiguous lanes
    int kept = -1;  ///< which of Program::kept has its results; -1: only `out` has
};

/// result (+)= a * b, lanes of the result along n (b is the vector operand) or m (a is).
struct Dot {
    DType dtype = DType::f32;    ///< of the result
    DType element = DType::f32;  ///< of the operands, whose words may hold several along k
    std::int64_t batch = 1, m = 1, n = 1, k = 1;
    /// The broadcast operand (batch, row, k), the vector operand (batch, k, lane) and the result
    /// (batch, row, lane), with axes in this order, rank 3.
    Tile broadcast, vector, out;
    bool accumulate = false;
    /// Factors that the old result is multiplied by before products are added, one for each lane or
    /// each row, in the axes of the result, with stride 1 along their own. Home none: no factors.
    Tile scale;
    /// Gets the maximum of the rows of the result, lane by lane. Home none: nothing does.
    StripSource maxima;
    /// Elements of the result where one of these forms is negative are not read, and may be left
    /// as they are (see find_unread).
    std::vector<Affine> unread;
    bool by_rows = false;  ///< the vector operand is contiguous along k, not along the lanes
    GemmFunction function = nullptr;
    /// The operand is an Interleave's that has this `kept`.
    int kept_broadcast = -1, kept_vector = -1;
    std::int64_t stored_ref = -1;  ///< the array that `out`, a view set by StoreView, is in

    /// Large dots work on blocks of kBlockRows rows and kBlockDepth steps of k, and copy blocks of
    /// an array with distant rows to these buffers. Home none: the dot is small, or the operand is
    /// not in an array. Copied rows are padded so that they are not a power of two apart again.
    static constexpr std::int64_t kBlockRows = 128, kBlockDepth = 256, kGap = 16;
    Tile packed_broadcast, packed_vector;
};

/// One dimension of a Ref in an access.
struct AccessIndex {
    ir::Index::Kind kind = ir::Index::Kind::scalar;
    std::uint32_t slot = 0;  ///< i64: the index or the start of the slice
    Tile tile;               ///< kind == tile
    int tile_axis = 0;       ///< the axis of the access that is the tile's axis 0
    int axis = 0;            ///< kind == slice: axis of the access
    std::int64_t stride = 1;
};

/// A rectangle (or gather) of a Ref.
struct Access {
    std::uint32_t ref = 0;
    DType dtype = DType::f32;
    ir::Shape shape;
    std::vector<AccessIndex> indices;
    bool gathers = false;
};

/// Copies a rectangle into a tile; elements outside the array keep or take `other`. With a factor,
/// a gather from a row makes sums instead, over the lanes of its last axis, and no tile.
struct Load {
    Access access;
    Tile out;
    Tile other;  ///< home none: zero
    StripFunction transpose = nullptr;
    StripSource factor;  ///< f32; home none: the elements are copied
    StripSource sum;     ///< of the elements times the factors, for each row
};

/// Sets a view to the rectangle itself, or to a copy in a tile when the rectangle leaves the array,
/// does not have stride 1 along `unit_axis`, or has rows further than kFarRows apart and is read
/// often enough to be worth packing.
struct LoadView {
    static constexpr std::int64_t kFarRows = 2048;  ///< bytes; farther rows cost a TLB entry each

    Access access;
    std::uint32_t view = 0;
    int unit_axis = -1;  ///< -1: any strides will do
    bool packs_far_rows = false;
    int group = 1;  ///< elements that are read as one aligned word of 32 bits
    Tile copy;
    Tile other;
    /// The enclosing loop, whose next iteration reads the next rectangle.
    bool in_loop = false;
    std::uint32_t iv = 0, hi = 0, step = 0;
};

/// Sets a view to a part of another one: elements start[a] + n * step[a] of axis a.
struct SubView {
    std::uint32_t from = 0, view = 0;
    int element = 4;  ///< bytes
    Coordinates start{}, step = every_axis<std::int64_t>(1);
};

struct Store {
    Access access;
    Tile value;
    Tile mask;  ///< home none: all true
    StripFunction transpose = nullptr;
    std::int64_t view = -1;  ///< a view: nothing to do when it is in the array itself
};

/// Sets a view to the rectangle that a chain or dot stores to, or to a tile that a Store then
/// copies there when the rectangle leaves the array or does not have stride 1 along `unit_axis`.
struct StoreView {
    /// Arrays that the program only writes get non-temporal stores if they have at least a quarter
    /// of the size of the last-level cache (4 MiB at least, and this at most).
    static constexpr std::int64_t kStreamedBytes = std::int64_t{32} << 20;

    Access access;
    std::uint32_t view = 0;
    int unit_axis = 0;
    Tile copy;           ///< home none: the chain skips its store and the Store does it
    bool loads = false;  ///< the copy gets the rectangle's elements, to which a dot adds
};

struct Atomic {
    ir::Op op = ir::Op::atomic_add;
    Access access;
    Tile value, desired, mask;
    Tile out;  ///< old values; home none when nothing reads them
};

struct Print {
    std::string text;
    std::vector<Tile> operands;
};

struct View;

/// Does the next `count` instructions, which are on small tiles and scalars, as machine code.
struct MachineCode {
    void (*function)(std::byte* arena, std::uint64_t* slots, const std::byte* constants,
                     const View* views) = nullptr;
    std::size_t count = 0;
};

struct Halt {};

using Instruction =
    std::variant<ScalarOp, ScalarMove, ScalarQuery, Jump, JumpUnless, LoopTest, LoopNext, Chain,
                 ReduceRows, ScanRows, CombineScan, ArgReduce, SortLines, Move, Pick, Interleave,
                 Dot, Load, LoadView, SubView, StoreView, Store, Atomic, Print, MachineCode, Halt>;

/// A tile buffer. Offsets are bytes in the arena, and may be equal where lifetimes do not overlap.
struct Buffer {
    std::int64_t bytes = 0;
    std::int64_t offset = 0;
};

/// A Ref of the kernel: an argument, or scratch in the arena.
struct RefSlot {
    std::string name;
    ir::RefType type;
    std::int64_t argument = -1;  ///< index in ir::Arguments::refs; -1 for scratch
    std::int64_t offset = 0;     ///< scratch: bytes in the arena
    bool is_read = false;        ///< some instruction reads it or a Ref that may share its memory
};

/// An argument that threads combine elements into by way of their own copies.
struct PrivateRef {
    std::uint32_t ref = 0;
    ir::Reduction reduction = ir::Reduction::sum;
    DType dtype = DType::i32;
};

/// The atomics of a program that threads may divide (see divided_atomics).
struct DividedAtomics {
    std::uint32_t ref = 0;  ///< the array that all are on
    double cost = 0;        ///< of one program, in elements
};

struct ScalarParameter {
    DType dtype = DType::i64;
    std::uint32_t slot = 0;
};

class Program {
  public:
    std::uint64_t id = 0;  ///< from compile(): no other program of the process has it
    ir::Function kernel;   ///< as given to compile()
    std::vector<Instruction> code;
    std::vector<ir::Location> locations{{}};  ///< lines of the user's source; the first: unknown
    std::vector<std::uint32_t> lines;         ///< of each instruction, as an index in `locations`
    std::vector<RefSlot> refs;
    std::vector<ScalarParameter> scalars;
    const Kernels* kernels = nullptr;
    std::vector<std::uint64_t> initial_slots;  ///< constants; the others start as zero
    std::set<std::uint32_t> constant_slots;
    std::vector<Buffer> buffers;
    std::vector<std::byte> constants;
    std::set<std::uint32_t> iotas;  ///< offsets in `constants` of 0, 1, 2, ...
    std::uint32_t num_views = 0;
    std::map<std::uint32_t, SubView> parts;  ///< of loaded views: where each view is in one
    std::int64_t arena_bytes = 0;            ///< tile buffers, scratch and strip temporaries
    std::int64_t strip_offset = 0;           ///< offset of the strip temporaries in the arena,
    std::int64_t strip_bytes = 0;            ///< and the size of each
    std::vector<PrivateRef> private_refs;
    std::vector<std::int64_t> kept;  ///< bytes of the blocks that threads keep (see keep_blocks)
    bool in_order = false;           ///< order-dependent atomics: programs run one after the other
    std::optional<DividedAtomics> divided;  ///< in_order, but on several threads all the same
    bool uneven = false;                    ///< the trip count of some loop depends on the program
    bool has_while = false;                 ///< what a program takes is not known before it runs
};

}  // namespace tilewright::cpu
