// Tile programs with products that the scheduled form supports, one for each of its paths.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "tests/run/cuda_programs.h"

namespace tilewright::testing_support {

/// z = epilogue(a b) by blocks of `bm` x `bn` and all of `k` at once. `a` and `b` may be stored
/// transposed; `epilogue` turns %d (f32) into %q of z's dtype and may read %bias, a row of n, and
/// %rest, m x n, both of the operands' dtype.
struct Product {
    std::string name;
    int m, n, k, bm, bn;
    std::string in = "bf16", out = "bf16";
    bool transpose_a = false, transpose_b = false;
    std::string epilogue = "";
    bool bias = false, rest = false;
    double tolerance = 0;  ///< 0: the rounding of the result

    bool integers() const { return in == "i8" || in == "u8"; }
};

inline CudaProgram product(const Product& p) {
    const std::string tile = fmt::format("[{}, {}]", p.bm, p.bn);
    const auto ref = [&](const char* name, const std::string& dtype, int rows, int columns) {
        return fmt::format("%{}: ref<{}[{}, {}]>", name, dtype, rows, columns);
    };
    std::string parameters = (p.transpose_a ? ref("x", p.in, p.k, p.m) : ref("x", p.in, p.m, p.k)) +
                             ", " +
                             (p.transpose_b ? ref("y", p.in, p.n, p.k) : ref("y", p.in, p.k, p.n));
    std::vector<std::vector<std::int64_t>> extents = {
        p.transpose_a ? std::vector<std::int64_t>{p.k, p.m} : std::vector<std::int64_t>{p.m, p.k},
        p.transpose_b ? std::vector<std::int64_t>{p.n, p.k} : std::vector<std::int64_t>{p.k, p.n}};
    std::string loads;
    if (p.bias) {
        parameters += fmt::format(", %u: ref<{}[{}]>", p.in, p.n);
        extents.push_back({p.n});
        loads += fmt::format("%bias = load %u[%j : {0}] : {1}[{0}]\n", p.bn, p.in);
    }
    if (p.rest) {
        parameters += ", " + ref("r", p.in, p.m, p.n);
        extents.push_back({p.m, p.n});
        loads += fmt::format("%rest = load %r[%i : {}, %j : {}] : {}{}\n", p.bm, p.bn, p.in, tile);
    }
    parameters += ", " + ref("z", p.out, p.m, p.n);
    extents.push_back({p.m, p.n});
    const std::string a =
        p.transpose_a
            ? fmt::format("%a = load %x[%o : {0}, %i : {1}] : {2}[{0}, {1}]", p.k, p.bm, p.in)
            : fmt::format("%a = load %x[%i : {0}, %o : {1}] : {2}[{0}, {1}]", p.bm, p.k, p.in);
    const std::string b =
        p.transpose_b
            ? fmt::format("%b = load %y[%j : {0}, %o : {1}] : {2}[{0}, {1}]", p.bn, p.k, p.in)
            : fmt::format("%b = load %y[%o : {0}, %j : {1}] : {2}[{0}, {1}]", p.k, p.bn, p.in);
    const std::string epilogue =
        p.epilogue.empty()
            ? (p.integers()
                   ? "%zero = constant 0 : i32" + tile + "\n%q = add %d, %zero : i32" + tile
               : p.out == "f32"
                   ? "%zero = constant 0 : f32" + tile + "\n%q = add %d, %zero : f32" + tile
                   : "%q = cast %d : " + p.out + tile)
            : p.epilogue;
    const std::string text = fmt::format(
        R"(func @product({parameters}) grid [{gm}, {gn}] {{
%pi = program_id axis 0 : i64
%pj = program_id axis 1 : i64
%bm = constant {bm} : i64
%bn = constant {bn} : i64
%o = constant 0 : i64
%i = mul %pi, %bm : i64
%j = mul %pj, %bn : i64
{a}
{b}
%d = dot %a, %b{ta}{tb}{precision} : {sum}{tile}
{loads}{epilogue}
store %z[%i : {bm}, %j : {bn}], %q
yield
}})",
        fmt::arg("parameters", parameters), fmt::arg("gm", (p.m + p.bm - 1) / p.bm),
        fmt::arg("gn", (p.n + p.bn - 1) / p.bn), fmt::arg("bm", p.bm), fmt::arg("bn", p.bn),
        fmt::arg("a", a), fmt::arg("b", b), fmt::arg("ta", p.transpose_a ? " transpose_a" : ""),
        fmt::arg("tb", p.transpose_b ? " transpose_b" : ""), fmt::arg("tile", tile),
        fmt::arg("precision", p.in == "f32" ? " precision tf32" : ""),
        fmt::arg("sum", p.integers() ? "i32" : "f32"), fmt::arg("loads", loads),
        fmt::arg("epilogue", epilogue));
    const double rounding = p.out == "bf16" ? 8e-3 : p.out == "f16" ? 1e-3 : 1e-6;
    return {p.name, text, extents, p.tolerance != 0 ? p.tolerance : rounding};
}

