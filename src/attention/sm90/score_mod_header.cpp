// The text around a score mod's values: the struct that kernels call, forward and backward.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "attention/sm90/score_mod_text.h"

namespace tilewright::attn::sm90 {

/// Starts the text of another function for elements, in which no local has been written yet.
void Emitter::start_elements() {
    text(Place::element).clear();
    std::erase_if(written_, [](const auto& key) { return std::get<0>(key) == Place::element; });
    std::erase_if(forms_, [](const auto& key) { return key.first.first == Place::element; });
}

bool Emitter::is_number(Value value, double equal_to) {
    return op(value) == Op::constant &&
           std::bit_cast<double>(info(value).instruction->get<ir::ConstantAttributes>().bits) ==
               equal_to;
}

/// A bound on the magnitude of a value made of numbers and positions; none: it may be infinite.
std::optional<double> Emitter::magnitude(Value value) {
    const auto of = [&](std::size_t i) { return magnitude(operand(value, i)); };
    const auto both = [](std::optional<double> a, std::optional<double> b, auto join) {
        return a && b ? std::optional<double>(join(*a, *b)) : std::nullopt;
    };
    if (dtype(value) != DType::f32 && dtype(value) != DType::f64) return {};
    switch (op(value)) {
        case Op::constant: {
            const double number =
                std::bit_cast<double>(info(value).instruction->get<ir::ConstantAttributes>().bits);
            return std::isfinite(number) ? std::optional(std::fabs(number)) : std::nullopt;
        }
        case Op::neg:
        case Op::abs:
            return of(0);
        case Op::add:
        case Op::sub:
            return both(of(0), of(1), std::plus<>());
        case Op::mul:
            return both(of(0), of(1), std::multiplies<>());
        case Op::select:
            return both(of(1), of(2), [](double a, double b) { return std::max(a, b); });
        case Op::cast: {
            const Value from = operand(value, 0);
            if (is_float(dtype(from))) return of(0);
            if (dtype(from) == DType::boolean) return 1;
            if (!range(from).fits_i32()) return {};
            return std::max(std::fabs(static_cast<double>(range(from).low)),
                            std::fabs(static_cast<double>(range(from).high)));
        }
        default:
            return {};
    }
}

/// grad * factor, where a gradient of 0 stays 0 even if the factor is infinite.
std::string Emitter::gradient_times(Value factor) {
    if (is_number(factor, 1)) return "grad";
    constexpr double kSafe = 1e30;  // fits f32, as do its products with a few others
    const std::string text = use(factor, Place::element);
    if (magnitude(factor).value_or(kSafe) < kSafe) return fmt::format("grad * {}", text);
    return fmt::format("grad == 0.0f ? 0.0f : grad * {}", text);
}

/// The derivative with respect to the score, as far as it matters: where the new score is the
/// constant -inf, the gradient is 0 whatever it is multiplied by.
Value Emitter::derivative() {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    Value score = results_[0], derivative = results_[1];
    while (op(score) == Op::select && op(derivative) == Op::select &&
           operand(score, 0) == operand(derivative, 0)) {
        std::size_t dead = 0;
        for (const std::size_t i : {1, 2}) {
            if (is_number(operand(score, i), -kInfinity) && is_number(operand(derivative, i), 0)) {
                dead = i;
            }
        }
        if (dead == 0) break;
        score = operand(score, 3 - dead);
        derivative = operand(derivative, 3 - dead);
    }
    return derivative;
}

Emitter::Gather Emitter::gather_of(const ir::GatherGradient& gradient) {
    Gather gather;
    gather.value = results_[gradient.value];
    gather.gradient.capture = gradient.ref;
    gather.ref = function_.parameters()[kFirstRef + gradient.ref];
    unsigned dependence = kTile;
    for (std::size_t d = 0; d < gradient.indices.size(); ++d) {
        const Value index = results_[gradient.indices[d]];
        gather.indices.push_back(index);
        dependence |= info(index).dependence;
        Value raw = clamped(index, gather.ref, d);
        if (!raw) raw = index;
        while (op(raw) == Op::cast && is_integer(dtype(operand(raw, 0)))) raw = operand(raw, 0);
        const std::string& name = info(raw).parameter;
        static constexpr const char* kKeysAreRows[] = {"batch", "head", "column", "row"};
        static constexpr const char* kKeysAreColumns[] = {"batch", "head", "row", "column"};
        const auto* const names = facts_.columns_are_keys ? kKeysAreColumns : kKeysAreRows;
        for (std::size_t position = 0; position < 4; ++position) {
            if (name == names[position]) {
                gather.gradient.dimension_of[position] = static_cast<int>(d);
            }
        }
    }
    using Spread = CaptureGradient::Spread;
    gather.gradient.spread = dependence == kTile     ? Spread::tile
                             : dependence == kRow    ? Spread::row
                             : dependence == kColumn ? Spread::column
                                                     : Spread::pair;
    return gather;
}

/// Where a gather's element lies in the contiguous gradient of its array, or -1 if outside; returns
/// the name of a local.
std::string Emitter::place_in_array(const Gather& gather) {
    const std::size_t word = words_.at(gather.ref) + 1;
    std::string inside, place;
    for (std::size_t d = 0; d < gather.indices.size(); ++d) {
        const std::string index =
            fmt::format("static_cast<i64>({})", use(gather.indices[d], Place::element));
        const std::string extent = fmt::format("static_cast<i64>(arguments.words[{}])", word + d);
        inside += fmt::format("{}static_cast<u64>({}) < arguments.words[{}]",
                              inside.empty() ? "" : " && ", index, word + d);
        place = place.empty() ? index : fmt::format("({}) * {} + {}", place, extent, index);
    }
    if (place.empty()) return local(Place::element, "i64", temporary(), "0");
    return local(Place::element, "i64", temporary(), fmt::format("{} ? {} : -1", inside, place));
}

/// The functions of the backward pass: the derivative with respect to the score, and the gradients
/// of captures.
std::string Emitter::gradients() {
    using Spread = CaptureGradient::Spread;
    start_elements();
    std::string members, clear, columns, tiles, rows;
    for (std::size_t n = 0; n < gathers_.size(); ++n) {
        const Gather& gather = gathers_[n];
        const std::string value =
            local(Place::element, "float", temporary(), gradient_times(gather.value));
        std::string& body = text(Place::element);
        const std::string target =
            fmt::format("reinterpret_cast<float*>(arguments.words[{}])", num_words_ + 2 * n + 1);
        switch (gather.gradient.spread) {
            case Spread::tile:
                members +=
                    fmt::format("    float sum{};  // over the keys and queries of a head\n", n);
                clear += fmt::format("        sum{} = 0;\n", n);
                body += fmt::format("        sum{} += {};\n", n, value);
                tiles += fmt::format("        add_tile_sum(sum{}, arguments.words[{}], at);\n", n,
                                     num_words_ + 2 * n);
                break;
            case Spread::row:
                members += fmt::format("    float sum{}[2];  // over the queries of a head\n", n);
                clear += fmt::format("        sum{0}[0] = sum{0}[1] = 0;\n", n);
                body += fmt::format("        sum{}[r] += {};\n", n, value);
                rows += fmt::format("        add_row_sums(sum{}, arguments.words[{}], at);\n", n,
                                    num_words_ + 2 * n);
                break;
            case Spread::column: {
                members += fmt::format("    float sum{}[2];  // over the keys of a block\n", n);
                clear += fmt::format("        sum{0}[0] = sum{0}[1] = 0;\n", n);
                body += fmt::format("        sum{}[e] += {};\n", n, value);
                columns += fmt::format(
                    "        add_column_sums(sum{}, {}, place_{}(0, j, 0), place_{}(0, j, 1));\n",
                    n, target, n, n);
                break;
            }
            case Spread::pair: {
                const std::string place = place_in_array(gather);
                text(Place::element) += fmt::format(
                    "        if ({0} >= 0 && {1} != 0.0f) ptx::reduce_add({2} + {0}, {1});\n",
                    place, value, target);
                break;
            }
        }
    }
    const std::string result = gradient_times(derivative());
    const std::string functions =
        fmt::format(R"(
    // Gradients. Sums of captures are per thread until they are stored.
    static constexpr int kGathers = {gathers};
{members}
    TW_DEVICE void clear_sums() {{
{clear}    }}

    /// The gradient of the old score from that of the new one; captures get their share.
    TW_DEVICE float gradient(float score, int j, int e, int r, const Columns& columns, float grad) {{
        const int row = first_row + 8 * r, offset = 8 * j + e, column = first + offset;
{body}        return {result};
    }}

    /// Once the keys of columns 8 j and 8 j + 1 are through.
    TW_DEVICE void finish_columns(int j) {{
{columns}    }}

    /// Once all blocks of a head are through.
    TW_DEVICE void store_sums(const SumPlace& at) {{
{tiles}{rows}        clear_sums();
    }}
)",
                    fmt::arg("gathers", gathers_.size()), fmt::arg("members", members),
                    fmt::arg("clear", clear), fmt::arg("body", text(Place::element)),
                    fmt::arg("result", result), fmt::arg("columns", columns),
                    fmt::arg("tiles", tiles), fmt::arg("rows", rows));
    return functions + gradient_places();
}

