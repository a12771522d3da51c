// Interval analysis: flattens mods to steps and evaluates them over boxes.
#include "ir/passes/intervals.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "ir/access.h"
#include "ir/passes/cse.h"
#include "ir/passes/dce.h"
#include "ir/passes/fold.h"
#include "ir/passes/inline.h"
#include "ir/passes/range_ops.h"
#include "support/check.h"

namespace tilewright::ir {

namespace {

constexpr std::int64_t kMaxUnrolled = 4096;  ///< most steps that a loop may unroll to

}  // namespace

/// Flattens a mod: branches become selects, loops with constant bounds are unrolled.
class IntervalsCompiler {
  public:
    IntervalsCompiler(const Function& mod, Intervals& out) : mod_(mod), out_(out) {}

    void run() {
        for (const Value parameter : mod_.parameters()) {
            if (mod_.is_ref(parameter)) {
                arrays_[parameter] = static_cast<std::int32_t>(arrays_.size());
                continue;
            }
            if (!mod_.type(parameter).is_scalar() || out_.num_scalars_ == 32)
                user_error("intervals", "expected a mod of at most 32 scalars but got @{}",
                           mod_.name);
            values_[parameter] = static_cast<std::uint32_t>(out_.num_scalars_++);
            out_.scalar_dtypes_.push_back(mod_.type(parameter).dtype);
        }
        if (arrays_.size() != out_.arrays_.size())
            user_error("intervals", "expected {} arrays for @{} but got {}", arrays_.size(),
                       mod_.name, out_.arrays_.size());
        const std::vector<std::uint32_t> results = block(mod_.body);
        if (results.size() != 1)
            user_error("intervals", "expected @{} to yield one scalar but it yields {}", mod_.name,
                       results.size());
        out_.result_ = results[0];
        out_.depends_ = depends(results[0]);
        out_.result_dtype_ = dtype(results[0]);
        out_.report_.steps = static_cast<int>(out_.steps_.size());
    }

  private:
    using Step = Intervals::Step;

    DType dtype(std::uint32_t value) const {
        const auto scalars = static_cast<std::uint32_t>(out_.num_scalars_);
        return value < scalars ? out_.scalar_dtypes_[value] : out_.steps_[value - scalars].out;
    }
    std::uint32_t depends(std::uint32_t value) const {
        const auto scalars = static_cast<std::uint32_t>(out_.num_scalars_);
        return value < scalars ? 1u << value : out_.steps_[value - scalars].depends;
    }

    std::uint32_t add(Step step, const std::vector<std::uint32_t>& operands) {
        step.first_operand = static_cast<std::uint32_t>(out_.operands_.size());
        step.num_operands = static_cast<std::uint32_t>(operands.size());
        for (const std::uint32_t operand : operands) {
            step.depends |= depends(operand);
            out_.operands_.push_back(operand);
        }
        step.op_class = info(step.op).op_class;
        step.all = Interval::all(step.out);
        const auto fits = [](DType dtype) { return !is_float(dtype) && dtype != DType::u64; };
        step.plain = !step.opaque && !operands.empty() && fits(step.in) && fits(step.out);
        if (out_.num_scalars_ > 0 && (step.depends >> (out_.num_scalars_ - 1) & 1) != 0)
            out_.last_steps_.push_back(static_cast<std::uint32_t>(out_.steps_.size()));
        out_.steps_.push_back(step);
        return static_cast<std::uint32_t>(out_.num_scalars_) +
               static_cast<std::uint32_t>(out_.steps_.size()) - 1;
    }

    std::uint32_t opaque(DType out) {
        ++out_.report_.opaque;
        Step step;
        step.opaque = true;
        step.out = out;
        step.depends = ~0u;
        return add(step, {});
    }

    std::vector<std::uint32_t> block(const Block& block) {
        for (const Instruction& instruction : block.body) {
            if (instruction.op == Op::yield) return mapped(instruction.operands);
            visit(instruction);
        }
        TW_ASSERT(false, "a block of @{} has no yield", mod_.name);
    }

    std::vector<std::uint32_t> mapped(std::span<const Value> values) const {
        std::vector<std::uint32_t> result;
        for (const Value value : values) result.push_back(values_.at(value));
        return result;
    }

    void bind(const Instruction& instruction, std::span<const std::uint32_t> results) {
        for (std::size_t i = 0; i < results.size(); ++i)
            values_[instruction.results[i]] = results[i];
    }

    void give_up(const Instruction& instruction) {
        for (const Value result : instruction.results)
            values_[result] = opaque(mod_.type(result).dtype);
    }

