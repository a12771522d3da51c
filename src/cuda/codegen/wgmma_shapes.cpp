// Text of wgmma instructions.
#include "cuda/codegen/wgmma_shapes.h"

#include <fmt/format.h>

#include "cuda/codegen/asm_text.h"
#include "support/check.h"

namespace tilewright::cuda {
namespace {

/// The name of an operand's type in the instruction.
std::string ptx_name(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return "tf32";
        case DType::f8e4m3:
            return "e4m3";
        case DType::f8e5m2:
            return "e5m2";
        case DType::i8:
            return "s8";
        default:
            return std::string(name(dtype));
    }
}

std::string function_text(const WgmmaShape& shape) {
    TW_ASSERT(shape.n >= 8 && shape.n <= 256 && shape.n % 8 == 0, "n is {}", shape.n);
    const bool transposes = size_of(shape.dtype) == 2, integers = !is_float(shape.dtype);
    TW_ASSERT(size_of(shape.dtype) >= 2 || !shape.a_in_registers);
    TW_ASSERT(shape.steps >= 1, "{} steps", shape.steps);
    const bool registers = shape.a_in_registers;
    const int count = shape.n / 2;  // accumulator registers of a thread
    const int registers_of_a = registers ? 4 * shape.steps : 1;
    // Operands: d, a, b, accumulate, transpose b (and a) of 16 bits, offsets of b (and a) per step.
    const int b = count + registers_of_a, accumulate = b + 1, transpose = b + 2;
    const int offsets = transpose + (!transposes ? 0 : registers ? 1 : 2);
    const auto number = [](int i) { return fmt::format("%{}", i); };
    const std::string places = list(count, 16, "\" \\\n    \"", number);
    const std::string dtype = ptx_name(shape.dtype);
    // Scales of a and b, then whether to transpose a (only in shared memory) and b.
    std::string immediates = integers ? "" : ", 1, 1";
    if (transposes && !registers) immediates += fmt::format(", %{}", transpose + 1);
    if (transposes) immediates += fmt::format(", %{}", transpose);

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
        steps += fmt::format(
            "        \"wgmma.mma_async.sync.aligned.m64n{}k{}.{}.{}.{} \"\n        TW_WGMMA_D\n"
            "        \", {}, {}, {}{};\\n\"\n",
            shape.n, 32 / size_of(shape.dtype), integers ? "s32" : "f32", dtype, dtype, of_a, of_b,
            step == 0 ? "first" : "other", immediates);
    }
    std::string inputs = list(registers_of_a, 6, "\n          ", [&](int i) {
        return registers ? fmt::format("\"r\"(a[{}])", i) : std::string("\"l\"(a)");
    });
    inputs += fmt::format(", \"l\"(b), {}",
                          shape.accumulate_given ? "\"r\"(accumulate)" : "\"n\"(kAccumulate)");
    if (transposes) inputs += ", \"n\"(kTransposeB)";
    if (transposes && !registers) inputs += ", \"n\"(kTransposeA)";
    for (int step = 1; step < shape.steps; ++step) {
        inputs += fmt::format(",\n          \"n\"(StrideB::at({}))", step);
    }
    for (int step = 1; step < shape.steps && !registers; ++step) {
        inputs += fmt::format(",\n          \"n\"(StrideA::at({}))", step);
    }
    return fmt::format(
        R"(
/// PTX ISA, wgmma.mma_async.m64n{n}k{k}, {steps} times, a in {source}.
#define TW_WGMMA_D \
    "{{{places}}}"
template <{accumulate}int kTransposeB, {parameters}>
TW_DEVICE_ONCE void wgmma({tag}, Steps<{steps}>, {sum} (&d)[{count}], {parameter}, u64 b{given}) {{
    asm volatile(
        "{{\n.reg .pred first, other;\n.reg .b64 a, b;\n"
        "setp.ne.b32 first, %{acc}, 0;\nsetp.ne.b32 other, 1, 0;\n" TW_WGMMA_BEGIN
{text}        TW_WGMMA_END "}}"
        : {outputs}
        : {inputs});
}}
#undef TW_WGMMA_D
)",
        fmt::arg("n", shape.n), fmt::arg("k", 32 / size_of(shape.dtype)),
        fmt::arg("steps", shape.steps), fmt::arg("sum", integers ? "int" : "float"),
        fmt::arg("source", registers ? "registers" : "shared"), fmt::arg("places", places),
        fmt::arg("parameters", registers ? "typename StrideB"
                                         : "int kTransposeA, typename StrideA, typename StrideB"),
        fmt::arg("tag", wgmma_tag(shape.dtype)), fmt::arg("count", count),
        fmt::arg("parameter",
                 registers ? fmt::format("const u32 (&a)[{}]", registers_of_a) : "u64 a"),
        fmt::arg("accumulate", shape.accumulate_given ? "" : "int kAccumulate, "),
        fmt::arg("given", shape.accumulate_given ? ", u32 accumulate" : ""),
        fmt::arg("acc", accumulate), fmt::arg("text", steps),
        fmt::arg("outputs", list(count, 6, "\n          ",
                                 [&](int i) {
                                     return fmt::format("\"+{}\"(d[{}])", integers ? 'r' : 'f', i);
                                 })),
        fmt::arg("inputs", inputs));
}

}  // namespace

const char* wgmma_tag(DType dtype) {
    switch (dtype) {
        case DType::f16:
            return "F16";
        case DType::bf16:
            return "Bf16";
        case DType::f32:
            return "Tf32";
        case DType::f8e4m3:
            return "E4m3";
        case DType::f8e5m2:
            return "E5m2";
        case DType::i8:
            return "S8";
        case DType::u8:
            return "U8";
        default:
            TW_ASSERT(false, "wgmma has no operands of {}", name(dtype));
            return "";
    }
}

std::string wgmma_shapes_header(std::span<const WgmmaShape> shapes) {
    std::string text =
        "// Generated: the wgmma shapes of one kernel.\n#pragma once\n\n"
        "#include \"cuda/device/ptx/wgmma.cuh\"\n\nnamespace twd::ptx {\n";
    for (const WgmmaShape& shape : shapes) text += function_text(shape);
    return text + "\n}  // namespace twd::ptx\n";
}

}  // namespace tilewright::cuda
