// Plans fused runs: the steps that keep a block of lanes in registers from op to op.
#include "cpu/fuse.h"

#include <algorithm>
#include <compare>
#include <map>
#include <optional>
#include <utility>

#include "cpu/fuse_gradients.h"
#include "cpu/fuse_ranges.h"

namespace tilewright::cpu {
namespace {

using ir::Op;

bool is_narrow_float(DType dtype) {
    return dtype == DType::f16 || dtype == DType::bf16;
}

/// Dtypes that a block can hold.
bool fits_lanes(DType dtype) {
    return dtype == DType::f32 || dtype == DType::i32 || dtype == DType::boolean ||
           is_narrow_float(dtype);
}

/// Dtypes that steps can read from memory directly.
bool is_direct(DType dtype) {
    return dtype == DType::f32 || dtype == DType::i32;
}

/// The step that replaces an op whose operands are affine in row and lane.
struct Absorbed {
    FusedKey key;
    Affine form;
};

bool is_store(const StripOp& op) {
    return op.stored_ref >= 0;
}

/// True for ops that make a value; stores and reductions only read one.
bool makes_value(const StripOp& op) {
    return op.kind == StripOp::Kind::map && !is_store(op);
}

class Planner {
  public:
    Planner(const Chain& chain, const DefUse& uses, const Program& program)
        : chain_(chain), ops_(chain.ops), uses_(uses), program_(program) {}
    /// Of the same chain, some of whose selects are decided.
    Planner(const Planner& whole, const DecidedOps& decided)
        : chain_(whole.chain_),
          ops_(decided.ops),
          uses_(whole.uses_),
          program_(whole.program_),
          origins_(&decided.origins) {}

    /// True when the op may belong to a run, regardless of other ops.
    bool may_fuse(const StripOp& op) const {
        if (!op.function || (op.super != Super::none && op.super != Super::affine_select))
            return false;
        if (op.kind == StripOp::Kind::reduce_rows || op.scans()) return false;
        if (op.kind == StripOp::Kind::reduce_lanes) {
            return op.out.dtype == DType::f32 && lane_type(op.in[0].dtype) == DType::f32 &&
                   step({{Op::reduce, DType::f32, DType::f32, 0, op.reduction}});
        }
        if (is_store(op)) return op.num_inputs == 1 && fits_lanes(op.out.dtype);
        return true;
    }

    /// Plans ops [first, last). On failure `failed_at()` is the op that must stay out.
    bool plan(std::size_t first, std::size_t last) {
        run_ = {};
        run_.first = first;
        run_.last = failed_at_ = last;
        held_ = kNone;
        saved_.clear();
        places_ = {};  // an attempt that failed may have left some
        look_ahead();
        for (std::size_t t = first; t < last; ++t) {
            if (skipped_[t]) continue;
            failed_at_ = t;
            if (!emit_op(t)) return false;
        }
        run_.joins_panels = lie_side_by_side();
        return emit({Op::yield});
    }

    std::size_t failed_at() const { return failed_at_; }

    /// True when the planned run computes values from positions, which strips would have to store.
    bool makes_positions() const {
        for (std::size_t t = run_.first; t < run_.last; ++t) {
            if (absorbed_[t] && !skipped_[t] && ops_[t].super == Super::none) return true;
        }
        return false;
    }
    FusedRun take() {
        share_lanes();
        if (origins_ == nullptr && run_.reductions.empty()) plan_ranges();
        if (run_.forms.empty()) run_.compiled = program_.kernels->fused.compiled(run_.shapes);
        return std::move(run_);
    }

  private:
    static constexpr std::size_t kNone = ~std::size_t{0};

    static DType lane_type(DType dtype) { return is_narrow_float(dtype) ? DType::f32 : dtype; }