    void visit(const Instruction& instruction) {
        const bool scalars =
            std::all_of(instruction.results.begin(), instruction.results.end(),
                        [&](Value result) { return mod_.type(result).is_scalar(); });
        if (!scalars) return give_up(instruction);
        Step step;
        step.op = instruction.op;
        if (!instruction.results.empty()) step.out = mod_.type(instruction.result()).dtype;
        switch (instruction.op) {
            case Op::debug_check:
            case Op::debug_print:
                return;
            case Op::constant:
                step.bits = instruction.get<ConstantAttributes>().bits;
                return bind(instruction, {{add(step, {})}});
            case Op::extent: {
                step.op = Op::constant;
                const auto& extents = array(instruction.operands[0]).extents();
                step.bits =
                    static_cast<std::uint64_t>(extents.at(instruction.get<AxisAttributes>().axis));
                return bind(instruction, {{add(step, {})}});
            }
            case Op::load:
                return load(instruction, step);
            case Op::if_else:
                return if_else(instruction);
            case Op::for_loop:
                return for_loop(instruction);
            case Op::random_bits:
                // Its range is unknown, but equal counters give equal bits.
                step.in = DType::u64;
                return bind(instruction, {{add(step, mapped(instruction.operands))}});
            default:
                break;
        }
        if (!is_elementwise(instruction.op)) return give_up(instruction);
        const std::size_t typed = instruction.op == Op::select ? 1 : 0;
        step.in = mod_.type(instruction.operands[typed]).dtype;
        if (const auto* math = std::get_if<MathAttributes>(&instruction.attributes))
            step.approx = math->approx;
        bind(instruction, {{add(step, mapped(instruction.operands))}});
    }

    const RangeTree& array(Value ref) const { return *out_.arrays_[arrays_.at(ref)]; }

    void load(const Instruction& instruction, Step step) {
        const Access parts = access(instruction);
        std::vector<Value> operands(parts.indices.begin(), parts.indices.end());
        step.num_indices = static_cast<int>(operands.size());
        step.array = arrays_.at(parts.ref);
        step.has_mask = static_cast<bool>(parts.mask);
        step.has_other = static_cast<bool>(parts.other);
        if (parts.mask) operands.push_back(parts.mask);
        if (parts.other) operands.push_back(parts.other);
        bind(instruction, {{add(step, mapped(operands))}});
    }

    // Both branches are evaluated: scalar code never traps.
    void if_else(const Instruction& instruction) {
        const std::uint32_t condition = values_.at(instruction.operands[0]);
        const auto yes = block(instruction.blocks[0]), no = block(instruction.blocks[1]);
        for (std::size_t i = 0; i < yes.size(); ++i) {
            Step step;
            step.op = Op::select;
            step.in = step.out = dtype(yes[i]);
            values_[instruction.results[i]] = add(step, {condition, yes[i], no[i]});
        }
    }

    std::optional<std::int64_t> constant(Value value) const {
        const std::uint32_t index = values_.at(value);
        const auto scalars = static_cast<std::uint32_t>(out_.num_scalars_);
        if (index < scalars || out_.steps_[index - scalars].op != Op::constant) return std::nullopt;
        return static_cast<std::int64_t>(out_.steps_[index - scalars].bits);
    }

    void for_loop(const Instruction& instruction) {
        const auto low = constant(instruction.operands[0]),
                   high = constant(instruction.operands[1]),
                   step = constant(instruction.operands[2]);
        std::size_t body = 0;
        walk(instruction.blocks[0], [&](const Instruction&) { ++body; });
        if (!low || !high || !step) return give_up(instruction);
        const __int128 rounds =
            *step > 0 && *low < *high ? ((__int128{*high} - *low + *step - 1) / *step) : 0;
        if (rounds * static_cast<__int128>(body) > kMaxUnrolled) return give_up(instruction);
        auto carries = mapped(std::span(instruction.operands).subspan(3));
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(rounds); ++i) {
            Step iv;
            iv.out = DType::i64;
            iv.bits = static_cast<std::uint64_t>(*low + i * *step);
            const auto& arguments = instruction.blocks[0].arguments;
            values_[arguments[0]] = add(iv, {});
            for (std::size_t c = 0; c < carries.size(); ++c) values_[arguments[c + 1]] = carries[c];
            carries = block(instruction.blocks[0]);
        }
        bind(instruction, carries);
    }

    const Function& mod_;
    Intervals& out_;
    std::map<Value, std::uint32_t> values_;
    std::map<Value, std::int32_t> arrays_;
};

