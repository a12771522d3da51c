// Mods, dropout and rows of plans in attention programs.
#include "attention/tiles/pairs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "ir/passes/dce.h"
#include "ir/passes/definitions.h"
#include "ir/passes/float_sums.h"
#include "ir/passes/inline.h"
#include "ir/passes/narrow.h"
#include "ir/passes/soft_caps.h"
#include "lang/tracer.h"

namespace tilewright::attn::tiles {

Tile array_extent(const Ref& ref, int dim) {
    lang::Tracer& tracer = lang::Tracer::current("attention");
    return tracer.wrap(tracer.builder().extent(tracer.view(ref).ref, dim));
}

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// high + low is x without its last 8 bits.
struct Halves {
    Tile high, low;
};

Halves halves(const Tile& x) {
    const Tile high = x.to(bf16), rounded = high.to(f32);
    return {high, where(abs(rounded) == kInfinity, 0.0, x - rounded).to(bf16)};
}

/// The block of an array that belongs to the pairs, broadcast to their shape.
Tile load_block(const BlockLoad& load, const Ref& ref, const Place& at) {
    const bool along_rows = at.kv.dim(1) == 1;
    std::vector<RefIndex> indices;
    int query_axis = -1, key_axis = -1, axis = 0;
    for (const BlockLoad::Index& index : load.indices) {
        switch (index.coordinate) {
            case Coordinate::batch:
                indices.emplace_back(at.b);
                break;
            case Coordinate::head:
                indices.emplace_back(at.h);
                break;
            case Coordinate::query:
                indices.emplace_back(ds(at.first_q, at.q.size()));
                query_axis = axis++;
                break;
            case Coordinate::key:
                indices.emplace_back(ds(at.first_kv, at.kv.size()));
                key_axis = axis++;
                break;
            default:
                indices.emplace_back(Operand(index.constant));
        }
    }
    const Tile block = ref.select(indices).load({.other = 0});
    if (query_axis < 0) return expand_dims(block, along_rows ? 1 : 0);
    if (key_axis < 0) return expand_dims(block, along_rows ? 0 : 1);
    return (query_axis < key_axis) == along_rows ? transpose(block) : block;
}

/// The mod with fewer instructions per pair, from what is known of batch, head and positions: all
/// fit 31 bits, as all extents of tensors do here.
ir::Function reduced(ir::Function function, bool long_positions, const Options& options) {
    constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
    const std::int64_t last = long_positions ? kLargest : kShortPositions;
    std::map<ir::Value, ir::Interval> ranges;
    for (ir::Value parameter : function.parameters()) {
        if (function.is_ref(parameter) || function.type(parameter).dtype != i64) continue;
        ranges[parameter] = ir::Interval::integers(0, ranges.size() < 2 ? kLargest : last);
        if (ranges.size() == 4) break;  // later integers were read from arrays
    }
    ir::narrow(function, ranges);
    // On a CPU, superinstructions cast affine positions themselves.
    if (options.gpu) ir::float_sums(function, ranges);
    if (options.narrow_inputs && options.gpu) ir::soft_caps(function);
    if (options.narrow_inputs && !options.gpu) ir::exact_soft_caps(function);
    return function;
}

/// Parameters of a mod that a value depends on, a bit for each.
class Dependences {
  public:
    explicit Dependences(const ir::Function& mod) {
        for (std::size_t i = 0; i < mod.parameters().size(); ++i) {
            bits_[mod.parameters()[i]] = 1U << i;
        }
        for (const ir::Instruction& made : mod.body.body) {
            unsigned all = 0;
            for (ir::Value operand : made.operands) all |= bits_[operand];
            for (ir::Value result : made.results) bits_[result] = all;
        }
    }
    unsigned of(ir::Value value) const { return bits_.at(value); }