/// One function per gather: where its sums are stored.
std::string Emitter::gradient_places() {
    using Spread = CaptureGradient::Spread;
    std::string result, spreads, sums, cases;
    for (std::size_t n = 0; n < gathers_.size(); ++n) {
        const Spread spread = gathers_[n].gradient.spread;
        if (spread == Spread::pair) continue;
        start_elements();
        const std::string place = place_in_array(gathers_[n]);
        result += fmt::format(R"(
    TW_DEVICE i64 place_{}(int r, int j, int e) const {{
        const Columns columns = columns_at(j);
        const int row = first_row + 8 * r, offset = 8 * j + e, column = first + offset;
{}        return {};
    }}
)",
                              n, text(Place::element), place);
        if (spread != Spread::column) {
            cases += fmt::format(
                "        visit(place_{}(0, 0, 0), reinterpret_cast<const "
                "float*>(arguments.words[{}]), "
                "reinterpret_cast<float*>(arguments.words[{}]), {});\n",
                n, num_words_ + 2 * n, num_words_ + 2 * n + 1,
                spread == Spread::tile ? "true" : "false");
        }
    }
    return result + fmt::format(R"(
    /// Visits what is summed up per head, or per head and key: the place in the array for the
    /// tile and the rows entered, the sums of heads, the array, and which of the two it is.
    template <typename Visit>
    TW_DEVICE void each_sum(Visit visit) const {{
{}    }}
)",
                                cases);
}