Intervals::Intervals(const Function& mod, std::vector<std::shared_ptr<const RangeTree>> arrays)
    : arrays_(std::move(arrays)) {
    Function function = mod;
    inline_calls(function);
    fold(function);
    cse(function);
    dce(function);
    IntervalsCompiler(function, *this).run();
}

// ---- Evaluation.

Intervals::Evaluation::Evaluation(const Intervals& intervals)
    : intervals_(intervals),
      values_(static_cast<std::size_t>(intervals.num_scalars_) + intervals.steps_.size()),
      forms_(values_.size()) {
    for (int i = 0; i < intervals.num_scalars_; ++i)
        set(i, Interval::all(intervals.scalar_dtypes_[i]));
    changed_ = ~0u;
    evaluate_steps(false);
}

void Intervals::Evaluation::set(int index, Interval range) {
    values_[index] = range;
    changed_ |= 1u << index;
}

void Intervals::Evaluation::set_form(int index) {
    const std::size_t i = index;
    const Interval& range = values_[i];
    Form& form = forms_[i];
    form = {};
    const int axis = index - (intervals_.num_scalars_ - 2);
    if (axis >= 0) {
        std::int64_t& reach = reach_[axis];
        if (__builtin_sub_overflow(range.high, range.low, &reach))
            reach = std::numeric_limits<std::int64_t>::max();
    }
    form.affine = !is_float(intervals_.scalar_dtypes_[i]) && !range.any;
    form.base = range.low;
    if (!range.is_point() && axis >= 0) form.by[axis] = 1;
    // Another scalar that is not a point has no known value at a position.
    if (!form.affine || (!range.is_point() && axis < 0)) {
        form.affine = false;
        form.key = {++fresh_, ~std::uint64_t{0}};
    }
}

const Interval& Intervals::Evaluation::run(bool with_key) {
    if (with_key != forms_valid_) changed_ = ~0u;
    if (changed_ != 0) evaluate_steps(with_key);
    return values_[intervals_.result_];
}

Truth Intervals::Evaluation::truth(bool with_key) {
    const Interval& range = run(with_key);
    return range.low == 1 ? Truth::always : range.high == 0 ? Truth::never : Truth::unknown;
}

// The common cases of evaluate() in 64-bit arithmetic, which take most of a mask's build time.
[[gnu::always_inline]] inline bool Intervals::Evaluation::plain_range(const Step& step,
                                                                      const std::uint32_t* operands,
                                                                      Interval& range) const {
    const Interval& a = values_[operands[0]];
    const Interval& b = values_[operands[step.num_operands > 1 ? 1 : 0]];
    const auto set = [&](std::int64_t from, std::int64_t to) {
        range = Interval::integers(from, to);
        return true;
    };
    const auto fit = [&](bool wraps, std::int64_t from, std::int64_t to) {
        if (!wraps && from >= step.all.low && to <= step.all.high) return set(from, to);
        range = step.all;
        return true;
    };
    std::int64_t low = 0, high = 0;
    switch (step.op) {
        case Op::add: {
            const bool low_wraps = __builtin_add_overflow(a.low, b.low, &low);
            const bool high_wraps = __builtin_add_overflow(a.high, b.high, &high);
            return fit(low_wraps || high_wraps, low, high);
        }
        case Op::sub: {
            const bool low_wraps = __builtin_sub_overflow(a.low, b.high, &low);
            const bool high_wraps = __builtin_sub_overflow(a.high, b.low, &high);
            return fit(low_wraps || high_wraps, low, high);
        }
        case Op::abs:
            if (a.low >= 0) return set(a.low, a.high);
            if (a.low == step.all.low) return false;
            return set(a.high < 0 ? -a.high : 0, std::max(-a.low, a.high));
        case Op::min:
            return set(std::min(a.low, b.low), std::min(a.high, b.high));
        case Op::max:
            return set(std::max(a.low, b.low), std::max(a.high, b.high));
        case Op::clamp: {
            const Interval& c = values_[operands[2]];
            return set(std::min(std::max(a.low, b.low), c.low),
                       std::min(std::max(a.high, b.high), c.high));
        }
        case Op::div:
        case Op::floordiv:
            if (b.low != b.high || b.low <= 0 || a.low < 0) return false;
            return set(a.low / b.low, a.high / b.low);
        case Op::rem:
        case Op::floormod: {
            if (b.low != b.high || b.low <= 0 || a.low < 0) return false;
            const std::int64_t first = a.low / b.low * b.low;
            if (a.high - first >= b.low) return set(0, std::min(a.high, b.low - 1));
            return set(a.low - first, a.high - first);
        }
        case Op::bitwise_and:
            if (step.in != DType::boolean) return false;
            return set(a.low & b.low, a.high & b.high);
        case Op::bitwise_or:
            if (step.in != DType::boolean) return false;
            return set(a.low | b.low, a.high | b.high);
        case Op::bitwise_not:
            return step.in == DType::boolean && set(1 - a.high, 1 - a.low);
        case Op::lt:
            return set(a.high < b.low, a.low < b.high);
        case Op::le:
            return set(a.high <= b.low, a.low <= b.high);
        case Op::gt:
            return set(a.low > b.high, a.high > b.low);
        case Op::ge:
            return set(a.low >= b.high, a.high >= b.low);
        case Op::eq:
            return set(a.low == a.high && b.low == b.high && a.low == b.low,
                       a.low <= b.high && b.low <= a.high);
        case Op::cast:
            if (a.low < step.all.low || a.high > step.all.high || step.out == DType::boolean)
                return false;
            return set(a.low, a.high);
        default:
            return false;
    }
}