  private:
    std::map<ir::Value, unsigned> bits_;
};

/// An additive mod (`is_additive`) for scores that are still to be multiplied by `scale`. A factor
/// of what it adds takes the division, if it depends on no position.
ir::Function unscaled(ir::Function mod, double scale) {
    const ir::Definitions definitions(mod);
    const Dependences dependences(mod);
    constexpr unsigned kPositions = 1U << 3 | 1U << 4;
    ir::Instruction end = mod.body.body.back();
    mod.body.body.pop_back();
    const ir::Value score = mod.parameters()[0];
    const ir::Type type = mod.type(score);
    const auto append = [&](ir::Op op, std::vector<ir::Value> operands) {
        ir::Instruction made;
        made.op = op;
        made.operands = std::move(operands);
        made.results = {mod.add_value(type)};
        mod.body.body.push_back(made);
        return made.result();
    };
    ir::Value factor = ir::append_constant(mod, mod.body.body, type, 1 / scale);
    const ir::Instruction& sum = *definitions.of(end.operands[0]);
    ir::Value added = sum.operands[sum.operands[0] == score ? 1 : 0];
    if (const ir::Instruction* const product = definitions.of(added);
        product != nullptr && product->op == ir::Op::mul) {
        for (const std::size_t steady : {0, 1}) {
            if ((dependences.of(product->operands[steady]) & kPositions) != 0) continue;
            factor = append(ir::Op::mul, {product->operands[steady], factor});
            added = product->operands[1 - steady];
            break;
        }
    }
    end.operands[0] = append(ir::Op::fma, {added, factor, score});
    mod.body.body.push_back(std::move(end));
    ir::dce(mod);
    return mod;
}

/// Does the function use these two values only to subtract one from the other, in types that can
/// hold them even when they are counted from another origin?
bool reads_difference(const ir::Function& function, ir::Value first, ir::Value second,
                      bool long_positions) {
    const auto holds = [&](DType dtype) {
        return dtype == i32 || dtype == i64 || dtype == f64 || (dtype == f32 && !long_positions);
    };
    std::map<ir::Value, ir::Value> origins{{first, first}, {second, second}};
    bool only = true;
    ir::walk(function.body, [&](const ir::Instruction& instruction) {
        std::vector<ir::Value> read;  // which of the two values
        for (ir::Value operand : instruction.operands) {
            if (const auto at = origins.find(operand); at != origins.end()) {
                read.push_back(at->second);
            }
        }
        if (read.empty()) return;
        if (instruction.op == ir::Op::cast && holds(function.type(instruction.result()).dtype)) {
            origins.emplace(instruction.result(), read[0]);
        } else {
            only &= instruction.op == ir::Op::sub && read.size() == 2 && read[0] != read[1];
        }
    });
    return only;
}

}  // namespace

Tile any_not_finite(const Tile& x) {
    return (max(max(abs(x), 0)) < kInfinity) == constant(false, boolean);  // NaN propagates
}

Tile zero_or_nan(const Tile& x, DType sums) {
    return sum(x.to(sums) * 0.0, 1);
}

Tile rows_that_any_attends(const Tile& x, const Tile& attends) {
    return where(expand_dims(any(attends, 0), 1), x, constant(0, x.dtype()));
}

Tile finite(const Tile& x) {
    return where(abs(x) < kInfinity, x, constant(0, x.dtype()));
}

Tile product(const Options& options, const Tile& a, const Tile& b, const DotOptions& dot_options) {
    DotOptions ours = dot_options;
    if (options.products == Products::tf32) ours.precision = Precision::tf32;
    if (options.products != Products::bf16x3) return dot(a, b, ours);
    // The small products come first; that of both low halves is below the bits that are kept.
    const Halves left = halves(a), right = halves(b);
    ours.acc = dot(left.low, right.high, ours);
    ours.acc = dot(left.high, right.low, ours);
    return dot(left.high, right.high, ours);
}

Tile dot_of_attending(const Tile& weights, const Tile& x, const Tile& attends, bool positive,
                      DotOptions options) {
    const Tile zero = constant(0, x.dtype()), one = constant(1, x.dtype());
    const Tile sum = dot(weights, finite(x), options);
    options.acc.reset();
    const Tile pairs = where(attends, one, zero);
    const auto meets = [&](const Tile& kind) {
        return dot(pairs, where(kind, one, zero), options) > 0;
    };
    // NaN fails both comparisons, so it counts as both infinities.
    const Tile up = meets((x < kInfinity) == constant(false, boolean)),
               down = meets((x > -kInfinity) == constant(false, boolean));
    const double both = std::nan(""), one_sign = positive ? kInfinity : both;
    return sum + where(up, where(down, both, one_sign),
                       where(down, constant(-one_sign, sum.dtype()), 0.0));
}

Tile Pairs::from_origin(Tile index, int dim) const {
    return extra(Extra::origin).present() ? index + extra(Extra::origin).at(dim).load() : index;
}

Tile Pairs::kv_length(Tile extent) const {
    if (!features_.lengths) return extent;
    const Tile given = extra(Extra::kv_lengths).at(program_id(0)).load().to(i64);
    return minimum(maximum(given, 0), extent);
}

std::span<const Ref> Pairs::captures(const InlinedMod& mod) const {
    const std::size_t first =
        Extra::count + (&mod == &features_.mask ? features_.score.captures() : 0);
    return extras_.subspan(first, mod.captures());
}

