// The loop over panels in an epilogue.
#include "cuda/schedule/split_epilogue.h"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/schedule/stage.h"
#include "cuda/schedule/tools.h"

namespace tilewright::cuda::schedule {
namespace {

constexpr std::int64_t kPanelColumns = 64;
constexpr int kPanelSlots = 2;

class Split {
  public:
    explicit Split(Program& program)
        : p_(program), uses_(program), axis_(columns_axis(sums_of(program))) {}

    void run() {
        each_instruction(p_.body, [&](Instruction& made) {
            if (!made.is(Op::role) || made.symbol("of") != "consumer") return;
            for (Instruction& inner : made.blocks[0].body) {
                if (inner.is(Op::programs)) programs(inner.blocks[0]);
            }
            if (bulk_) {
                Instruction wait = make(Op::wait_stores, {});
                made.blocks[0].body.push_back(std::move(wait.flag("complete")));
            }
        });
    }

  private:
    /// The axis of a value along which panels are cut, that of wgmma's columns; -1: none.
    int column_axis(Value value) const {
        const ValueType& type = p_.type(value);
        if (!type.layout) return -1;
        const int rank = type.type.shape.rank();
        if (rank == 2) return type.type.shape[axis_] == columns_ ? axis_ : -1;
        return rank == 1 && type.layout->lane[0] != 0 ? 0 : -1;
    }

    void programs(Block& block) {
        const bool chained = is_chained(p_);
        auto loop = block.body.end();
        for (auto at = block.body.begin(); at != block.body.end(); ++at) {
            if (chained ? has_products(*at) : at->is(ir::Op::for_loop)) loop = at;
            if (!chained && loop != block.body.end()) break;
        }
        if (loop == block.body.end()) return;
        // The accumulators are the results of the waits, or of the loop where no wait follows it.
        std::vector<Value> accumulators;
        const auto from = loop + 1;
        const auto wait = std::find_if(from, block.body.end(), [](const Instruction& made) {
            return made.is(Op::wgmma_wait);
        });
        const Instruction& last = wait == block.body.end() ? *loop : *wait;
        for (Value value : chained ? sums_after(block, loop - block.body.begin()) : last.results) {
            if (!p_.type(value).is_count) accumulators.push_back(value);
        }
        if (accumulators.empty()) throw Refused("nothing follows from its dots");
        columns_ = p_.type(accumulators[0]).type.shape[axis_];
        for (Value value : accumulators) {
            if (p_.type(value).type.shape[axis_] != columns_) {
                throw Refused("its dots have different columns");
            }
        }
        const std::int64_t of_group = columns_ / p_.groups[axis_];
        Instruction panels = make(Op::panels, accumulators);
        panels.with("count", of_group / kPanelColumns);
        inner_ = {};
        const Value panel = p_.add({false, {DType::i64, {}}, {}}, "panel");
        inner_.arguments.push_back(panel);
        copies_.clear();
        for (Value value : accumulators) {
            inner_.arguments.push_back(panel_value(value));
            copies_[value] = inner_.arguments.back();
        }
        const Value width = append_constant(p_, inner_, kPanelColumns);
        const Value offset = append_scalar(p_, inner_, ir::Op::mul, {panel, width});
        std::vector<Instruction> outside, bulk;
        Value threads = offset;  // the first column of a warpgroup's panel
        if (p_.groups[axis_] > 1) {
            threads = append_scalar(p_, inner_, ir::Op::add,
                                    {offset, group_start(inner_, axis_, of_group - kPanelColumns)});
        }
        std::vector<Instruction> before;
        for (auto at = block.body.begin(); at != block.body.end(); ++at) {
            if (at == loop) {
                before = std::move(outside);
                before.push_back(*at);
                outside.clear();
                continue;
            }
            if (at->is(ir::Op::yield)) break;
            const bool store = at->is(ir::Op::store);
            const bool in_panels =
                store ? !chained || column_axis(at->operands.back()) >= 0
                      : std::any_of(at->results.begin(), at->results.end(),
                                    [&](Value value) { return column_axis(value) >= 0; });
            if (chained && at < loop) {
                outside.push_back(*at);
                continue;
            }
            if (chained && at->op == Op::tile) expect_no_reduction(*at, in_panels);
            if (at->op != Op::tile || !in_panels) {
                outside.push_back(*at);
            } else if (store && is_bulk_store(p_, *at)) {
                bulk.push_back(*at);
            } else {
                part(*at, threads);
            }
        }
        stores(bulk, panel, offset, of_group);
        const std::int64_t count = of_group / kPanelColumns;
        if (!bulk.empty() && count % kPanelSlots != 0) {
            // The last panel of the previous program may still be in the first panel's slot.
            Instruction ready = make(Op::wait_stores, {});
            outside.push_back(std::move(ready.with("pending", 0)));
            outside.push_back(make(Op::group_sync, {}));
        }
        const Instruction yield = block.body.back();
        panels.blocks.push_back(std::move(inner_));
        block.body = std::move(before);
        for (Instruction& made : outside) block.body.push_back(std::move(made));
        block.body.push_back(std::move(panels));
        block.body.push_back(yield);
    }

