// Text of wgmma instructions.
#include "cuda/codegen/wgmma_shapes.h"

#include <fmt/format.h>

#include "support/check.h"

namespace tilewright::cuda {
namespace {

std::string function_text(const WgmmaShape& shape) {
    TW_ASSERT(shape.n >= 8 && shape.n <= 256 && shape.n % 8 == 0, "n is {}", shape.n);
    TW_ASSERT(shape.dtype == DType::f16 || shape.dtype == DType::bf16);
    const int count = shape.n / 2;  // accumulator registers of a thread
    std::string places, outputs;
    for (int i = 0; i < count; ++i) {
        places += fmt::format("{}%{}", i == 0 ? "" : i % 16 == 0 ? ",\"\n        \"" : ",", i);
        outputs += fmt::format("{}\"+f\"(d[{}])",
                               i == 0       ? ""
                               : i % 6 == 0 ? ",\n          "
                                            : ", ",
                               i);
    }
    const std::string dtype(name(shape.dtype));
    const char* const tag = shape.dtype == DType::f16 ? "F16" : "Bf16";
    const char* const parameter = shape.a_in_registers ? "const u32* a" : "u64 a";
    const std::string a = shape.a_in_registers ? fmt::format("{{%{},%{},%{},%{}}}", count,
                                                             count + 1, count + 2, count + 3)
                                               : fmt::format("%{}", count);
    const char* const inputs =
        shape.a_in_registers ? R"("r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]))" : R"("l"(a))";
    const int b = count + (shape.a_in_registers ? 4 : 1);
    // Scales of a and b, then whether to transpose a (only in shared memory) and b.
    const std::string tail = shape.a_in_registers ? "1, 1" : fmt::format("1, 1, %{}", b + 3);
    return fmt::format(
        R"(
/// PTX ISA, wgmma.mma_async.m64n{n}k16, a in {source}.
template <int kAccumulate, int kTransposeB{more}>
TW_DEVICE void wgmma({tag}, float (&d)[{count}], {parameter}, u64 b) {{
    asm volatile(
        "{{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %{acc}, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{dtype}.{dtype} "
        "{{{places}}}, "
        "{a}, %{b}, accumulate, {tail}, %{trans};\n}}"
        : {outputs}
        : {inputs}, "l"(b), "n"(kAccumulate), "n"(kTransposeB){last});
}}
)",
        fmt::arg("n", shape.n), fmt::arg("source", shape.a_in_registers ? "registers" : "shared"),
        fmt::arg("tag", tag), fmt::arg("count", count), fmt::arg("parameter", parameter),
        fmt::arg("acc", b + 1), fmt::arg("dtype", dtype), fmt::arg("places", places),
        fmt::arg("a", a), fmt::arg("b", b), fmt::arg("tail", tail), fmt::arg("trans", b + 2),
        fmt::arg("outputs", outputs), fmt::arg("inputs", inputs),
        fmt::arg("more", shape.a_in_registers ? "" : ", int kTransposeA = 0"),
        fmt::arg("last", shape.a_in_registers ? "" : ", \"n\"(kTransposeA)"));
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