ScoreModText Emitter::header() {
    ScoreModText made;
    made.refusal = refusal_;
    if (!refusal_.empty()) return made;
    const std::string result = exponent(results_[0]);
    const std::string exponent_text = std::exchange(text(Place::element), "");
    start_elements();
    const std::string score = use(results_[0], Place::element);
    const std::string score_text = std::exchange(text(Place::element), "");
    const std::string derivative = results_.size() > 1 ? gradients() : "";
    made.refusal = refusal_;
    if (!refusal_.empty()) return made;
    made.affine = affine_;
    for (const Gather& gather : gathers_) made.gradients.push_back(gather.gradient);
    made.text = fmt::format(
        R"(// Generated: a score mod.
#pragma once

{include}#include "cuda/device/scalar.cuh"

namespace twd::attn {{

struct ModArguments {{
    u64 words[{words}];  ///< per capture: address, extents, strides; per gradient: sums, array
}};

/// The score mod over a thread's part of a block of scores: its two rows, 8 apart, and pairs of
/// columns, 8 apart. Register 4 j + 2 r + e is row r, column 8 j + e from the thread's first.
struct ScoreMod {{
    const ModArguments& arguments;
    float scale;  ///< softmax scale
    int batch, head, first_row, first;
{members}
    struct Columns {{
{columns}    }};

    TW_DEVICE void enter_tile(int b, int h) {{
        batch = b;
        head = h;
{tile}    }}

    TW_DEVICE void enter_rows(int row_index) {{
        first_row = row_index;
        TW_UNROLL
        for (int r = 0; r < 2; ++r) {{
            const int row = first_row + 8 * r;
{rows}        }}
    }}

    TW_DEVICE void enter_block(int column_index) {{
        first = column_index;
    }}

    /// What columns 8 j and 8 j + 1 need and every row shares.
    TW_DEVICE Columns columns_at(int j) const {{
        Columns result;
        TW_UNROLL
        for (int e = 0; e < 2; ++e) {{
            const int offset = 8 * j + e, column = first + offset;
{column}        }}
        return result;
    }}

    /// log2(e) * the new score + start; `score` is a product of Q and K before the scale.
    TW_DEVICE float exponent(float score, int j, int e, int r, const Columns& columns,
                             float start) const {{
        const int row = first_row + 8 * r, offset = 8 * j + e, column = first + offset;
{element}        return {result};
    }}

    /// The new score.
    TW_DEVICE float modified(float score, int j, int e, int r, const Columns& columns) const {{
        const int row = first_row + 8 * r, offset = 8 * j + e, column = first + offset;
{score_text}        return {score};
    }}
{derivative}}};

}}  // namespace twd::attn
)",
        fmt::arg("words", std::max<std::size_t>(num_words_ + 2 * gathers_.size(), 1)),
        fmt::arg("members", member_text_), fmt::arg("columns", column_text_),
        fmt::arg("tile", text(Place::tile)), fmt::arg("rows", text(Place::row)),
        fmt::arg("column", text(Place::column)), fmt::arg("element", exponent_text),
        fmt::arg("result", result), fmt::arg("score_text", score_text), fmt::arg("score", score),
        fmt::arg("derivative", derivative),
        fmt::arg("include",
                 derivative.empty() ? "" : "#include \"attention/sm90/gradient_sums.cuh\"\n"));
    return made;
}

ScoreModText emit_score_mod(const ir::Function& mod, const ScoreModFacts& facts,
                            std::span<const ir::GatherGradient> gathers) {
    return Emitter(mod, facts, gathers).header();
}

}  // namespace tilewright::attn::sm90
