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
    TW_ASSERT(shape.halves == 1 || (!shape.a_in_registers && shape.n % 64 == 0));
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
    // The accumulator's registers of a half of the rows.
    const auto outputs = [&](int half) {
        return list(count, 6, "\n          ", [&](int i) {
            const int at = shape.halves == 1 ? i : i / 32 * 64 + 32 * half + i % 32;
            return fmt::format("\"+{}\"(d[{}])", integers ? 'r' : 'f', at);
        });
    };
    std::string statements;
    for (int half = 0; half < shape.halves; ++half) {
        std::string of_half = inputs;
        if (half > 0) of_half.replace(of_half.find("\"l\"(a)"), 6, "\"l\"(lower)");
        statements += fmt::format(
            R"(    asm volatile(
        "{{\n.reg .pred first, other;\n.reg .b64 a, b;\n"
        "setp.ne.b32 first, %{}, 0;\nsetp.ne.b32 other, 1, 0;\n" TW_WGMMA_BEGIN
{}        TW_WGMMA_END "}}"
        : {}
        : {});
)",
            accumulate, steps, outputs(half), of_half);
    }
    return fmt::format(
        R"(
/// PTX ISA, wgmma.mma_async.m64n{n}k{k}, {steps} times, a in {source}{twice}.
#define TW_WGMMA_D \
    "{{{places}}}"
template <{accumulate}int kTransposeB, {parameters}>
TW_DEVICE_ONCE void wgmma({tag}, Steps<{steps}>, {sum} (&d)[{count}], {parameter}, u64 b{given}) {{
{statements}}}
#undef TW_WGMMA_D
)",
        fmt::arg("n", shape.n), fmt::arg("k", 32 / size_of(shape.dtype)),
        fmt::arg("steps", shape.steps), fmt::arg("sum", integers ? "int" : "float"),
        fmt::arg("source", registers ? "registers" : "shared"),
        fmt::arg("twice", shape.halves > 1 ? ", for two times 64 rows" : ""),
        fmt::arg("places", places),
        fmt::arg("parameters", registers ? "typename StrideB"
                                         : "int kTransposeA, typename StrideA, typename StrideB"),
        fmt::arg("tag", wgmma_tag(shape.dtype)), fmt::arg("count", count * shape.halves),
        fmt::arg("parameter", registers          ? fmt::format("const u32 (&a)[{}]", registers_of_a)
                              : shape.halves > 1 ? "u64 a, u64 lower"
                                                 : "u64 a"),
        fmt::arg("accumulate", shape.accumulate_given ? "" : "int kAccumulate, "),
        fmt::arg("given", shape.accumulate_given ? ", u32 accumulate" : ""),
        fmt::arg("statements", statements));
}

