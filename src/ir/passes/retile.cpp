// Retiling: decides which stores are cut, and how.
#include "ir/passes/retile.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ir/access.h"
#include "ir/passes/dce.h"
#include "ir/passes/demand.h"
#include "ir/passes/effects.h"
#include "ir/passes/inline.h"
#include "ir/passes/source_map.h"
#include "support/check.h"
#include "support/integer.h"

namespace tilewright::ir {
namespace {

using Tile = std::vector<std::int64_t>;
using Roots = std::vector<const Instruction*>;

bool is_debug(Op op) {
    return op == Op::debug_print || op == Op::debug_check;
}

class Retiler {
  public:
    Retiler(const Function& source, const RetileOptions& options)
        : source_(source),
          options_(options),
          map_(source, options.extents.empty() ? options.max_tile_elements : 1),
          target_(source),
          b_(target_),
          demand_(map_, b_, options) {
        walk(source.body, [&](const Instruction& each) {
            used_.insert(each.operands.begin(), each.operands.end());
        });
    }

    Function run(RetileReport& report) {
        report_ = &report;
        target_.body.body.clear();
        for (Value parameter : source_.parameters()) {
            if (!source_.is_ref(parameter)) demand_.keep(parameter);
        }
        block(source_.body);
        if (demand_.refusal().empty()) dce(target_);
        if (demand_.refusal().empty()) check_sizes();
        report.refusal = demand_.refusal();
        return std::move(target_);
    }

  private:
    void block(const Block& block) {
        for (std::size_t i = 0; i < block.body.size() && demand_.refusal().empty(); ++i) {
            const Instruction& instruction = block.body[i];
            if (instruction.op == Op::yield) {
                yield(instruction);
            } else if (effects(instruction).removable()) {
                keep_small(instruction);
            } else if (!instruction.blocks.empty()) {
                nested(instruction);
            } else if (!map_.oversized(instruction)) {
                keep(instruction);
            } else if (is_debug(instruction.op)) {
                debug(instruction);
            } else {
                i = cut(block, i);
            }
        }
    }

    // A value larger than a tile is computed in parts where they are needed.
    void keep_small(const Instruction& instruction) {
        if (!map_.oversized(instruction)) keep(instruction);
    }

    void keep(const Instruction& instruction) {
        b_.block().body.push_back(instruction);
        for (Value result : instruction.results) demand_.keep(result);
    }

    std::vector<Value> whole_operands(const Instruction& instruction) {
        demand_.set_roots({&instruction}, {});
        std::vector<Value> result;
        for (Value value : instruction.operands) result.push_back(demand_.get_whole(value));
        return result;
    }

    void yield(const Instruction& instruction) {
        Instruction copy = instruction;
        copy.operands = whole_operands(instruction);
        b_.block().body.push_back(std::move(copy));
    }

    void debug(const Instruction& instruction) { yield(instruction); }

    // A loop or branch with effects stays: its carries must fit, and its stores are cut inside it.
    void nested(const Instruction& instruction) {
        Instruction copy = instruction;
        copy.operands = whole_operands(instruction);
        copy.blocks.assign(instruction.blocks.size(), {});
        for (std::size_t i = 0; i < copy.blocks.size(); ++i) {
            const Demand::Scope scope(demand_);
            copy.blocks[i].arguments = instruction.blocks[i].arguments;
            for (Value argument : copy.blocks[i].arguments) demand_.keep(argument);
            b_.push_block(copy.blocks[i]);
            block(instruction.blocks[i]);
            b_.pop_block();
        }
        b_.block().body.push_back(std::move(copy));
        for (Value result : instruction.results) demand_.keep(result);
    }

    // ---- Stores.

    Shape shape(const Instruction& root) const { return access_shape(source_, root).shape; }
    /// What is cut: the block, or all blocks beside each other.
    Shape extent(const Instruction& root) const {
        return options_.extents.empty() ? shape(root) : Shape(options_.extents);
    }

