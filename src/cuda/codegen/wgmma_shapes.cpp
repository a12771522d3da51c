// Text of wgmma instructions.
#include "cuda/codegen/wgmma_shapes.h"

#include <fmt/format.h>

#include "cuda/codegen/asm_text.h"
#include "support/check.h"

namespace tilewright::cuda {
namespace {

std::string function_text(const WgmmaShape& shape) {
    TW_ASSERT(shape.n >= 8 && shape.n <= 256 && shape.n % 8 == 0, "n is {}", shape.n);
    TW_ASSERT(shape.dtype == DType::f16 || shape.dtype == DType::bf16);
    TW_ASSERT(shape.steps >= 1, "{} steps", shape.steps);
    const bool registers = shape.a_in_registers;
    const int count = shape.n / 2;  // accumulator registers of a thread
    const int registers_of_a = registers ? 4 * shape.steps : 1;
    // Operands: d, a, b, accumulate, transpose b (and a), where b (and a) of each step begin.
    const int b = count + registers_of_a, accumulate = b + 1, transpose = b + 2;
    const int offsets = transpose + (registers ? 1 : 2);
    const auto number = [](int i) { return fmt::format("%{}", i); };
    const std::string places = list(count, 16, "\" \\\n    \"", number);
    const std::string dtype(name(shape.dtype));

    std::string steps;
    for (int step = 0; step < shape.steps; ++step) {
        std::string of_a =
            registers
                ? fmt::format("{{{}}}",
                              list(4, 4, "", [&](int i) { return number(count + 4 * step + i); }))
                : number(count);
        std::string of_b = number(b);
        if (step > 0) {
            steps += fmt::format("        \"add.s64 b, %{}, %{};\\n\"\n", b, offsets + step - 1);
            of_b = "b";
        }
        if (step > 0 && !registers) {
            steps += fmt::format("        \"add.s64 a, %{}, %{};\\n\"\n", count,
                                 offsets + shape.steps - 1 + step - 1);
            of_a = "a";
        }
        // Scales of a and b, then whether to transpose a (only in shared memory) and b.
        steps += fmt::format(
            "        \"wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{} \"\n        TW_WGMMA_D\n"
            "        \", {}, {}, {}, 1, 1, {}%{};\\n\"\n",
            shape.n, dtype, dtype, of_a, of_b, step == 0 ? "first" : "other",
            registers ? "" : fmt::format("%{}, ", transpose + 1), transpose);
    }
    std::string inputs = list(registers_of_a, 6, "\n          ", [&](int i) {
        return registers ? fmt::format("\"r\"(a[{}])", i) : std::string("\"l\"(a)");
    });
    inputs += fmt::format(", \"l\"(b), {}, \"n\"(kTransposeB)",
                          shape.accumulate_given ? "\"r\"(accumulate)" : "\"n\"(kAccumulate)");
    if (!registers) inputs += ", \"n\"(kTransposeA)";
    for (int step = 1; step < shape.steps; ++step) {
        inputs += fmt::format(",\n          \"n\"(StrideB::at({}))", step);
    }
    for (int step = 1; step < shape.steps && !registers; ++step) {
        inputs += fmt::format(",\n          \"n\"(StrideA::at({}))", step);
    }
    return fmt::format(
        R"(
/// PTX ISA, wgmma.mma_async.m64n{n}k16, {steps} times, a in {source}.
#define TW_WGMMA_D \
    "{{{places}}}"
template <{accumulate}int kTransposeB, {parameters}>
TW_DEVICE void wgmma({tag}, Steps<{steps}>, float (&d)[{count}], {parameter}, u64 b{given}) {{
    asm volatile(
        "{{\n.reg .pred first, other;\n.reg .b64 a, b;\n"
        "setp.ne.b32 first, %{acc}, 0;\nsetp.ne.b32 other, 1, 0;\n"
{text}        "}}"
        : {outputs}
        : {inputs});
}}
#undef TW_WGMMA_D
)",
        fmt::arg("n", shape.n), fmt::arg("steps", shape.steps),
        fmt::arg("source", registers ? "registers" : "shared"), fmt::arg("places", places),
        fmt::arg("parameters", registers ? "typename StrideB"
                                         : "int kTransposeA, typename StrideA, typename StrideB"),
        fmt::arg("tag", shape.dtype == DType::f16 ? "F16" : "Bf16"), fmt::arg("count", count),
        fmt::arg("parameter",
                 registers ? fmt::format("const u32 (&a)[{}]", registers_of_a) : "u64 a"),
        fmt::arg("accumulate", shape.accumulate_given ? "" : "int kAccumulate, "),
        fmt::arg("given", shape.accumulate_given ? ", u32 accumulate" : ""),
        fmt::arg("acc", accumulate), fmt::arg("text", steps),
        fmt::arg("outputs", list(count, 6, "\n          ",
                                 [](int i) { return fmt::format("\"+f\"(d[{}])", i); })),
        fmt::arg("inputs", inputs));
}

}  // namespace

std::string wgmma_shapes_header(std::span<const WgmmaShape> shapes) {
    std::string text =
        "// Generated: the wgmma shapes of one kernel.\n#pragma once\n\n"
        "#include \"cuda/device/ptx/wgmma.cuh\"\n\nnamespace tw::ptx {\n";
    for (const WgmmaShape& shape : shapes) text += function_text(shape);
    return text + "\n}  // namespace tw::ptx\n";
}

}  // namespace tilewright::cuda
