// The loop over panels in an epilogue.
#include "cuda/schedule/split_epilogue.h"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/schedule/panels.h"
#include "cuda/schedule/stage.h"
#include "cuda/schedule/tools.h"

namespace tilewright::cuda::schedule {
namespace {

constexpr int kPanelSlots = 2;

class Split {
  public:
    explicit Split(Program& program) : p_(program), uses_(program), cut_(program) {}

    void run() {
        each_instruction(p_.body, [&](Instruction& made) {
            if (!made.is(Op::role) || made.symbol("of") != "consumer") return;
            for (Instruction& inner : made.blocks[0].body) {
                if (inner.is(Op::programs)) programs(inner.blocks[0]);
            }
            if (ahead_) carry(made.blocks[0], ahead_->consumed);
            if (bulk_) {
                Instruction wait = make(Op::wait_stores, {});
                made.blocks[0].body.push_back(std::move(wait.flag("complete")));
            }
        });
        if (ahead_) produce();
    }

  private:
    /// A count in a loop over programs: before it, in it, after the panels of one, after all.
    struct Counts {
        Value first, argument, next, last;
    };
    /// A load that TMA does ahead, panel by panel.
    struct Ahead {
        std::string channel;
        Instruction load;        ///< of the whole tile
        std::int64_t count = 0;  ///< of panels
        Block slice;             ///< what its indices are computed from
        Counts consumed;
    };

    Value new_count() { return p_.add({true, {}, {}}); }

    /// Carries a count through a role's loop over programs.
    void carry(Block& role, const Counts& counts) {
        const auto at = std::find_if(role.body.begin(), role.body.end(),
                                     [](const Instruction& of) { return of.is(Op::programs); });
        Block& body = at->blocks[0];
        at->operands.push_back(counts.first);
        body.arguments.push_back(counts.argument);
        body.body.back().operands.push_back(counts.next);
        at->results.push_back(counts.last);
        Instruction first = make(Op::count, {}, {counts.first});
        role.body.insert(at, std::move(first.with_symbol("channel", ahead_->channel)));
    }

    /// What the index of a load is computed from, in order.
    void collect(Value value, std::set<Value>& known, Block& to) const {
        const Instruction* const made = uses_.definition(value);
        if (made == nullptr || !known.insert(value).second) return;
        for (Value operand : made->operands) collect(operand, known, to);
        to.body.push_back(*made);
    }

    /// The panel of a load that TMA does ahead: from the channel's next slot.
    void read_ahead(const Instruction& load) {
        Ahead ahead;
        ahead.load = load;
        for (Attribute& one : ahead.load.attributes) {
            if (one.name == "index")
                one.numbers[accessed_dimension(load, 0)] = kRows * p_.groups[0];
        }
        ahead.count = cut_.columns() / kPanelColumns * cut_.halves();
        std::set<Value> known;
        for (Value index : load.operands) collect(index, known, ahead.slice);
        const Parameter& ref = p_.ref(load.symbol("of"));
        ahead.channel = fmt::format("ahead{}", p_.channels.size());
        ahead.consumed = {new_count(), new_count(), new_count(), new_count()};

        Buffer buffer;
        buffer.name = fmt::format("{}_ahead{}", ref.name, p_.buffers.size());
        buffer.dtype = ref.dtype;
        buffer.rows = kRows * p_.groups[0];
        buffer.columns = kPanelColumns;
        buffer.slots = kAheadSlots;
        Channel channel;
        channel.name = ahead.channel;
        channel.buffers = {buffer.name};
        channel.slots = kAheadSlots;
        channel.bytes = buffer.slot_bytes();
        channel.empty_arrivals = 4 * p_.consumer_groups();

        const Value at = new_count(), next = new_count();
        const auto add = [&](Instruction made) {
            inner_.body.push_back(std::move(made.with_symbol("channel", channel.name)));
        };
        inner_.arguments.push_back(at);
        add(make(Op::await, {at}));
        const Value panel = copies_[load.result()] = cut_.panel_value(load.result());
        Instruction read = make(Op::read_panel, {at}, {panel});
        read.line = load.line;
        add(std::move(read.with_symbol("reads", buffer.name)));
        add(make(Op::release, {at}));
        add(make(Op::next, {at}, {next}));
        next_ahead_ = next;
        p_.buffers.push_back(std::move(buffer));
        p_.channels.push_back(std::move(channel));
        ahead_ = std::move(ahead);
    }