    // Consecutive stores of one shape share their sub-tiles and what they compute. Returns the
    // position of the last instruction that was handled.
    std::size_t cut(const Block& block, std::size_t first) {
        Roots roots = {&block.body[first]};
        std::set<Value> writes = effects(block.body[first]).writes;
        std::size_t last = first;
        std::vector<const Instruction*> between;
        for (std::size_t i = first + 1; i < block.body.size(); ++i) {
            const Instruction& next = block.body[i];
            const Effects what = effects(next);
            const auto touched = [&](const std::set<Value>& refs) {
                return std::ranges::any_of(
                    refs, [&](Value ref) { return may_write(source_, writes, ref); });
            };
            if (next.op == Op::yield || touched(what.reads) || touched(what.writes)) break;
            if (what.removable()) {
                between.push_back(&next);
                continue;
            }
            if (!is_access(next.op) || !map_.oversized(next) || shape(next) != shape(*roots[0]))
                break;
            roots.push_back(&next);
            writes.insert(what.writes.begin(), what.writes.end());
            last = i;
            for (const Instruction* each : between) keep_small(*each);
            between.clear();
        }
        emit(roots);
        return last;
    }

    void emit(const Roots& roots) {
        for (const Instruction* root : roots) check_root(*root);
        if (!demand_.refusal().empty()) return;
        const std::vector<Tile> candidates = tiles(roots);
        const std::size_t mark = b_.block().body.size();
        const std::vector<std::int64_t> grid = target_.grid;
        for (const Tile& candidate : candidates) {
            // The last candidate cuts least, so its reason is the one to report.
            demand_.forget_refusal();
            b_.block().body.resize(mark);
            target_.grid = grid;
            const Demand::Scope scope(demand_);
            const bool as_programs = alone(roots) && splits(roots, candidate);
            const int axes = as_programs ? on_grid(roots, candidate) : 0;
            if (!as_programs) in_loops(roots, candidate);
            if (!demand_.refusal().empty()) continue;
            if (as_programs) report_->grid_axes = axes;
            report_->stores += static_cast<int>(roots.size());
            return;
        }
    }

    template <typename... Args>
    void refuse(fmt::format_string<Args...> format, Args&&... args) {
        demand_.refuse(fmt::format(format, std::forward<Args>(args)...));
    }

    void check_root(const Instruction& root) {
        const bool used =
            std::ranges::any_of(root.results, [&](Value v) { return used_.contains(v); });
        if (used) {
            refuse("expected no use of what {} returns but got one: its tile {} is cut",
                   name(root.op), to_string(source_.type(root.results[0])));
        }
    }

    bool scatters(const Instruction& root) const {
        const auto& indices = root.get<AccessAttributes>().indices;
        return root.op == Op::store && std::ranges::any_of(indices, [](const Index& index) {
                   return index.kind == Index::Kind::tile;
               });
    }