    static bool has_products(const Instruction& made) {
        bool has = false;
        for (const Block& inner : made.blocks) {
            each_instruction(inner, [&](const Instruction& one) { has |= one.is(Op::wgmma); });
        }
        return has;
    }

    /// Tiles of the dots' shape that are computed up to the last loop and used after it.
    std::vector<Value> sums_after(const Block& block, std::ptrdiff_t loop) const {
        std::set<Value> before;
        for (std::ptrdiff_t i = 0; i <= loop; ++i) {
            const auto& results = block.body[i].results;
            before.insert(results.begin(), results.end());
        }
        std::vector<Value> sums;
        for (auto at = block.body.begin() + loop + 1; at != block.body.end(); ++at) {
            for (Value value : at->operands) {
                if (!before.contains(value) || !p_.is_tile(value)) continue;
                if (p_.type(value).type.shape.rank() != 2 || p_.type(value).type.shape[1] == 1) {
                    continue;
                }
                if (std::find(sums.begin(), sums.end(), value) == sums.end()) {
                    sums.push_back(value);
                }
            }
        }
        return sums;
    }

    /// A panel has only its own columns.
    void expect_no_reduction(const Instruction& made, bool in_panels) const {
        if (made.is(ir::Op::reduce) && column_axis(made.operands[0]) >= 0) {
            throw Refused("it reduces what a dot gives after its loop");
        }
        if (made.is(ir::Op::iota) && in_panels) {
            throw Refused("columns are counted after its loop");
        }
    }

    Value panel_value(Value value) {
        ValueType type = p_.type(value);
        const int axis = column_axis(value);
        // As many rows of a warpgroup as columns.
        ir::Shape tile{kPanelColumns * p_.groups[0], kPanelColumns * p_.groups[1]};
        const Layout whole = sums_layout(p_, tile, p_.groups);
        type.type.shape[axis] = tile[axis_];
        type.layout = type.type.shape.rank() == 1 ? whole.without(1 - axis_)
                                                  : whole.narrowed(type.type.shape);
        return p_.add(std::move(type), p_.value_name(value));
    }

    Value group_start(Block& block, int axis, std::int64_t step) {
        const Value result = p_.add({false, {DType::i64, {}}, {}});
        Instruction made = make(Op::group_start, {}, {result});
        block.body.push_back(std::move(made.with("axis", axis).with("step", step)));
        return result;
    }

    Value copy_of(Value value) const {
        const auto found = copies_.find(value);
        return found == copies_.end() ? value : found->second;
    }

    /// The dimension of the Ref that an axis of the accessed tile lies along.
    static std::size_t dimension(const Instruction& access, int axis) {
        const std::vector<std::int64_t>& sizes = access.list("index");
        std::size_t dim = 0;
        for (; dim < sizes.size(); ++dim) {
            if (sizes[dim] != 0 && axis-- == 0) break;
        }
        return dim;
    }

    /// One operation on the columns of a panel.
    void part(const Instruction& made, Value offset) {
        Instruction same = made;
        for (Value operand : made.operands) {
            if (p_.is_tile(operand) && column_axis(operand) >= 0 && !copies_.contains(operand)) {
                throw Refused("columns of what is stored are known before its loop");
            }
        }
        for (Value& operand : same.operands) operand = copy_of(operand);
        if (made.is(ir::Op::load) || made.is(ir::Op::store)) {
            const Value tile = made.is(ir::Op::load) ? made.result() : made.operands.back();
            if (column_axis(tile) < 0) throw Refused("a store is no tile of the dot's columns");
            const std::size_t dim = dimension(made, column_axis(tile));
            same.operands[dim] =
                append_scalar(p_, inner_, ir::Op::add, {same.operands[dim], offset});
            for (Attribute& one : same.attributes) {
                if (one.name == "index") one.numbers[dim] = kPanelColumns * p_.groups[axis_];
            }
        }
        for (Value& result : same.results) {
            const Value old = result;
            result = column_axis(old) >= 0 ? panel_value(old) : old;
            copies_[old] = result;
        }
        inner_.body.push_back(std::move(same));
        if (made.is(ir::Op::iota) && made.number("axis") == column_axis(made.result())) {
            copies_[made.result()] = shifted(copies_.at(made.result()), offset);
        }
    }