    /// Plans the runs in which selects of affine comparisons are decided.
    void plan_ranges() {
        auto selects =
            find_range_selects(chain_, run_.first, run_.last, external_, uses_, program_);
        if (!selects) return;
        std::vector<FusedRun> runs;
        for (const DecidedOps& decided : selects->by_conditions) {
            Planner planner(*this, decided);
            if (!planner.plan(run_.first, run_.last)) return;
            runs.push_back(planner.take());
        }
        run_.conditions = std::move(selects->conditions);
        run_.by_conditions = std::move(runs);
    }

    void (*step(const FusedShape& shape) const)() { return program_.kernels->fused.step(shape); }

    /// True when the panels of all that the run reads and writes in memory follow each other.
    bool lie_side_by_side() const {
        const auto joins = [&](const StripSource& source) {
            return source.panel_stride == source.lane_stride * chain_.width;
        };
        return std::all_of(run_.operands.begin(), run_.operands.end(),
                           [&](const FusedRun::Operand& operand) {
                               if (operand.temporary >= 0) return true;
                               const StripOp& op = ops_[operand.op];
                               return joins(operand.input < 0 ? op.out : op.in[operand.input]);
                           }) &&
               std::all_of(run_.reductions.begin(), run_.reductions.end(),
                           [&](std::size_t op) { return joins(ops_[op].out); });
    }

    /// A row that several operands read from different lanes on.
    struct Row {
        Home home = Home::none;
        std::uint32_t index = 0;
        std::int64_t row_stride = 0, panel_stride = 0;
        int view_row_axis = -1, view_lane_axis = -1;
        Coordinates start{}, step{};  ///< of a part of a view, where `start` has no lane

        auto operator<=>(const Row&) const = default;
    };

    /// The row of an operand and its first lane there; nothing for other operands.
    std::optional<std::pair<Row, std::int64_t>> row_of(const FusedRun::Operand& operand) const {
        if (operand.temporary >= 0 || operand.input < 0) return {};
        const StripSource& in = ops_[operand.op].in[operand.input];
        if (in.lane_stride != 1 || !is_direct(in.dtype)) return {};
        Row row{in.home,
                in.index,
                in.row_stride,
                in.panel_stride,
                in.view_row_axis,
                in.view_lane_axis,
                {},
                every_axis<std::int64_t>(1)};
        if (in.home == Home::buffer) return std::pair(row, in.offset);
        if (in.home != Home::view || in.view_lane_axis < 0 || in.offset != 0) return {};
        std::int64_t first = 0;
        if (const auto part = program_.parts.find(in.index); part != program_.parts.end()) {
            row.index = part->second.from;
            row.start = part->second.start;
            row.step = part->second.step;
            first = std::exchange(row.start[in.view_lane_axis], 0);
        }
        return std::pair(row, first);
    }

    /// Finds operands that read the same rows a few lanes apart.
    void share_lanes() {
        std::map<Row, std::map<std::int64_t, std::vector<std::size_t>>> rows;
        for (std::size_t i = 0; i < run_.operands.size(); ++i) {
            if (const auto found = row_of(run_.operands[i]))
                rows[found->first][found->second].push_back(i);
        }
        std::vector<FusedPlace*> places;
        for (FusedShape& shape : run_.shapes) {
            for (FusedPlace& place : shape.place) {
                if (place.kind != FusedPlace::Kind::none) places.push_back(&place);
            }
        }
        for (const auto& [row, lanes] : rows) {
            const auto& [first, bases] = *lanes.begin();
            const auto end = lanes.upper_bound(first + FusedPlace::kMostShift);
            if (end == std::next(lanes.begin())) continue;
            for (auto place = lanes.begin(); place != end; ++place) {
                for (const std::size_t i : place->second) {
                    places[i]->base = static_cast<int>(bases[0]);
                    places[i]->shift = static_cast<int>(place->first - first);
                }
            }
        }
    }