    // Shapes to cut into, best first. If a reduction feeds the store, whole rows are tried first.
    std::vector<Tile> tiles(const Roots& roots) const {
        const Shape full = extent(*roots[0]);
        const int rank = full.rank();
        std::vector<Tile> result;
        const auto add = [&](Tile tile) {
            if (std::ranges::find(result, tile) == result.end()) result.push_back(std::move(tile));
        };
        const Tile dims(full.dims().begin(), full.dims().end());
        if (!options_.extents.empty()) return {Tile{options_.rows, options_.columns}};
        if (full.size() <= options_.max_tile_elements) return {dims};
        if (std::ranges::any_of(roots, [&](const Instruction* root) { return scatters(*root); })) {
            // The highest lane that writes an element wins: cut only the outermost axis, in order.
            return {shrunk(dims, 0, 1)};
        }
        const Tile square = preferred(full);
        const Tile rows_whole = shrunk(dims, 0, rank - 1);
        const bool reduces = std::ranges::any_of(roots, [&](const Instruction* root) {
            return std::ranges::any_of(access(*root).values, [&](Value v) {
                return map_.computed_by(v, Op::reduce) || map_.computed_by(v, Op::scan) ||
                       map_.computed_by(v, Op::associative_scan) || map_.computed_by(v, Op::sort) ||
                       map_.computed_by(v, Op::argsort);
            });
        });
        if (reduces && size(rows_whole) <= options_.max_tile_elements) add(rows_whole);
        add(square);
        // If a sub-tile needs more than its own size, as for a strided slice, smaller ones may.
        for (int divisor = 2; divisor <= 8; divisor *= 2) {
            Tile smaller = square;
            for (std::int64_t& extent : smaller) {
                extent = std::max<std::int64_t>(1, extent / divisor);
            }
            add(smaller);
        }
        if (size(rows_whole) <= options_.max_tile_elements) add(rows_whole);
        if (rank >= 2) {
            Tile columns_whole = dims;
            for (int axis = 0; axis < rank - 2; ++axis) columns_whole[axis] = 1;
            columns_whole = shrunk(columns_whole, rank - 1, rank);
            if (size(columns_whole) <= options_.max_tile_elements) add(columns_whole);
        }
        return result;
    }

    static std::int64_t size(const Tile& tile) { return Shape(tile).size(); }

    // Halves the axes [first, last), outermost first, until the tile fits or they are 1.
    Tile shrunk(Tile tile, int first, int last) const {
        for (int axis = first; axis < last; ++axis) {
            auto& extent = tile[axis];
            while (extent > 1 && size(tile) > options_.max_tile_elements) extent = (extent + 1) / 2;
        }
        return tile;
    }

    Tile preferred(const Shape& full) const {
        Tile tile(static_cast<std::size_t>(full.rank()), 1);
        const std::size_t rank = tile.size();
        tile[rank - 1] = std::min(full[full.rank() - 1],
                                  rank == 1 ? options_.max_tile_elements : options_.columns);
        if (rank >= 2) tile[rank - 2] = std::min(full[full.rank() - 2], options_.rows);
        return shrunk(std::move(tile), 0, full.rank());
    }

    void emit_region(const Roots& roots, const Region& region, Value mask = {}) {
        demand_.set_roots(roots, region);
        for (const Instruction* root : roots) {
            Instruction copy;
            demand_.narrow_access(*root, region, copy);
            if (mask) add_mask(copy, region, mask);
            b_.append(std::move(copy));
        }
    }

    void in_loops(const Roots& roots, const Tile& tile) {
        Region region;
        cut_axis(roots, tile, shape(*roots[0]), region);
    }

    void cut_axis(const Roots& roots, const Tile& tile, const Shape& full, Region& region) {
        const std::size_t axis = region.size();
        if (axis == tile.size()) return emit_region(roots, region);
        demand_.stream(full[axis], std::max<std::int64_t>(1, tile[axis]), {},
                       [&](Range range, std::span<const Value>) {
                           region.push_back(range);
                           cut_axis(roots, tile, full, region);
                           region.pop_back();
                           return std::vector<Value>{};
                       });
    }

    // ---- Sub-tiles as grid axes.

    // True when the kernel does nothing but these stores, so that each sub-tile may be a program.
    bool alone(const Roots& roots) const {
        if (options_.schedule != RetileOptions::Schedule::grid) return false;
        std::size_t effects_at_top = 0;
        for (const Instruction& each : source_.body.body) {
            effects_at_top += each.op != Op::yield && !effects(each).removable();
        }
        const bool at_top = roots[0] >= source_.body.body.data() &&
                            roots[0] < source_.body.body.data() + source_.body.body.size();
        const bool any_scatter =
            std::ranges::any_of(roots, [&](const Instruction* root) { return scatters(*root); });
        return at_top && !any_scatter && effects_at_top == roots.size();
    }

    bool splits(const Roots& roots, const Tile& tile) const {
        const Shape full = shape(*roots[0]);
        return !options_.extents.empty() ||
               (!std::ranges::equal(full.dims(), tile) && full.size() > 0);
    }