/// `body` with TILE, ROW and COLUMN for the shapes of a block, one of its rows and columns.
inline std::string with_shapes(std::string body, int bm, int bn) {
    const std::pair<std::string, std::string> words[] = {{"TILE", fmt::format("[{}, {}]", bm, bn)},
                                                         {"LINE", fmt::format("[1, {}]", bn)},
                                                         {"ROW", fmt::format("[{}]", bn)}};
    for (const auto& [word, by] : words) {
        for (std::size_t at; (at = body.find(word)) != std::string::npos;) {
            body.replace(at, word.size(), by);
        }
    }
    return body;
}

/// Batched products, with a grid axis for the batch and one weight for all.
inline CudaProgram batched_product() {
    return {"batch",
            R"(func @batched(%x: ref<bf16[3, 130, 128]>, %y: ref<bf16[1, 128, 72]>,
    %z: ref<bf16[3, 130, 72]>) grid [3, 2] {
%b = program_id axis 0 : i64
%pi = program_id axis 1 : i64
%bm = constant 128 : i64
%o = constant 0 : i64
%i = mul %pi, %bm : i64
%a = load %x[%b, %i : 128, %o : 128] : bf16[128, 128]
%w = load %y[%o, %o : 128, %o : 128] : bf16[128, 128]
%d = dot %a, %w : f32[128, 128]
%q = cast %d : bf16[128, 128]
store %z[%b, %i : 128, %o : 128], %q
yield
})",
            {{3, 130, 128}, {1, 128, 72}, {3, 130, 72}},
            8e-3};
}

/// Grouped products, as for experts with any number of rows: one array has the first rows, another
/// the indices of the weights; stores are masked by rows and columns.
inline CudaProgram grouped_product(const std::string& name, int bm, int bn) {
    const std::string text = fmt::format(
        R"(func @grouped(%x: ref<bf16[300, 128]>, %w: ref<bf16[3, 128, 264]>, %expert: ref<i32[3]>,
    %first: ref<i32[3]>, %rows: ref<i32[3]>, %z: ref<bf16[3, {bm}, 264]>) grid [3, {blocks}] {{
%t = program_id axis 0 : i64
%pj = program_id axis 1 : i64
%bn = constant {bn} : i64
%o = constant 0 : i64
%j = mul %pj, %bn : i64
%e = load %expert[%t] : i32
%e64 = cast %e : i64
%f = load %first[%t] : i32
%thirty = constant 30 : i32
%f30 = mul %f, %thirty : i32
%i = cast %f30 : i64
%a = load %x[%i : {bm}, %o : 128] : bf16[{bm}, 128]
%b = load %w[%e64, %o : 128, %j : {bn}] : bf16[128, {bn}]
%d = dot %a, %b : f32TILE
%q = cast %d : bf16TILE
%n = load %rows[%t] : i32
%ten = constant 10 : i32
%n10 = mul %n, %ten : i32
%end = broadcast %n10 : i32[{bm}]
%row = iota axis 0 : i32[{bm}]
%r = lt %row, %end : bool[{bm}]
%rc = expand_dims %r axis 1 : bool[{bm}, 1]
%rt = broadcast %rc : boolTILE
%column = iota axis 1 : i64TILE
%jt = broadcast %j : i64TILE
%at = add %column, %jt : i64TILE
%most = constant 201 : i64TILE
%c = lt %at, %most : boolTILE
%in = bitwise_and %rt, %c : boolTILE
store %z[%t, %o : {bm}, %j : {bn}], %q mask %in
yield
}})",
        fmt::arg("bm", bm), fmt::arg("bn", bn), fmt::arg("blocks", (263 + bn) / bn));
    return {name,
            with_shapes(text, bm, bn),
            {{300, 128}, {3, 128, 264}, {3}, {3}, {3}, {3, bm, 264}},
            8e-3};
}