std::vector<Tile> Pairs::apply(const ir::Function& function, const std::vector<BlockLoad>& loads,
                               std::vector<Tile> arguments, const Place& at,
                               std::span<const Ref> refs) const {
    lang::Tracer& tracer = lang::Tracer::current("attention");
    for (const BlockLoad& load : loads) arguments.push_back(load_block(load, refs[load.ref], at));
    const ir::Function mod = reduced(function, features_.long_positions, options_);
    const auto& parameters = mod.parameters();
    const auto at_query = static_cast<std::size_t>(
        std::find_if(parameters.begin(), parameters.end(),
                     [&](ir::Value p) { return mod.type(p).dtype == i64; }) -
        parameters.begin() + 2);
    if (reads_difference(mod, parameters[at_query], parameters[at_query + 1],
                         features_.long_positions)) {
        // Counted from the block's first key, the keys of every block are the same.
        arguments[at_query] = at.q - at.first_kv;
        const bool along_rows = at.kv.dim(1) == 1;
        arguments[at_query + 1] =
            expand_dims(iota(at.kv.dim(along_rows ? 0 : 1), i64), along_rows ? 1 : 0);
    }
    std::vector<ir::Value> values;
    for (const Tile& argument : arguments) values.push_back(tracer.use(argument));
    for (const Ref& ref : refs) values.push_back(tracer.view(ref).ref);
    std::vector<Tile> results;
    for (ir::Value value : ir::append_mod(tracer.builder(), mod, values)) {
        results.push_back(tracer.wrap(value));
    }
    return results;
}

Tile Pairs::score(Tile scaled, const Place& at, const std::optional<Tile>& attends) const {
    std::vector<Tile> arguments{scaled, at.b, at.h, at.q, at.kv};
    if (options_.interpret) arguments.push_back(attends ? *attends : constant(true, boolean));
    const Tile result = apply(*features_.score.function, features_.score.loads,
                              std::move(arguments), at, captures(features_.score))[0];
    return broadcast_to(result, scaled.shape());
}

Tile Pairs::unscaled_score(const Tile& score, const Place& at) const {
    const Tile sum = apply(unscaled(*features_.score.function, options_.scale), {},
                           {score, at.b, at.h, at.q, at.kv}, at, {})[0];
    return broadcast_to(sum, score.shape());
}

Tile Pairs::mask(const Place& at, const std::optional<Tile>& attends) const {
    std::vector<Tile> arguments{at.b, at.h, at.q, at.kv};
    if (options_.interpret) arguments.push_back(attends ? *attends : constant(true, boolean));
    return apply(*features_.mask.function, features_.mask.loads, std::move(arguments), at,
                 captures(features_.mask))[0];
}

std::vector<Tile> Pairs::score_gradient(const ScoreDerivative& derivative, Tile scaled,
                                        const Place& at, Tile cotangent) const {
    return apply(*derivative.function, derivative.loads,
                 {scaled, at.b, at.h, at.q, at.kv, cotangent}, at, captures(features_.score));
}

Tile Pairs::is_kept(const Place& at) const {
    // One key for each (seed, batch, head), one counter for each pair: docs/reference/attention.md.
    const Tile seed = extra(Extra::seed).load();
    const Tile head = (at.b.to(u64) << 32) | at.h.to(u64);
    const Tile low = random_bits(seed, head << 1), high = random_bits(seed, (head << 1) | 1);
    const Tile key = (high.to(u64) << 32) | low.to(u64);
    const Tile bits = random_bits(key, (at.q.to(u64) << 32) | at.kv.to(u64));
    const auto threshold = static_cast<std::uint32_t>(
        std::min(std::llround(features_.dropout * 0x1p32), 0xffffffffLL));
    return bits >= constant(threshold, u32);
}

Tile Pairs::keep(const Place& at, DType dtype) const {
    return where(is_kept(at), constant(1 / (1 - features_.dropout), dtype), constant(0.0, dtype));
}

PlanRow Pairs::plan_row(Tile b, Tile h, Tile i) const {
    const Ref& origin = extra(Extra::origin);
    const Tile row = b * origin.at(2).load() + h * origin.at(3).load() + i;
    const Ref& headers = extra(Extra::headers);
    const auto entry = [&](int field) { return headers.at(row, field).load().to(i64); };
    const Tile partial = entry(0), full = entry(2);
    return {partial, partial + entry(1), full, full + entry(3)};
}

}  // namespace tilewright::attn::tiles