    std::optional<Absorbed> absorb(const StripOp& op) const {
        if (!makes_value(op)) return {};
        if (op.super == Super::affine_select) {
            return Absorbed{{Op::select, DType::i64, DType::f32}, op.affine};
        }
        const DType in = op.in[op.num_inputs - 1].dtype;
        if (in != DType::i32 && in != DType::i64) return {};
        if (op.out.dtype == DType::boolean) {
            if (op.op == Op::eq || op.op == Op::ne) {
                const auto form = affine_difference(op.in[0], op.in[1], uses_.makers(), program_);
                if (!form) return {};
                return Absorbed{{op.op, DType::i64, DType::boolean}, *form};
            }
            const auto form = affine_condition(op, uses_.makers(), program_);
            if (!form) return {};
            return Absorbed{{Op::ge, DType::i64, DType::boolean}, *form};
        }
        if (op.out.dtype == DType::f32 && op.op == Op::cast) {
            const auto form = affine_form(op.in[0], uses_.makers(), program_);
            if (form) return Absorbed{{Op::iota, DType::i32, DType::f32}, *form};
        }
        if (op.out.dtype == DType::i32) {
            const auto form = affine_form(op.out, uses_.makers(), program_);
            if (form) return Absorbed{{Op::iota, DType::i32, DType::i32}, *form};
        }
        return {};
    }

    /// The op of the run, before `t`, that makes input k of op t; kNone: none does.
    std::size_t maker(std::size_t t, std::size_t k) const {
        const StripSource& in = ops_[t].in[k];
        if (in.home != Home::buffer) return kNone;
        for (std::size_t p = t; p-- > run_.first;) {
            if (makes_value(ops_[p]) && ops_[p].out.index == in.index) return p;
        }
        return kNone;
    }

    /// The number of inputs that op t needs as values; an absorbed op computes them from positions.
    std::size_t inputs(std::size_t t) const {
        if (absorbed_[t]) return ops_[t].super == Super::affine_select ? 1 : 0;
        return static_cast<std::size_t>(ops_[t].num_inputs);
    }

    int uses(std::size_t t, std::size_t p) const {
        int count = 0;
        for (std::size_t k = 0; k < inputs(t); ++k) count += maker(t, k) == p;
        return count;
    }

    /// Finds the absorbed ops, the values that are then unused, and those used outside the run.
    void look_ahead() {
        absorbed_.assign(ops_.size(), std::nullopt);
        skipped_.assign(ops_.size(), false);
        external_.assign(ops_.size(), false);
        for (std::size_t t = run_.first; t < run_.last; ++t) absorbed_[t] = absorb(ops_[t]);
        for (std::size_t t = run_.last; t-- > run_.first;) {
            if (!makes_value(ops_[t])) continue;
            int inside = 0;
            bool overwritten = false, needed = false;
            for (std::size_t r = t + 1; r < run_.last; ++r) {
                overwritten |= makes_value(ops_[r]) && ops_[r].out.index == ops_[t].out.index;
                needed |= !skipped_[r] && uses(r, t) > 0;
            }
            for (std::size_t r = run_.first; r < run_.last; ++r) {
                const StripOp& reader = chain_.ops[r];
                for (std::size_t k = 0; k < static_cast<std::size_t>(reader.num_inputs); ++k) {
                    const StripSource& in = reader.in[k];
                    inside += in.home == Home::buffer && in.index == ops_[t].out.index;
                }
            }
            external_[t] = !overwritten && uses_.uses(ops_[t].out.index) > inside;
            skipped_[t] = !needed && !external_[t];
        }
    }

    /// True when the value of op t is read after the block's next change.
    bool needs_saving(std::size_t t) const {
        bool changed = false;
        for (std::size_t r = t + 1; r < run_.last; ++r) {
            if (skipped_[r]) continue;
            const int count = uses(r, t);
            if (count > 0 && changed) return true;
            if (!makes_value(ops_[r]) && count > 0) continue;  // reads the block only
            if (count > 1 && inputs(r) != 2) return true;
            if (count > 0 && has_narrow_input(r)) return true;
            changed = true;
        }
        return false;
    }

