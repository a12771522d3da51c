// Lowers scans: of one kind along rows or lanes, and with the user's function.
#include <algorithm>

#include "cpu/combine_rows.h"
#include "cpu/def_use.h"
#include "cpu/fuse.h"
#include "cpu/lower.h"
#include "cpu/simd/scan_compiler.h"
#include "ir/access.h"
#include "ir/evaluate.h"
#include "ir/passes/contract.h"
#include "ir/passes/dce.h"
#include "ir/passes/effects.h"
#include "ir/passes/pipeline.h"
#include "support/check.h"

namespace tilewright::cpu {

using ir::Op;
using ir::Value;

namespace {

/// The dtype in which a scan runs: that of its accumulator, or where there are no vector kernels
/// for it, a wider one, which gives the same results.
DType dtype_of_scan(ir::Reduction kind, DType operand, bool along_lanes) {
    const DType dtype = ir::accumulator(kind, operand);
    if (dtype == DType::boolean || size_of(dtype) > 2) return dtype;
    if (is_float(dtype)) return DType::f32;
    return along_lanes ? DType::i32 : dtype;  // the scalar loop over columns is a vector one
}

/// The function with some of its results alone.
ir::Function only(const ir::Function& mod, const std::vector<bool>& kept) {
    ir::Function result = mod;
    std::vector<Value>& yielded = result.body.body.back().operands;
    std::vector<Value> some;
    for (std::size_t i = 0; i < kept.size(); ++i) {
        if (kept[i]) some.push_back(yielded[i]);
    }
    yielded = std::move(some);
    ir::dce(result);
    return result;
}

/// Plans the run of all ops.
void plan_run(Chain& chain, const Program& program) {
    Region region(1);
    region[0].instruction = chain;
    const DefUse uses(region);
    if (auto run = plan_whole_run(chain, uses, program)) chain.fused.push_back(std::move(*run));
}

/// Compiles the function of a scan to code that keeps vectors in registers, where that is possible.
void compile_rows(CombineScan& scan, const Kernels& kernels) {
    constexpr int kVectorBytes = 64;
    const auto n = scan.in.size();
    const auto is_word = [](DType dtype) { return dtype == DType::f32 || dtype == DType::i32; };
    if (kernels.vector_bytes != kVectorBytes || !kernels.fused.run ||
        !std::all_of(scan.in.begin(), scan.in.end(),
                     [&](const StripSource& in) { return is_word(in.dtype); }))
        return;
    ScanShape shape;
    shape.values = static_cast<int>(n);
    shape.reverse = scan.reverse;
    for (const StripSource& out : scan.out) shape.kept.push_back(out.home != Home::none);
    shape.carried = scan.carried;
    std::vector<std::uint32_t> splats;
    for (const StripOp& op : scan.combine.ops) {
        for (const StripSource& in : op.in) {
            if (in.home != Home::slot) continue;
            if (!is_word(in.dtype)) return;
            if (std::find(splats.begin(), splats.end(), in.index) == splats.end())
                splats.push_back(in.index);
        }
    }
    shape.splats = static_cast<int>(splats.size());
    // Temporaries are numbered as the ops that make them, after elements.
    const auto number = [&](const StripSource& source) {
        if (source.home == Home::slot) {
            const auto place = std::find(splats.begin(), splats.end(), source.index);
            return static_cast<int>(2 * n) + static_cast<int>(place - splats.begin());
        }
        return static_cast<int>(source.index) +
               (source.index < 2 * n ? 0 : static_cast<int>(splats.size()));
    };
    for (const StripOp& op : scan.combine.ops) {
        if (op.op == Op::store) {
            shape.results.push_back(number(op.in[0]));
            continue;
        }
        ScanShape::Op made;
        made.op = op.op;
        made.dtype = op.out.dtype;
        made.num_inputs = op.num_inputs;
        for (std::size_t k = 0; k < static_cast<std::size_t>(op.num_inputs); ++k) {
            if (op.in[k].dtype != op.out.dtype) return;
            made.in[k] = number(op.in[k]);
        }
        shape.ops.push_back(made);
    }
    scan.splats = std::move(splats);
    if (scan.along_lanes) {
        scan.in_registers = compile_scan(shape);
        return;
    }
    const ScanDown down = compile_scan_down(shape);
    scan.down_rows = down.rows;
    scan.down_columns = down.columns;
    scan.column_lanes = down.column_lanes;
}

}  // namespace

void Lowering::lower_scan(const ir::Instruction& instruction) {
    const auto& attributes = instruction.get<ir::ReduceAttributes>();
    const Value operand = instruction.operands[0];
    const Value result = instruction.result();
    const Space space = space_of(operand);
    const bool along_lanes = attributes.axis == space.lane_axis;
    const DType dtype = dtype_of_scan(attributes.kind, function_.type(operand).dtype, along_lanes);
    const DType result_dtype = function_.type(result).dtype;
    StripFunction function = along_lanes ? kernels().scan_lanes(attributes.kind, dtype)
                                         : kernels().scan_rows(attributes.kind, dtype);
    DType stored = dtype;  // what the function reads and writes
    if (along_lanes && kernels().scan_lanes_in_f32 &&
        result_dtype == function_.type(operand).dtype) {
        if (const auto direct = kernels().scan_lanes_in_f32(attributes.kind, result_dtype)) {
            function = direct;
            stored = result_dtype;
        }
    }
    if (!function) {
        user_error("scan", "expected a type the CPU can scan but got {} of {}",
                   ir::name(attributes.kind), name(dtype));
    }
    // Exclusive scans return it, so that it is the operand's.
    const std::uint64_t identity =
        element_bits(dtype, ir::identity(attributes.kind, function_.type(operand).dtype));
    const int depth_of = place(operand).depth;
    const StripSource in = source(converted(tile(operand), depth_of, stored), depth_of, space);
    const Tile out = new_tile(stored, space.shape, {space.lane_axis, space.width});
    const std::int64_t lines = along_lanes ? space.rows() : std::min(space.width, space.lanes());
    const Tile carried = new_tile(dtype, {lines}, {});
    if (in.home == Home::view && !along_lanes) {
        // For the lanes of neighbouring programs, too, which may run as one.
        std::int64_t& bytes = program_.buffers[carried.index].bytes;
        bytes = std::max(bytes, kScannedLanes * size_of(dtype) + 64);
        program_.strip_bytes = std::max(program_.strip_bytes, bytes);
    }
    const StripSource carry{carried.home, carried.index, dtype, 0, 0, along_lanes ? 1 : 0};
    std::int64_t outer = 1, inner = 1;
    for (int a = 0; a < space.shape.rank(); ++a) {
        if (a == space.lane_axis) continue;
        if (a < attributes.axis) outer *= space.shape[a];
        if (a > attributes.axis) inner *= space.shape[a];
    }
    if (along_lanes || (outer == 1 && inner == 1)) {
        StripOp op;
        op.kind = along_lanes ? StripOp::Kind::scan_lanes : StripOp::Kind::scan_rows;
        op.op = Op::scan;
        op.reduction = attributes.kind;
        op.function = function;
        op.in[0] = in;
        op.num_inputs = 1;
        op.out = *as_source(out, space);
        op.sum = carry;
        op.identity = identity;
        op.immediate[0] = attributes.reverse;
        op.immediate[1] = attributes.exclusive;
        emit_chain(space, op, depth());
    } else {
        ScanRows scan;
        scan.reduction = attributes.kind;
        scan.function = function;
        scan.reverse = attributes.reverse;
        scan.exclusive = attributes.exclusive;
        scan.in = in;
        scan.out = *as_source(out, space);
        scan.carried = carry;
        scan.outer = outer;
        scan.extent = space.shape[attributes.axis];
        scan.inner = inner;
        scan.lanes = space.lanes();
        scan.width = space.width;
        scan.identity = identity;
        emit(scan);
    }
    set_place(result, converted(out, depth(), result_dtype));
}

// ---- Scans with the user's function.

std::optional<ir::Function> combine_rows(const ir::Instruction& scan, NoRows* why_not) {
    const auto no = [&](std::string reason, const ir::Location& at = {}) {
        if (why_not) *why_not = {std::move(reason), at.file.empty() ? scan.location : at};
        return std::nullopt;
    };
    const auto& combine = *scan.get<ir::CombineAttributes>().combine;
    ir::Function mod = combine;
    ir::optimise(mod);
    ir::contract(mod);
    const std::vector<Value>& yielded = mod.body.terminator().operands;
    const std::size_t values = yielded.size();
    // Results take the place of what comes after: none may be another one's.
    for (std::size_t i = 0; i < 2 * values; ++i) {
        const Value parameter = mod.parameters()[i];
        for (std::size_t k = 0; k < values; ++k) {
            if (yielded[k] == parameter && i % values != k) {
                return no(fmt::format(
                    "its function returns an element of tile {} as one of tile {}", i % values, k));
            }
        }
    }
    if (values > CombineScan::kMaxValues) {
        return no(
            fmt::format("it combines {} values, more than {}", values, CombineScan::kMaxValues));
    }
    if (mod.body.body.size() + values > Chain::kMaxOps) {
        return no(fmt::format("its function has {} operations, more than {}",
                              mod.body.body.size() - 1, Chain::kMaxOps - values - 1));
    }
    for (const ir::Instruction& made : mod.body.body) {
        if (made.op == Op::constant || made.op == Op::yield) continue;
        if (!ir::is_elementwise(made.op)) {
            return no(
                fmt::format("its function has `{}`, which is not elementwise", ir::name(made.op)),
                made.location);
        }
        const auto* math = std::get_if<ir::MathAttributes>(&made.attributes);
        const DType operand = mod.type(made.operands.back()).dtype;
        if (!kernels().elementwise(made.op, operand, mod.type(made.result()).dtype,
                                   math && math->approx)) {
            return no(
                fmt::format("there is no kernel for `{}` of {}", ir::name(made.op), name(operand)),
                made.location);
        }
    }
    return mod;
}

/// Makes the ops of the chain of a scan from its mod.
void Lowering::lower_combine(const ir::Function& mod, std::span<const Tile> captured,
                             CombineScan& scan) {
    const auto n = static_cast<std::uint32_t>(scan.in.size());
    std::map<Value, StripSource> places;
    const auto rows = [](std::uint32_t index, DType dtype) {
        return StripSource{Home::buffer, index, dtype, 0, CombineScan::kSegments, 0, 1};
    };
    const auto slot = [](std::uint32_t index, DType dtype) {
        return StripSource{Home::slot, index, dtype};
    };
    const std::vector<Value>& parameters = mod.parameters();
    for (std::uint32_t i = 0; i < parameters.size(); ++i) {
        const DType dtype = mod.type(parameters[i]).dtype;
        places[parameters[i]] = i < 2 * n ? rows(i, dtype) : slot(captured[i - 2 * n].index, dtype);
    }
    const std::vector<Value> results = mod.body.terminator().operands;
    // One element after the other, of what comes before only that of other results is needed.
    std::vector<bool> wanted(n);
    for (std::uint32_t i = 0; i < n; ++i) wanted[i] = scan.out[i].home != Home::none;
    scan.carried = wanted;
    ir::Function body;
    for (bool grows = true; grows;) {
        body = only(mod, scan.carried);
        grows = false;
        ir::walk(body.body, [&](const ir::Instruction& made) {
            for (const Value operand : made.operands) {
                for (std::uint32_t i = 0; i < n; ++i) {
                    if (operand != parameters[i] || scan.carried[i]) continue;
                    scan.carried[i] = grows = true;
                }
            }
        });
    }
    for (Chain* chain : {&scan.combine, &scan.last, &scan.in_turn}) {
        chain->lanes = CombineScan::kSegments;
        const std::vector<bool> kept = chain == &scan.combine ? std::vector<bool>(n, true)
                                       : chain == &scan.last  ? wanted
                                                              : scan.carried;
        body = only(mod, kept);
        std::uint32_t temporaries = 0;
        for (const ir::Instruction& made : body.body.body) {
            if (made.op == Op::yield) break;
            const DType dtype = body.type(made.result()).dtype;
            if (made.op == Op::constant) {
                const std::uint64_t bits =
                    element_bits(dtype, made.get<ir::ConstantAttributes>().bits);
                places[made.result()] = slot(constant_slot(dtype, bits), dtype);
                continue;
            }
            const auto* math = std::get_if<ir::MathAttributes>(&made.attributes);
            StripOp op;
            op.op = made.op;
            op.line = line_;
            op.function = kernels().elementwise(made.op, body.type(made.operands.back()).dtype,
                                                dtype, math && math->approx);
            for (const Value operand : made.operands) op.in[op.num_inputs++] = places.at(operand);
            op.out = places[made.result()] = rows(2 * n + temporaries++, dtype);
            chain->ops.push_back(std::move(op));
        }
        for (std::uint32_t i = 0; i < n; ++i) {
            if (!kept[i]) continue;
            StripOp store;
            store.op = Op::store;
            store.line = line_;
            store.in[0] = places.at(results[i]);
            store.num_inputs = 1;
            store.out = {Home::view, i, scan.in[i].dtype, 0, CombineScan::kSegments, 0, 1};
            store.function = kernels().store(scan.in[i].dtype, false);
            store.stored_ref = 0;
            chain->ops.push_back(std::move(store));
        }
        scan.num_temporaries = std::max(scan.num_temporaries, temporaries);
        plan_run(*chain, program_);
    }
}

/// The store to an array that a scan may do itself, or nullptr: the only reader of its result, to
/// rows whose elements follow each other, with nothing in between that touches the array.
const ir::Instruction* Lowering::scan_store(const ir::Instruction& scan, Value result,
                                            const Space& space) const {
    const auto& users = users_[result.id];
    if (users.size() != 1 || users[0]->op != Op::store) return nullptr;
    const ir::Instruction& store = *users[0];
    const auto& to = store.get<ir::AccessAttributes>();
    const std::size_t num_indices = to.indices.size();
    const Value ref = store.operands[0];
    if (to.has_mask || store.operands[1 + num_indices] != result ||
        contiguous_axis(to, space.shape) != space.lane_axis ||
        function_.ref_type(ref).dtype != function_.type(result).dtype) {
        return nullptr;
    }
    for (std::size_t i = 0; i < num_indices; ++i) {
        if (to.indices[i].kind == ir::Index::Kind::tile ||
            place(store.operands[1 + i]).tile.home == Home::none)
            return nullptr;
    }
    // The rows of a view are along one axis.
    int long_axes = 0;
    for (int axis = 0; axis < space.shape.rank(); ++axis)
        long_axes += axis != space.lane_axis && space.shape[axis] != 1;
    if (long_axes > 1) return nullptr;
    const ir::Instruction* const begin = block_->body.data();
    if (&store <= &scan || &store >= begin + block_->body.size()) return nullptr;
    for (const ir::Instruction* between = &scan + 1; between < &store; ++between) {
        const bool touches =
            ir::is_access(between->op) && ir::may_alias(function_, between->operands[0], ref);
        if (!between->blocks.empty() || touches) return nullptr;
    }
    return &store;
}

void Lowering::lower_associative_scan(const ir::Instruction& instruction) {
    const auto& attributes = instruction.get<ir::CombineAttributes>();
    const std::size_t n = instruction.results.size();
    const Space space = space_of(instruction.results[0]);
    const ir::Shape& shape = space.shape;
    if (shape[attributes.axis] <= 1 || shape.size() == 0) {
        for (std::size_t i = 0; i < n; ++i)
            set_place(instruction.results[i], tile(instruction.operands[i]));
        return;
    }
    CombineScan scan;
    scan.reverse = attributes.reverse;
    scan.along_lanes = attributes.axis == space.lane_axis;
    scan.lanes = space.lanes();
    scan.width = space.width;
    scan.extent = scan.along_lanes ? 1 : shape[attributes.axis];
    for (int a = 0; a < shape.rank(); ++a) {
        if (a == space.lane_axis) continue;
        if (a < attributes.axis) scan.outer *= shape[a];
        if (a > attributes.axis) scan.inner *= shape[a];
    }
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const Value operand = instruction.operands[i], result = instruction.results[i];
        const DType dtype = function_.type(result).dtype;
        scan.in.push_back(source(operand, space));
        scan.transpose.push_back(kernels().transpose(dtype, dtype));
        scan.stream.push_back(kernels().stream(dtype));
        bytes += CombineScan::kWork * size_of(dtype) + 64;
        if (users_[result.id].empty()) {
            scan.out.emplace_back();
            continue;
        }
        const ir::Instruction* const store = scan_store(instruction, result, space);
        const Tile out = store ? lower_scan_target(*store, shape, space.lane_axis)
                               : new_tile(dtype, shape, {space.lane_axis, space.width});
        if (store) scan.stored_refs.push_back(refs_.at(store->operands[0].id));
        scan.out.push_back(*as_source(out, space));
        set_place(result, out);
    }
    std::vector<Tile> captured;
    for (std::size_t i = n; i < instruction.operands.size(); ++i) {
        captured.push_back(tile(instruction.operands[i]));
        scan.captured.push_back(captured.back().index);
    }
    lower_combine(*combine_rows(instruction), captured, scan);
    compile_rows(scan, kernels());
    bytes += scan.num_temporaries * CombineScan::kTemporaryLanes * 8;
    scan.work = new_tile(DType::u8, {bytes}, {});
    emit(std::move(scan));
}

}  // namespace tilewright::cpu