/// The same with a grid known only at the call, which is assumed to be large and gets the largest
/// tiles.
inline CudaProgram with_dynamic_grid(CudaProgram program) {
    const std::size_t at = program.text.find(" grid [") + 7, end = program.text.find(']', at);
    const std::string grid = program.text.substr(at, end - at);
    program.name += ", largest tiles";
    program.grid = {std::stoll(grid), std::stoll(grid.substr(grid.find(',') + 1))};
    program.text.replace(at, end - at, "?, ?");
    return program;
}

/// Every path of the form: tiles of one and two warpgroups, both orders of both operands, bounds,
/// more and fewer programs than blocks, fused operations, stores by TMA and by threads.
inline std::vector<CudaProgram> scheduled_programs() {
    const std::string gelu = R"(%fb = cast %bias : f32ROW
%eb = expand_dims %fb axis 0 : f32LINE
%bb = broadcast %eb : f32TILE
%s = add %d, %bb : f32TILE
%t = tanh %s : f32TILE
%g = mul %s, %t : f32TILE
%q = cast %g : bf16TILE)";
    const std::string residual = R"(%fr = cast %rest : f32TILE
%s = add %d, %fr : f32TILE
%none = constant 0 : f32TILE
%p = gt %s, %none : boolTILE
%g = select %p, %s, %none : f32TILE
%q = cast %g : f16TILE)";
    const std::string both = R"(%eb = expand_dims %bias axis 0 : f32LINE
%bb = broadcast %eb : f32TILE
%s = add %d, %bb : f32TILE
%t = add %s, %rest : f32TILE
%none = constant 0 : f32TILE
%q = max %t, %none : f32TILE)";
    const std::string scaled = R"(%half = constant 0.5 : f32