    /// True when op t has several inputs, one of which must be widened first.
    bool has_narrow_input(std::size_t t) const {
        if (inputs(t) < 2) return false;
        for (std::size_t k = 0; k < inputs(t); ++k) {
            if (maker(t, k) == kNone && !is_direct(ops_[t].in[k].dtype)) return true;
        }
        return false;
    }

    // ---- Emission.

    bool emit(const FusedKey& key, FusedStep made = {}) {
        made.function = step({key, places_});
        run_.steps.push_back(made);
        if (key.op != Op::yield) run_.shapes.push_back({key, places_});
        places_ = {};
        return made.function != nullptr;
    }

    /// A step that refers to an operand.
    bool emit(const FusedKey& key, const FusedRun::Operand& operand, bool splat) {
        FusedStep made;
        return add_operand(made, 0, operand, splat) && emit(key, made);
    }

    bool add_operand(FusedStep& made, std::size_t k, const FusedRun::Operand& operand, bool splat) {
        made.operand[k] = static_cast<std::uint8_t>(run_.operands.size());
        using Kind = FusedPlace::Kind;
        const Kind kind = operand.temporary >= 0 ? Kind::temporary
                          : splat                ? Kind::splat
                                                 : Kind::lanes;
        places_[k] = {kind, operand.temporary};
        made.walks[k] = kind == Kind::lanes ? -1 : 0;
        run_.operands.push_back(operand);
        return run_.operands.size() <= FusedCall::kMaxOperands;
    }

    bool save(FusedRun::Operand& operand) {
        operand.temporary = run_.num_temporaries++;
        return run_.num_temporaries <= FusedRun::kMaxTemporaries &&
               emit({Op::store, DType::f32}, operand, false);
    }

    /// Where input k of op t is in memory.
    FusedRun::Operand place(std::size_t t, std::size_t k) const {
        const std::size_t p = maker(t, k);
        if (p != kNone) return saved_.at(p);
        const auto widened = widened_.find(k);
        if (widened != widened_.end()) return widened->second;
        const FusedRun::Operand own{t, static_cast<int>(k), -1};
        if (origins_ == nullptr) return own;
        const auto origin = origins_->find({t, own.input});
        return origin == origins_->end() ? own : origin->second;
    }

    bool is_splat(std::size_t t, std::size_t k) const {
        return maker(t, k) == kNone && !widened_.contains(k) && ops_[t].in[k].lane_stride == 0;
    }

    bool is_held(std::size_t t, std::size_t k) const {
        return held_ != kNone && maker(t, k) == held_;
    }

    bool is_placed(std::size_t t, std::size_t k) const {
        const std::size_t p = maker(t, k);
        return p == kNone ? widened_.contains(k) || fits_lanes(ops_[t].in[k].dtype)
                          : saved_.contains(p);
    }

    bool load(std::size_t t, std::size_t k) {
        if (!is_placed(t, k)) return false;
        const bool from_memory = maker(t, k) == kNone && !widened_.contains(k);
        const DType dtype = from_memory ? ops_[t].in[k].dtype : DType::f32;
        held_ = kNone;
        return emit({Op::load, dtype}, place(t, k), is_splat(t, k));
    }

    /// Widens narrow inputs to temporaries, so that steps can read them.
    bool widen_inputs(std::size_t t) {
        widened_.clear();
        if (!has_narrow_input(t)) return true;
        for (std::size_t k = 0; k < inputs(t); ++k) {
            if (maker(t, k) != kNone || is_direct(ops_[t].in[k].dtype)) continue;
            FusedRun::Operand operand;
            if (!load(t, k) || !save(operand)) return false;
            widened_[k] = operand;
        }
        return true;
    }