    /// Returns the number of axes that the grid gets.
    int on_grid(const Roots& roots, const Tile& tile) {
        const Shape full = extent(*roots[0]);
        const bool beyond = !options_.extents.empty();
        Region region;
        int axes = 0;
        for (std::size_t axis = 0; axis < tile.size(); ++axis) {
            const std::int64_t extent = full[axis];
            Range range{{}, tile[axis], 0};
            if (tile[axis] < extent || beyond) {
                target_.grid.push_back(ceil_div(extent, tile[axis]));
                const Value id = b_.program_id(static_cast<int>(target_.grid.size()) - 1);
                range = {demand_.times(id, tile[axis]), tile[axis], tile[axis]};
                ++axes;
            }
            region.push_back(range);
        }
        emit_region(roots, region, beyond ? Value{} : inside(full, region));
        return axes;
    }

    // Mask of the lanes of a ragged last sub-tile that belong to the block; none when all do.
    Value inside(const Shape& full, const Region& region) {
        const Shape shape = shape_of(region);
        Value mask;
        for (int axis = 0; axis < full.rank(); ++axis) {
            const Range& range = region[axis];
            if (!range.offset || full[axis] % range.size == 0) continue;
            const Value lane = b_.iota({DType::i64, shape}, axis);
            const Value at = b_.binary(Op::add, lane, b_.broadcast(range.offset, shape));
            const Value fits =
                b_.binary(Op::lt, at, b_.constant_int({DType::i64, shape}, full[axis]));
            mask = mask ? b_.binary(Op::bitwise_and, mask, fits) : fits;
        }
        return mask;
    }

    void add_mask(Instruction& root, const Region& region, Value mask) {
        auto& attributes = root.get<AccessAttributes>();
        if (attributes.has_mask) {
            const Value own = b_.broadcast(root.operands.back(), shape_of(region));
            root.operands.back() = b_.binary(Op::bitwise_and, own, mask);
        } else {
            root.operands.push_back(mask);
            attributes.has_mask = true;
        }
    }

    void check_sizes() {
        walk(target_.body, [&](const Instruction& instruction) {
            for (Value result : instruction.results) {
                const Type& type = target_.type(result);
                if (type.shape.size() <= options_.max_tile_elements) continue;
                refuse(
                    "expected a block that can be cut into tiles of at most {} elements but got "
                    "{} of {}: something needs it whole",
                    options_.max_tile_elements, name(instruction.op), to_string(type));
            }
        });
    }

    const Function& source_;
    const RetileOptions& options_;
    SourceMap map_;
    Function target_;
    Builder b_;
    Demand demand_;
    std::set<Value> used_;
    RetileReport* report_ = nullptr;
};

bool fits(const Function& function, std::int64_t max_tile_elements) {
    bool result = true;
    walk(function.body, [&](const Instruction& instruction) {
        for (Value value : instruction.results) {
            result &= function.type(value).shape.size() <= max_tile_elements;
        }
    });
    return result;
}

}  // namespace

RetileReport try_retile(Function& function, const RetileOptions& options) {
    if (options.max_tile_elements < 1 || options.rows < 1 || options.columns < 1 ||
        options.k_chunk < 1) {
        user_error("retile",
                   "expected sizes >= 1 but got {} elements, {} rows, {} columns, {} chunk",
                   options.max_tile_elements, options.rows, options.columns, options.k_chunk);
    }
    RetileReport report;
    if (options.extents.empty() && fits(function, options.max_tile_elements)) return report;
    Function source = function;
    inline_calls(source);
    Function result = Retiler(source, options).run(report);
    report.rewritten = report.refusal.empty();
    if (report.rewritten) function = std::move(result);
    return report;
}

RetileReport retile(Function& function, const RetileOptions& options) {
    RetileReport report = try_retile(function, options);
    if (!report.refusal.empty()) user_error("retile", "{}", report.refusal);
    return report;
}

}  // namespace tilewright::ir