%hs = broadcast %half : f32TILE
%q = mul %d, %hs : f32TILE)";
    return {
        product({"one tile", 128, 256, 64, 128, 256}),
        product({"edges of every side", 300, 520, 456, 256, 256}),
        product({"NT", 256, 264, 200, 256, 256, "bf16", "bf16", false, true}),
        product({"TN", 264, 256, 136, 256, 256, "bf16", "bf16", true, false}),
        product({"TT f16", 136, 264, 136, 128, 256, "f16", "f16", true, true}),
        product({"64 rows, two warpgroups side by side", 64, 320, 192, 64, 128}),
        product({"64 rows, one warpgroup", 72, 72, 320, 64, 64, "f16", "bf16"}),
        product({"64 rows, NT", 64, 264, 192, 64, 256, "bf16", "bf16", false, true}),
        product({"three panels", 128, 192, 128, 128, 192}),
        product({"f32 result", 200, 136, 128, 128, 128, "bf16", "f32"}),
        product({"f32 result, two side by side", 64, 264, 128, 64, 256, "f16", "f32", false, false,
                 with_shapes(scaled, 64, 256)}),
        product({"bias and activation", 136, 264, 256, 128, 256, "bf16", "bf16", false, false,
                 with_shapes(gelu, 128, 256), true}),
        product({"residual and relu", 136, 136, 128, 128, 128, "f16", "f16", false, false,
                 with_shapes(residual, 128, 128), false, true}),
        // Rows of multiples of 128 bytes: no clusters, so that TMA loads what is added, too.
        product({"residual loaded ahead", 200, 320, 192, 128, 320, "f16", "f16", false, false,
                 with_shapes(residual, 128, 320), false, true}),
        product({"residual loaded ahead, 64 rows", 64, 320, 192, 64, 64, "f16", "f16", false, false,
                 with_shapes(residual, 64, 64), false, true}),
        product({"bias, two side by side", 64, 264, 128, 64, 256, "bf16", "bf16", false, false,
                 with_shapes(gelu, 64, 256), true}),
        product({"e4m3", 136, 264, 256, 128, 128, "f8e4m3", "bf16", false, true}),
        product({"e5m2, one warpgroup", 72, 136, 384, 64, 64, "f8e5m2", "f32", false, true}),
        product({"i8", 136, 264, 256, 128, 256, "i8", "i32", false, true}),
        product({"u8, two side by side", 64, 264, 384, 64, 256, "u8", "i32", false, true}),
        // tf32 operands have 11 bits; the reference multiplies in f32.
        product(
            {"tf32", 136, 264, 72, 128, 128, "f32", "f32", false, true, "", false, false, 2e-3}),
        // The right operand, or the left one, is read from shared memory by threads.
        product({"tf32 NN", 300, 264, 200, 256, 256, "f32", "f32", false, false, "", false, false,
                 2e-3}),
        product({"tf32 NN, one warpgroup", 72, 68, 100, 64, 64, "f32", "bf16", false, false, "",
                 false, false, 8e-3}),
        product({"tf32 NN, two below each other", 200, 64, 72, 256, 64, "f32", "f32", false, false,
                 "", false, false, 2e-3}),
        product({"tf32 NN, bias, residual and relu", 264, 136, 104, 256, 128, "f32", "f32", false,
                 false, with_shapes(both, 256, 128), true, true, 2e-3}),
        product(
            {"tf32 TT", 136, 264, 140, 128, 256, "f32", "f32", true, true, "", false, false, 2e-3}),
        product({"tf32 TT, two side by side", 64, 264, 72, 64, 256, "f32", "f16", true, true, "",
                 false, false, 2e-3}),
        with_dynamic_grid(
            product({"tf32 NN, bias, residual and relu", 264, 136, 104, 256, 128, "f32", "f32",
                     false, false, with_shapes(both, 256, 128), true, true, 2e-3})),
        batched_product(),
        grouped_product("experts' rows", 128, 128),
        with_dynamic_grid(grouped_product("experts' rows", 128, 256)),
        with_dynamic_grid(grouped_product("experts' rows, two side by side", 64, 256)),
        with_dynamic_grid(product({"edges of every side", 300, 520, 456, 256, 256})),
        with_dynamic_grid(product({"f32 result, two side by side", 64, 264, 128, 64, 256, "f16",
                                   "f32", false, false, with_shapes(scaled, 64, 256)})),
        with_dynamic_grid(product({"bias and activation", 136, 264, 256, 128, 256, "bf16", "bf16",
                                   false, false, with_shapes(gelu, 128, 256), true})),
    };
}

/// Batched products whose last left operand is out of bounds, and therefore zero.
inline CudaProgram copied_batch() {
    return {"pieces of 8, a batch that ends before its grid",
            R"(func @batched(%x: ref<bf16[3, 130, 132]>, %y: ref<bf16[1, 132, 76]>,
    %z: ref<bf16[3, 130, 76]>) grid [3, 2] {
%b = program_id axis 0 : i64
%pi = program_id axis 1 : i64
%bm = constant 128 : i64
%o = constant 0 : i64
%one = constant 1 : i64
%next = add %b, %one : i64
%i = mul %pi, %bm : i64
%a = load %x[%next, %i : 128, %o : 192] : bf16[128, 192]
%w = load %y[%o, %o : 192, %o : 128] : bf16[192, 128]
%d = dot %a, %w : f32[128, 128]
%q = cast %d : bf16[128, 128]
store %z[%b, %i : 128, %o : 128], %q
yield
})",
            {{3, 130, 132}, {1, 132, 76}, {3, 130, 76}},
            8e-3};
}

/// Products of arrays whose rows are only aligned to 8 or 4 bytes.
inline std::vector<CudaProgram> copied_programs() {
    return {
        product({"pieces of 8", 140, 268, 196, 128, 256}),
        product({"pieces of 8, NT", 136, 264, 196, 128, 128, "bf16", "bf16", false, true}),
        product({"pieces of 8, one warpgroup", 76, 76, 324, 64, 64, "f16", "bf16"}),
        product({"pieces of 4, TN", 138, 262, 130, 128, 128, "bf16", "f32", true, false}),
        product({"one operand by TMA", 138, 264, 134, 128, 128}),
        product({"i8, pieces of 4", 136, 264, 260, 128, 128, "i8", "i32", false, true}),
        copied_batch(),
    };
}

}  // namespace tilewright::testing_support