    bool emit_op(std::size_t t) {
        const StripOp& op = ops_[t];
        widened_.clear();
        if (!makes_value(op)) {
            if (!is_held(t, 0) && !load(t, 0)) return false;
            if (is_store(op)) return emit({Op::store, op.out.dtype}, {t, -1, -1}, false);
            FusedStep reduce;
            reduce.index = static_cast<std::uint8_t>(run_.reductions.size());
            run_.reductions.push_back(t);
            return run_.reductions.size() <= FusedCall::kMaxReductions &&
                   emit({Op::reduce, DType::f32, DType::f32, 0, op.reduction}, reduce);
        }
        if (!fits_lanes(op.out.dtype)) return false;
        if (!(absorbed_[t] ? emit_absorbed(t) : emit_elementwise(t))) return false;
        held_ = t;
        if (needs_saving(t)) {
            FusedRun::Operand operand;
            if (!save(operand)) return false;
            saved_[t] = operand;
        }
        return !external_[t] || emit({Op::store, op.out.dtype}, {t, -1, -1}, false);
    }

    bool emit_absorbed(std::size_t t) {
        if (inputs(t) > 0 && !is_held(t, 0) && !load(t, 0)) return false;
        FusedStep made;
        made.index = static_cast<std::uint8_t>(run_.forms.size());
        made.immediate = static_cast<float>(ops_[t].immediate[3]);
        run_.forms.push_back(absorbed_[t]->form);
        return run_.forms.size() <= FusedCall::kMaxAffine && emit(absorbed_[t]->key, made);
    }

    bool emit_elementwise(std::size_t t) {
        const StripOp& op = ops_[t];
        const std::size_t count = inputs(t);
        for (std::size_t k = 0; k < count; ++k) {
            if (!fits_lanes(op.in[k].dtype)) return false;
        }
        if (!widen_inputs(t)) return false;
        const DType in = lane_type(op.in[count - 1].dtype);
        FusedKey key{op.op, in, op.out.dtype};
        FusedStep made;
        if (op.op == Op::cast) {
            key.in = op.in[0].dtype;
            if (!is_held(t, 0) && !load(t, 0)) return false;
            // Widened already; or rounded by the stores, where nothing else reads it.
            if (is_narrow_float(key.in) && key.out == DType::f32) return true;
            if (is_narrow_float(key.out) && key.in == DType::f32 && only_stored(t)) return true;
            return emit(key);
        }
        std::size_t value = 0;
        while (value < count && !is_held(t, value)) ++value;
        if (value == count) {
            value = 0;
            if (!load(t, 0)) return false;
        } else if (count == 2 && is_held(t, 1 - value)) {
            key.value = FusedKey::kBoth;
        }
        if (key.value != FusedKey::kBoth) {
            key.value = static_cast<int>(value);
            for (std::size_t k = 0, at = 0; k < count; ++k) {
                if (k == value) continue;
                if (!is_placed(t, k)) return false;
                if (!add_operand(made, at++, place(t, k), is_splat(t, k))) return false;
            }
        }
        if (op.op == Op::select) key.in = DType::f32;
        if (!emit(key, made)) return false;
        if (!is_narrow_float(op.out.dtype)) return true;
        return emit({Op::cast, DType::f32, op.out.dtype});
    }

    bool only_stored(std::size_t t) const {
        for (std::size_t r = t + 1; r < run_.last; ++r) {
            if (!is_store(ops_[r]) && uses(r, t) > 0) return false;
        }
        return true;
    }