void Intervals::Evaluation::evaluate_step(std::size_t index, bool with_key) {
    const Step& step = intervals_.steps_[index];
    const std::uint32_t* operands = intervals_.operands_.data() + step.first_operand;
    const std::size_t value = static_cast<std::size_t>(intervals_.num_scalars_) + index;
    Interval& range = values_[value];
    if (!step.plain || !plain_range(step, operands, range)) range = evaluate(step, operands);
    if (with_key) forms_[value] = form(step, operands, range);
}

void Intervals::Evaluation::evaluate_steps(bool with_key) {
    for (int i = 0; with_key && i < intervals_.num_scalars_; ++i) {
        if ((changed_ >> i & 1) != 0) set_form(i);
    }
    const std::uint32_t last =
        intervals_.num_scalars_ > 0 ? 1u << (intervals_.num_scalars_ - 1) : 0;
    if (changed_ == last) {
        for (const std::uint32_t i : intervals_.last_steps_) evaluate_step(i, with_key);
    } else {
        for (std::size_t i = 0; i < intervals_.steps_.size(); ++i) {
            if ((intervals_.steps_[i].depends & changed_) != 0 || changed_ == ~0u)
                evaluate_step(i, with_key);
        }
    }
    changed_ = 0;
    forms_valid_ = with_key;
}

Interval Intervals::Evaluation::evaluate(const Step& step, const std::uint32_t* operands) const {
    if (step.opaque) return step.all;
    const auto value = [&](int i) -> const Interval& { return values_[operands[i]]; };
    switch (step.op) {
        case Op::constant:
            return constant_range(step.out, step.bits);
        case Op::load:
            return load(step, operands);
        case Op::random_bits:
            return step.all;
        default:
            return elementwise_range(step.op, step.in, step.out, step.approx, value);
    }
}

Interval Intervals::Evaluation::load(const Step& step, const std::uint32_t* operands) const {
    const RangeTree& array = *intervals_.arrays_[step.array];
    if (step.num_operands == 1) {  // an element of a rank-1 array, without a mask
        const Interval& index = values_[operands[0]];
        const std::int64_t last = array.extents()[0] - 1;
        if (!index.any && index.low >= 0 && index.high <= last)
            return array.elements(index.low, index.high);
    }
    std::array<std::int64_t, kMaxRefRank> low{}, high{};
    bool all_inside = true, some_inside = true;
    const std::size_t rank = step.num_indices;
    for (std::size_t d = 0; d < rank; ++d) {
        const Interval& index = values_[operands[d]];
        const std::int64_t last = array.extents()[d] - 1;
        low[d] = std::max<std::int64_t>(index.low, 0);
        high[d] = std::min(index.high, last);
        all_inside &= !index.any && index.low >= 0 && index.high <= last;
        some_inside &= low[d] <= high[d];
    }
    Interval outside = Interval::integers(0, 0);
    if (step.has_mask) {
        const Interval& mask = values_[operands[rank]];
        all_inside &= mask.low == 1;
        some_inside &= mask.high == 1;
    }
    if (step.has_other) outside = values_[operands[rank + (step.has_mask ? 1 : 0)]];
    if (!some_inside) return outside;
    const Interval inside = array.query({low.data(), rank}, {high.data(), rank});
    return all_inside ? inside : joined(step.out, inside, outside);
}

}  // namespace tilewright::ir