    /// Columns of a panel, counted from its own first one, as columns of the whole tile.
    Value shifted(Value columns, Value offset) {
        const auto append = [&](ir::Op op, std::vector<Value> operands, ValueType type) {
            const Value result = p_.add(std::move(type));
            inner_.body.push_back(make(op, std::move(operands), {result}));
            return result;
        };
        const ValueType tile = p_.type(columns);
        Value start = offset;
        if (tile.type.dtype != DType::i64) {
            start = append(ir::Op::cast, {offset}, {false, {tile.type.dtype, {}}, {}});
        }
        start = append(ir::Op::broadcast, {start}, tile);
        return append(ir::Op::add, {columns, start}, tile);
    }

    /// Panels to shared memory, then copies of them to global memory.
    void stores(const std::vector<Instruction>& bulk, Value panel, Value offset,
                std::int64_t of_group) {
        std::vector<std::string> buffers;
        for (const Instruction& store : bulk) {
            const Parameter& ref = p_.ref(store.symbol("of"));
            const Value whole = store.operands.back();
            if (column_axis(whole) != 1) throw Refused("a store is no tile of the dot's columns");
            Value tile = copy_of(whole);
            // Values that the store rounds need not be rounded first.
            const Instruction* const cast = uses_.definition(whole);
            if (cast != nullptr && cast->is(ir::Op::cast) &&
                p_.type(cast->operands[0]).type.dtype == DType::f32) {
                tile = copy_of(cast->operands[0]);
            }
            Buffer buffer;
            buffer.name = fmt::format("{}_panel{}", ref.name, p_.buffers.size());
            buffer.dtype = ref.dtype;
            buffer.rows = 64;
            buffer.columns = kPanelColumns;
            buffer.slots = kPanelSlots;
            buffer.per_group = true;
            Instruction made = make(Op::store_shared, {panel, tile});
            inner_.body.push_back(std::move(made.with_symbol("to", buffer.name)));
            buffers.push_back(buffer.name);
            p_.buffers.push_back(std::move(buffer));
        }
        for (std::size_t i = 0; i < bulk.size(); ++i) {
            const Instruction& store = bulk[i];
            const Parameter& ref = p_.ref(store.symbol("of"));
            Map map;
            map.name = fmt::format("{}_map{}", ref.name, p_.maps.size());
            map.ref = ref.name;
            for (std::int64_t size : store.list("index")) map.box.push_back(size == 0 ? 1 : 0);
            const std::size_t row = dimension(store, 0), column = dimension(store, 1);
            map.box[row] = 64;
            map.box[column] = kPanelColumns;
            std::vector<Value> at(store.operands.begin(), store.operands.end() - 1);
            if (p_.groups[0] > 1) {
                at[row] =
                    append_scalar(p_, inner_, ir::Op::add, {at[row], group_start(inner_, 0, 64)});
            }
            at[column] = append_scalar(p_, inner_, ir::Op::add, {at[column], offset});
            if (p_.groups[1] > 1) {
                at[column] = append_scalar(p_, inner_, ir::Op::add,
                                           {at[column], group_start(inner_, 1, of_group)});
            }
            at.push_back(panel);
            Instruction made = make(Op::tma_store, at);
            made.with_symbol("map", map.name).with_symbol("from", buffers[i]);
            inner_.body.push_back(std::move(made));
            p_.maps.push_back(std::move(map));
            bulk_ = true;
        }
        if (!bulk.empty()) inner_.body.push_back(make(Op::commit_stores, {}));
    }

    Program& p_;
    Uses uses_;
    int axis_;  ///< of tiles, along the columns of wgmma
    std::int64_t columns_ = 0;
    Block inner_;
    std::map<Value, Value> copies_;
    bool bulk_ = false;
};

}  // namespace

void split_epilogue(Program& program) {
    Split(program).run();
    remove_unused(program);
    program.level = Level::split;
}

}  // namespace tilewright::cuda::schedule