    /// The panels of the load, by a thread of their own, which waits for epilogues while the
    /// producer goes on with the next program.
    void produce() {
        Role loader = p_.role("producer");
        loader.name = "loader";
        loader.first_warp += 1;
        loader.warps = 1;
        p_.roles.push_back(loader);
        Instruction made_role = make(Op::role, {});
        made_role.with_symbol("of", loader.name);
        Instruction all_programs = make(Op::programs, {});
        all_programs.blocks.emplace_back();
        all_programs.blocks[0].body.push_back(make(ir::Op::yield, {}));
        made_role.blocks.emplace_back();
        made_role.blocks[0].body.push_back(std::move(all_programs));
        const auto role = p_.body.body.insert(p_.body.body.begin(), std::move(made_role));
        const Counts counts{new_count(), new_count(), new_count(), new_count()};
        const Buffer& buffer = p_.buffer(p_.channel(ahead_->channel).buffers[0]);
        for (Instruction& made : role->blocks[0].body) {
            if (!made.is(Op::programs)) continue;
            Block& body = made.blocks[0];
            Block added;
            std::map<Value, Value> copies;
            clone(p_, ahead_->slice, added, copies, [](const Instruction&) { return true; });
            Map map = staged_map(p_, ahead_->load, buffer);
            Block iteration;
            const Value panel = p_.add({false, {DType::i64, {}}, {}}, "panel");
            const Value at = new_count(), next = new_count();
            iteration.arguments = {panel, at};
            const auto add = [&](Instruction one) {
                iteration.body.push_back(std::move(one.with_symbol("channel", ahead_->channel)));
            };
            add(make(Op::acquire, {at}));
            add(make(Op::publish, {at}));
            std::vector<Value> place;
            for (Value index : ahead_->load.operands) {
                const auto found = copies.find(index);
                place.push_back(found == copies.end() ? index : found->second);
            }
            const std::size_t column = accessed_dimension(ahead_->load, 1);
            const PanelCut::Offsets offsets = cut_.offsets_of(iteration, panel);
            place[column] =
                append_scalar(p_, iteration, ir::Op::add, {place[column], offsets.columns});
            if (offsets.rows) {
                Value& row = place[accessed_dimension(ahead_->load, 0)];
                row = append_scalar(p_, iteration, ir::Op::add, {row, *offsets.rows});
            }
            place.push_back(at);
            Instruction load = make(Op::tma_load, std::move(place));
            load.line = ahead_->load.line;
            add(std::move(load.with_symbol("map", map.name).with_symbol("to", buffer.name)));
            add(make(Op::next, {at}, {next}));
            iteration.body.push_back(make(ir::Op::yield, {next}));
            const bool known = std::any_of(p_.maps.begin(), p_.maps.end(),
                                           [&](const Map& one) { return one.name == map.name; });
            if (!known) p_.maps.push_back(std::move(map));

            const Value zero = append_constant(p_, added, 0);
            const Value all = append_constant(p_, added, ahead_->count);
            const Value one = append_constant(p_, added, 1);
            Instruction loop =
                make(ir::Op::for_loop, {zero, all, one, counts.argument}, {counts.next});
            loop.blocks.push_back(std::move(iteration));
            added.body.push_back(std::move(loop));
            body.body.insert(body.body.end() - 1, std::make_move_iterator(added.body.begin()),
                             std::make_move_iterator(added.body.end()));
        }
        carry(role->blocks[0], counts);
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
        cut_.set(p_.type(accumulators[0]).type.shape);
        for (Value value : accumulators) {
            if (p_.type(value).type.shape[cut_.axis()] != cut_.columns()) {
                throw Refused("its dots have different columns");
            }
        }
        const std::int64_t of_group = cut_.columns() / p_.groups[cut_.axis()];
        Instruction panels = make(Op::panels, accumulators);
        panels.with("count", of_group / kPanelColumns * cut_.halves());
        inner_ = {};
        const Value panel = p_.add({false, {DType::i64, {}}, {}}, "panel");
        inner_.arguments.push_back(panel);
        copies_.clear();
        for (Value value : accumulators) {
            inner_.arguments.push_back(cut_.panel_value(value));
            copies_[value] = inner_.arguments.back();
        }
        const auto [offset, rows] = cut_.offsets_of(inner_, panel);
        rows_ = rows;
        std::vector<Instruction> outside, bulk;
        Value threads = offset;  // the first column of a warpgroup's panel
        if (p_.groups[cut_.axis()] > 1) {
            threads =
                append_scalar(p_, inner_, ir::Op::add,
                              {offset, group_start(inner_, cut_.axis(), of_group - kPanelColumns)});
        }
        std::vector<Instruction> before;
        const std::vector<Instruction> lines = loads_of_lines(block, loop, panels);
        for (auto at = block.body.begin(); at != block.body.end(); ++at) {
            if (at == loop) {
                before = std::move(outside);
                before.push_back(*at);
                before.insert(before.end(), lines.begin(), lines.end());
                outside.clear();
                continue;
            }
            if (at->is(ir::Op::yield)) break;
            if (at->is(ir::Op::load) && copies_.contains(at->result())) continue;
            const bool store = at->is(ir::Op::store);
            const bool in_panels =
                store ? !chained || cut_.column_axis(at->operands.back()) >= 0
                      : std::any_of(at->results.begin(), at->results.end(),
                                    [&](Value value) { return cut_.is_cut(value); });
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
        const std::int64_t count = of_group / kPanelColumns * cut_.halves();
        if (!bulk.empty() && count % kPanelSlots != 0) {
            // The last panel of the previous program may still be in the first panel's slot.
            Instruction ready = make(Op::wait_stores, {});
            outside.push_back(std::move(ready.with("pending", 0)));
            outside.push_back(make(Op::group_sync, {}));
        }
        Instruction yield = block.body.back();
        if (ahead_) {
            panels.operands.push_back(ahead_->consumed.argument);
            panels.results.push_back(ahead_->consumed.next);
            inner_.body.push_back(make(ir::Op::yield, {next_ahead_}));
        }
        if (is_light(inner_, count)) panels.flag("unrolled");
        panels.blocks.push_back(std::move(inner_));
        block.body = std::move(before);
        for (Instruction& made : outside) block.body.push_back(std::move(made));
        block.body.push_back(std::move(panels));
        block.body.push_back(yield);
    }

    /// Loads of lines of columns, such as a bias, are made while the last products run. Panels have
    /// parts of their registers.
    std::vector<Instruction> loads_of_lines(const Block& block,
                                            std::vector<Instruction>::iterator loop,
                                            Instruction& panels) {
        constexpr int kMostRegisters = 64;
        std::vector<Instruction> loads;
        if (is_chained(p_) || cut_.halves() > 1 || p_.turns > 1) return loads;
        std::set<Value> known;
        for (auto at = block.body.begin(); at != std::vector<Instruction>::const_iterator(loop);
             ++at) {
            known.insert(at->results.begin(), at->results.end());
        }
        int registers = 0;
        std::map<Value, Value> copies;  // of what several loads need, too
        for (auto at = std::vector<Instruction>::const_iterator(loop); at != block.body.end();
             ++at) {
            if (!at->is(ir::Op::load) || at->has("masked") || at->has("ahead")) continue;
            const ValueType& type = p_.type(at->result());
            if (type.type.shape.rank() != 1 || cut_.column_axis(at->result()) != 0) continue;
            if (type.layout->registers() != 1 << type.layout->reg.size()) continue;  // 192 columns
            registers += type.layout->registers();
            if (registers > kMostRegisters) break;
            Block slice;
            for (Value index : at->operands) collect(index, known, slice);
            // What else is computed after the products stays there.
            Block made;
            clone(p_, slice, made, copies, [](const Instruction&) { return true; });
            for (Instruction& one : made.body) loads.push_back(std::move(one));
            Instruction load = *at;
            for (Value& index : load.operands) {
                const auto copy = copies.find(index);
                if (copy != copies.end()) index = copy->second;
            }
            loads.push_back(std::move(load));
            const Value panel = cut_.panel_value(at->result());
            panels.operands.push_back(at->result());
            inner_.arguments.push_back(panel);
            copies_[at->result()] = panel;
        }
        return loads;
    }

    /// May a loop over so many panels be unrolled? That leaves accumulators where they are, but is
    /// compiled so many times.
    bool is_light(const Block& body, std::int64_t count) const {
        constexpr std::int64_t kMostOperations = 64, kFunction = 24;
        if (is_chained(p_) || cut_.halves() > 1 || p_.turns > 1) return false;
        std::int64_t operations = 0;
        for (const Instruction& made : body.body) {
            if (made.is(ir::Op::store)) return false;  // by threads
            if (made.op != Op::tile || made.results.empty() || !p_.is_tile(made.result())) continue;
            if (made.is(ir::Op::load) || made.is(ir::Op::random_bits)) return false;
            if (!ir::is_elementwise(made.tile)) continue;
            const bool function = ir::function_info(made.tile) != nullptr && !made.has("approx");
            operations += function || made.is(ir::Op::div) ? kFunction : 1;
        }
        return operations * count <= kMostOperations;
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
        if (made.is(ir::Op::reduce) && cut_.column_axis(made.operands[0]) >= 0) {
            throw Refused("it reduces what a dot gives after its loop");
        }
        if (made.is(ir::Op::iota) && in_panels) {
            throw Refused("columns are counted after its loop");
        }
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

    /// One operation on the columns of a panel.
    void part(const Instruction& made, Value offset) {
        Instruction same = made;
        for (Value operand : made.operands) {
            if (p_.is_tile(operand) && cut_.is_cut(operand) && !copies_.contains(operand)) {
                throw Refused("columns of what is stored are known before its loop");
            }
        }
        for (Value& operand : same.operands) operand = copy_of(operand);
        if (made.has("ahead")) return read_ahead(made);
        if (made.is(ir::Op::load) || made.is(ir::Op::store)) {
            const Value tile = made.is(ir::Op::load) ? made.result() : made.operands.back();
            const int column = cut_.column_axis(tile), row = cut_.row_axis(tile);
            if (column < 0 && (row < 0 || made.is(ir::Op::store))) {
                throw Refused("a store is no tile of the dot's columns");
            }
            const auto cut = [&](int axis, Value by, std::int64_t size) {
                const std::size_t dim = accessed_dimension(made, axis);
                same.operands[dim] =
                    append_scalar(p_, inner_, ir::Op::add, {same.operands[dim], by});
                for (Attribute& one : same.attributes) {
                    if (one.name == "index") one.numbers[dim] = size;
                }
            };
            if (column >= 0) cut(column, offset, kPanelColumns * p_.groups[cut_.axis()]);
            if (made.is(ir::Op::store) && cut_.halves() * p_.groups[0] > 2) {
                throw Refused("stores by threads take the registers of its sums");
            }
            if (row >= 0) cut(row, *rows_, kRows * p_.groups[1 - cut_.axis()]);
        }
        for (Value& result : same.results) {
            const Value old = result;
            result = cut_.is_cut(old) ? cut_.panel_value(old) : old;
            copies_[old] = result;
        }
        inner_.body.push_back(std::move(same));
        if (made.is(ir::Op::iota)) {
            const Value counted = made.result();
            const int axis = static_cast<int>(made.number("axis"));
            if (axis == cut_.column_axis(counted)) {
                copies_[counted] = shifted(copies_.at(counted), offset);
            } else if (axis == cut_.row_axis(counted)) {
                copies_[counted] = shifted(copies_.at(counted), *rows_);
            }
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
            if (cut_.column_axis(whole) != 1)
                throw Refused("a store is no tile of the dot's columns");
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
            const std::size_t row = accessed_dimension(store, 0),
                              column = accessed_dimension(store, 1);
            map.box[row] = 64;
            map.box[column] = kPanelColumns;
            std::vector<Value> at(store.operands.begin(), store.operands.end() - 1);
            if (p_.groups[0] > 1) {
                at[row] =
                    append_scalar(p_, inner_, ir::Op::add, {at[row], group_start(inner_, 0, 64)});
            }
            if (rows_) at[row] = append_scalar(p_, inner_, ir::Op::add, {at[row], *rows_});
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
    PanelCut cut_;
    std::optional<Value> rows_;  ///< the first one of a panel, where there are two
    Block inner_;
    std::map<Value, Value> copies_;
    bool bulk_ = false;
    std::optional<Ahead> ahead_;
    Value next_ahead_;
};

}  // namespace

void split_epilogue(Program& program) {
    Split(program).run();
    remove_unused(program);
    program.level = Level::split;
}

}  // namespace tilewright::cuda::schedule
