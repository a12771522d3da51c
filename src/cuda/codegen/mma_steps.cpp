// Text of mma and ldmatrix instructions.
#include "cuda/codegen/mma_steps.h"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/codegen/asm_text.h"
#include "support/check.h"

namespace tilewright::cuda {
namespace {

std::string function_text(const MmaStep& step) {
    TW_ASSERT(step.dtype == DType::f16 || step.dtype == DType::bf16);
    TW_ASSERT(step.columns % 2 == 0, "{} columns", step.columns);
    const int steps = std::max(step.loads, 1), d_count = 4 * step.rows * step.columns,
              a_count = step.loads == 0 ? 4 * step.rows : steps * step.rows,
              pairs = step.columns / 2, b_count = steps * pairs;
    // Numbers of operands from `first` on.
    const auto numbers = [](int first, int count) {
        return list(count, count, "", [&](int i) { return fmt::format("%{}", first + i); });
    };
    const auto named = [](char name, int count) {
        return [=](const std::string& format) {
            return list(count, 8, "\n          ", [&](int i) {
                return fmt::format(fmt::runtime(format), fmt::format("{}{}", name, i));
            });
        };
    };
    const auto d = named('d', d_count), a = named('a', a_count), b = named('b', b_count);
    const std::string dtype(name(step.dtype));
    std::string text;
    const auto load = [&](bool transposed, const std::string& words, int address) {
        text += fmt::format(
            "        \"ldmatrix.sync.aligned.m8n8.x4{}.shared.b16 {{{}}}, [%{}];\\n\"\n",
            transposed ? ".trans" : "", words, address);
    };
    // The left operand's words of a row: operands, or registers of the statement.
    const auto left = [&](int row) {
        if (step.loads == 0) return numbers(d_count + 4 * row, 4);
        return list(4, 4, "", [&](int i) { return fmt::format("v{}", 4 * row + i); });
    };
    for (int along = 0; along < steps; ++along) {
        for (int row = 0; row < step.rows && step.loads > 0; ++row) {
            load(step.left_transposed, left(row), d_count + along * step.rows + row);
        }
        for (int pair = 0; pair < pairs; ++pair) {
            load(step.transposed, "w0, w1, w2, w3", d_count + a_count + along * pairs + pair);
            for (int row = 0; row < step.rows; ++row) {
                for (int half = 0; half < 2; ++half) {
                    const std::string sums = numbers(4 * (2 * (pair * step.rows + row) + half), 4);
                    text += fmt::format(
                        "        \"mma.sync.aligned.m16n8k16.row.col.f32.{0}.{0}.f32 {{{1}}}, \"\n"
                        "        \"{{{2}}}, {{w{3}, w{4}}}, {{{1}}};\\n\"\n",
                        dtype, sums, left(row), 2 * half, 2 * half + 1);
                }
            }
        }
    }
    const std::string tags =
        step.loads == 0 ? "" : fmt::format(", Loads<{}, {}>", step.loads, step.left_transposed);
    const std::string words =
        step.loads == 0 ? ""
                        : fmt::format(", {}", list(4 * step.rows, 4 * step.rows, "",
                                                   [](int i) { return fmt::format("v{}", i); }));
    return fmt::format(
        R"(
TW_DEVICE void multiply({tag}, Blocks<{rows}, {columns}>, Moved<{transposed}>{tags}, {d},
          {a}, {b}) {{
    asm volatile(
        "{{\n.reg .b32 w0, w1, w2, w3{words};\n"
{text}        "}}"
        : {outputs}
        : {inputs},
          {addresses}
        : "memory");
}}
)",
        fmt::arg("tag", step.dtype == DType::f16 ? "F16" : "Bf16"), fmt::arg("rows", step.rows),
        fmt::arg("columns", step.columns), fmt::arg("transposed", step.transposed),
        fmt::arg("tags", tags), fmt::arg("words", words), fmt::arg("d", d("float& {}")),
        fmt::arg("a", a("u32 {}")), fmt::arg("b", b("u32 {}")), fmt::arg("text", text),
        fmt::arg("outputs", d("\"+f\"({})")), fmt::arg("inputs", a("\"r\"({})")),
        fmt::arg("addresses", b("\"r\"({})")));
}

}  // namespace

std::string mma_step_functions(const std::set<MmaStep>& steps) {
    if (steps.empty()) return {};
    std::string text = "\nnamespace twd::ptx {\n";
    for (const MmaStep& step : steps) text += function_text(step);
    return text + "\n}  // namespace twd::ptx\n";
}

}  // namespace tilewright::cuda