/// The same for a compact kernel, whose registers lie in memory: a loop over the steps between
/// loads and stores of the accumulators. An operand in registers is loaded step by step.
std::string compact_text(const WgmmaShape& shape) {
    TW_ASSERT(size_of(shape.dtype) == 2 && !shape.accumulate_given, "no compact product of {}",
              name(shape.dtype));
    const bool registers = shape.a_in_registers;
    const int count = shape.n / 2;
    const auto four = [](const char* of, int from) {
        return fmt::format("{{{0}{1}, {0}{2}, {0}{3}, {0}{4}}}", of, from, from + 1, from + 2,
                           from + 3);
    };
    // Operands: d, a, b, accumulate, transpose b (and a), the strides of b (and a).
    const int strides = registers ? 5 : 6;
    const auto descriptor = [](const char* of, int operand, int stride) {
        return fmt::format(
            "        \"mul.lo.u32 o, j, %{2};\\nmad.lo.u32 o, k, %{3}, o;\\n\"\n"
            "        \"cvt.u64.u32 {0}, o;\\nadd.s64 {0}, {0}, %{1};\\n\"\n",
            of, operand, stride, stride + 1);
    };
    std::string loads, stores;
    for (int i = 0; i < count; i += 4) {
        loads +=
            fmt::format("        \"ld.local.v4.f32 {}, [at + {}];\\n\"\n", four("d", i), 4 * i);
        stores +=
            fmt::format("        \"st.local.v4.f32 [at + {}], {};\\n\"\n", 4 * i, four("d", i));
    }
    const std::string left =
        registers ? "        \"ld.local.v4.b32 {r0, r1, r2, r3}, [a];\\nadd.s64 a, a, 16;\\n\"\n"
                  : descriptor("a", 1, strides + 2);
    return fmt::format(
        R"(
/// PTX ISA, wgmma.mma_async.m64n{n}k16, {steps} times, a in {source}; compact.
template <int kAccumulate, int kTransposeB, {parameters}>
TW_DEVICE_ONCE void wgmma({tag}, Steps<{steps}>, float (&d)[{count}], {parameter}, u64 b) {{
    asm volatile(
        "{{\n.reg .pred add, more;\n.reg .b32 i, j, k, o, r<4>;\n.reg .b64 a, b, at;\n"
        ".reg .f32 d<{count}>;\ncvta.to.local.u64 at, %0;\n{start}"
{loads}        "setp.ne.b32 add, %3, 0;\nmov.u32 i, 0;\nwgmma.fence.sync.aligned;\nSTEP:\n"
        "and.b32 j, i, 3;\nshr.u32 k, i, 2;\n"
{right}{left}        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{dtype}.{dtype} "
        "{{{places}}}, "
        "{of_a}, b, add, 1, 1, {transpose};\n"
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
        "setp.ne.b32 add, 1, 0;\nadd.u32 i, i, 1;\nsetp.lt.u32 more, i, {steps};\n@more bra STEP;\n"
{stores}        "}}" ::"l"(d),
        "l"(a), "l"(b), "n"(kAccumulate), "n"(kTransposeB), {inputs}
        : "memory");
}}
)",
        fmt::arg("n", shape.n), fmt::arg("steps", shape.steps),
        fmt::arg("source", registers ? "registers" : "shared"),
        fmt::arg("parameters", registers ? "typename StrideB"
                                         : "int kTransposeA, typename StrideA, typename StrideB"),
        fmt::arg("tag", wgmma_tag(shape.dtype)), fmt::arg("count", count),
        fmt::arg("parameter",
                 registers ? fmt::format("const u32 (&a)[{}]", 4 * shape.steps) : "u64 a"),
        fmt::arg("start", registers ? "cvta.to.local.u64 a, %1;\\n" : ""), fmt::arg("loads", loads),
        fmt::arg("stores", stores), fmt::arg("right", descriptor("b", 2, strides)),
        fmt::arg("left", left), fmt::arg("dtype", ptx_name(shape.dtype)),
        fmt::arg("places",
                 list(count, 16, "\"\n        \"", [](int i) { return fmt::format("d{}", i); })),
        fmt::arg("of_a", registers ? four("r", 0) : "a"),
        fmt::arg("transpose", registers ? "%4" : "%5, %4"),
        fmt::arg("inputs", registers ? "\"n\"(StrideB::at(1)), \"n\"(StrideB::at(4))"
                                     : "\"n\"(kTransposeA),\n        \"n\"(StrideB::at(1)), "
                                       "\"n\"(StrideB::at(4)), \"n\"(StrideA::at(1)), "
                                       "\"n\"(StrideA::at(4))"));
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

std::string wgmma_shapes_header(std::span<const WgmmaShape> shapes, bool with_compact) {
    std::string text =
        "// Generated: the wgmma shapes of one kernel.\n#pragma once\n\n"
        "#include \"cuda/device/ptx/wgmma.cuh\"\n\nnamespace twd::ptx {\n";
    if (with_compact) {
        text += "\n#ifdef TW_COMPACT\n";
        for (const WgmmaShape& shape : shapes) text += compact_text(shape);
        text += "\n#else\n";
    }
    for (const WgmmaShape& shape : shapes) text += function_text(shape);
    if (with_compact) text += "\n#endif\n";
    return text + "\n}  // namespace twd::ptx\n";
}

}  // namespace tilewright::cuda