    const Chain& chain_;
    const std::vector<StripOp>& ops_;
    const DefUse& uses_;
    const Program& program_;
    const std::map<std::pair<std::size_t, int>, FusedRun::Operand>* origins_ = nullptr;
    FusedRun run_;
    std::array<FusedPlace, 2> places_{};  ///< of the operands of the next step
    std::vector<std::optional<Absorbed>> absorbed_;
    std::vector<bool> skipped_, external_;
    std::size_t held_ = kNone;  ///< the op whose value is in the block
    std::size_t failed_at_ = 0;
    std::map<std::size_t, FusedRun::Operand> saved_, widened_;
};

/// The least work() that outweighs the cost of starting a block. It is less with wide rows, where
/// strips and the data that they read and write take more of the L1 cache.
constexpr int kLeastWork = 4, kLeastWorkOnWideRows = 2;

/// True for chains on rows of arrays alone, which are wide where neighbouring programs run as one.
bool reads_arrays(const Chain& chain, const DefUse& uses) {
    const auto is_array = [&](const StripSource& source) {
        return source.home == Home::none || source.home == Home::view ||
               (source.lane_stride == 0 && source.row_stride == 0) ||
               (source.home == Home::buffer && uses.writes(source.index) == 1 &&
                std::any_of(chain.ops.begin(), chain.ops.end(), [&](const StripOp& op) {
                    return makes_value(op) && op.out == source;
                }));
    };
    return std::all_of(chain.ops.begin(), chain.ops.end(), [&](const StripOp& op) {
        return is_array(op.out) && std::all_of(op.in.begin(), op.in.end(), is_array);
    });
}

/// Ops [first, last) that gain from registers. Stores need no other pass, but those of wide rows,
/// which may go past the caches; a mask costs nothing where a strip has nothing to mask; functions
/// leave the registers.
int work(const Chain& chain, bool wide, std::size_t first, std::size_t last) {
    int result = 0;
    for (std::size_t i = first; i < last; ++i) {
        const StripOp& op = chain.ops[i];
        const bool function = op.op == Op::exp || op.op == Op::exp2 || op.op == Op::log ||
                              op.op == Op::log2 || op.op == Op::tanh || op.op == Op::logistic ||
                              op.op == Op::erf;
        const bool stores = is_store(op) && !wide;
        result += !stores && op.super == Super::none && !function;
    }
    return result;
}

}  // namespace

void plan_fused_runs(Chain& chain, const DefUse& uses, const Program& program) {
    if (!program.kernels->fused.run || chain.lanes < program.kernels->fused.lanes) return;
    if (plan_gradient_run(chain, uses, program)) return;
    const bool wide = chain.width > kPanelLanes || reads_arrays(chain, uses);
    const int least = wide ? kLeastWorkOnWideRows : kLeastWork;
    Planner planner(chain, uses, program);
    for (std::size_t first = 0; first < chain.ops.size();) {
        std::size_t last = first;
        while (last < chain.ops.size() && planner.may_fuse(chain.ops[last])) ++last;
        while (last > first + 1 && !planner.plan(first, last)) last = planner.failed_at();
        const bool worth = last > first + 1 &&
                           (planner.makes_positions() || work(chain, wide, first, last) >= least);
        if (worth) chain.fused.push_back(planner.take());
        first = worth ? last : first + 1;
    }
}

std::optional<FusedRun> plan_whole_run(const Chain& chain, const DefUse& uses,
                                       const Program& program) {
    if (!program.kernels->fused.run) return std::nullopt;
    Planner planner(chain, uses, program);
    const bool fits = std::all_of(chain.ops.begin(), chain.ops.end(),
                                  [&](const StripOp& op) { return planner.may_fuse(op); });
    if (!fits || !planner.plan(0, chain.ops.size())) return std::nullopt;
    FusedRun run = planner.take();
    if (!run.forms.empty() || !run.conditions.empty()) return std::nullopt;
    return run;
}

void prefetch_next(std::span<Chain* const> chains, std::uint32_t view) {
    for (Chain* chain : chains.subspan(1)) {
        for (FusedRun& run : chain->fused) {
            const auto reads = [&](const FusedRun::Operand& operand) {
                if (operand.temporary >= 0 || operand.input < 0) return false;
                const StripSource& in = chain->ops[operand.op].in[operand.input];
                return in.home == Home::view && in.index == view && in.lane_stride == 1;
            };
            const auto found = std::find_if(run.operands.begin(), run.operands.end(), reads);
            if (found == run.operands.end()) continue;
            if (run.prefetches.size() == FusedCall::kMaxPrefetches) continue;
            run.prefetches.push_back(static_cast<std::size_t>(found - run.operands.begin()));
            return;
        }
    }
}

}  // namespace tilewright::cpu
