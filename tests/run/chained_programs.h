// Attention as tile programs, one for each path of chained products.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "tests/run/cuda_programs.h"

namespace tilewright::testing_support {

/// softmax(q k^T) v for each head, by blocks of `block_q` rows and `block_k` keys.
struct Attention {
    std::string name;
    int heads = 1, queries = 128, keys = 128, dim = 64, block_q = 128, block_k = 128;
    bool causal = false;
    bool split = false;  ///< unmasked blocks are in a separate loop
    std::string dtype = "bf16";
    bool nested = false;    ///< two runs of blocks: a loop around the loop over blocks
    bool segments = false;  ///< rows and keys with different ids do not attend
    /// Turns %s into %t; positions %rows [q, 1] and %columns [1, k] in i32.
    std::string score = "";
};

inline CudaProgram attention(const Attention& a) {
    const auto with = [&](std::string text) {
        const std::pair<std::string, std::string> words[] = {
            {"TILE", fmt::format("[{}, {}]", a.block_q, a.block_k)},
            {"QUERIES", fmt::format("[{}, {}]", a.block_q, a.dim)},
            {"KEYS", fmt::format("[{}, {}]", a.block_k, a.dim)},
            {"ROWS", fmt::format("[{}]", a.block_q)},
            {"COLUMNS", fmt::format("[{}]", a.block_k)},
            {"LEFT", fmt::format("[{}, 1]", a.block_q)},
            {"TOP", fmt::format("[1, {}]", a.block_k)},
            {"BLOCKQ", std::to_string(a.block_q)},
            {"BLOCKK", std::to_string(a.block_k)},
            {"DIM", std::to_string(a.dim)},
            {"TYPE", a.dtype}};
        for (const auto& [word, by] : words) {
            for (std::size_t at; (at = text.find(word)) != std::string::npos;) {
                text.replace(at, word.size(), by);
            }
        }
        return text;
    };
    const auto loop = [&](const std::string& id, const std::string& low, const std::string& high,
                          const std::string& state, bool masked) {
        // Names in the body end with the loop's id.
        std::string body = R"(%jX = mul %bX, %bk : i64
%kX = load %key[%h, %jX : BLOCKK, %zero : DIM] : TYPEKEYS
%sX = dot %q, %kX transpose_b : f32TILE
%kjX = cast %jX : i32
%kbX = broadcast %kjX : i32COLUMNS
%kiX = iota axis 0 : i32COLUMNS
%kpX = add %kbX, %kiX : i32COLUMNS
%columnsX = expand_dims %kpX axis 0 : i32TOP
%cX = broadcast %columnsX : i32TILE
)" + a.score;
        if (a.score.empty()) body += "%tX = mul %sX, %one : f32TILE\n";
        if (masked) {
            body += R"(%endX = broadcast %length : i32TOP
%insideX = lt %columnsX, %endX : boolTOP
%inX = broadcast %insideX : boolTILE
)";
            body += a.causal ? "%belowX = le %cX, %rowsb : boolTILE\n"
                               "%maskX = bitwise_and %inX, %belowX : boolTILE\n"
                             : "%maskX = bitwise_and %inX, %inX : boolTILE\n";
            if (a.segments) {
                body += R"(%idX = load %ids[%jX : BLOCKK] : i32COLUMNS
%idlX = expand_dims %idX axis 0 : i32TOP
%idbX = broadcast %idlX : i32TILE
%sameX = eq %idbX, %rowids : boolTILE
%meetX = bitwise_and %maskX, %sameX : boolTILE
%uX = select %meetX, %tX, %never : f32TILE
)";
            } else {
                body += "%uX = select %maskX, %tX, %never : f32TILE\n";
            }
        } else {
            body += "%uX = mul %tX, %one : f32TILE\n";
        }
        body += R"(%rX = reduce %uX max axis 1 : f32ROWS
%nX = max %mX, %rX : f32ROWS
%eX = expand_dims %nX axis 1 : f32LEFT
%ebX = broadcast %eX : f32TILE
%dX = sub %uX, %ebX : f32TILE
%pX = exp2 %dX approx : f32TILE
%shrinkX = sub %mX, %nX : f32ROWS
%fX = exp2 %shrinkX approx : f32ROWS
%rowX = reduce %pX sum axis 1 : f32ROWS
%lnX = fma %lX, %fX, %rowX : f32ROWS
%feX = expand_dims %fX axis 1 : f32LEFT
%fbX = broadcast %feX : f32QUERIES
%vX = load %value[%h, %jX : BLOCKK, %zero : DIM] : TYPEKEYS
%wX = cast %pX : TYPETILE
%xX = mul %oX, %fbX : f32QUERIES
%onX = dot %wX, %vX, %xX : f32QUERIES
yield %nX, %lnX, %onX
)";
        for (std::size_t at; (at = body.find('X')) != std::string::npos;) body.replace(at, 1, id);
        return fmt::format(
                   "%m{0}r, %l{0}r, %o{0}r = for_loop %b{0} = {1}, {2}, %step carry (%m{0} = "
                   "%m{3}, %l{0} = %l{3}, %o{0} = %o{3}) : f32ROWS, f32ROWS, f32QUERIES {{\n",
                   id, low, high, state) +
               body + "}\n";
    };
    std::string text = fmt::format(
        "func @attention(%query: ref<TYPE[{0}, {1}, {3}]>, %key: ref<TYPE[{0}, {2}, {3}]>, "
        "%value: ref<TYPE[{0}, {2}, {3}]>, %ids: ref<i32[{2}]>, %sums: ref<f32[{0}, {1}]>, "
        "%out: ref<TYPE[{0}, {1}, {3}]>) grid [{4}, {0}] {{\n",
        a.heads, a.queries, a.keys, a.dim, (a.queries + a.block_q - 1) / a.block_q);
    text += R"(%i = program_id axis 0 : i64
%h = program_id axis 1 : i64
%zero = constant 0 : i64
%step = constant 1 : i64
%bq = constant BLOCKQ : i64
%bk = constant BLOCKK : i64
%first = mul %i, %bq : i64
%q = load %query[%h, %first : BLOCKQ, %zero : DIM] : TYPEQUERIES
%firsti = cast %first : i32
%firstb = broadcast %firsti : i32ROWS
%ri = iota axis 0 : i32ROWS
%rp = add %firstb, %ri : i32ROWS
%rows = expand_dims %rp axis 1 : i32LEFT
%rowsb = broadcast %rows : i32TILE
%one = constant 0.25 : f32TILE
%never = constant -inf : f32TILE
%m0 = constant -1e+30 : f32ROWS
%l0 = constant 0 : f32ROWS
%o0 = constant 0 : f32QUERIES
)";
    const int blocks = (a.keys + a.block_k - 1) / a.block_k;
    text += fmt::format("%length = constant {} : i32\n%all = constant {} : i64\n", a.keys, blocks);
    if (a.causal) {
        text += R"(%after = add %first, %bq : i64
%up = add %after, %bk : i64
%up1 = sub %up, %step : i64
%reach = div %up1, %bk : i64
%end = min %reach, %all : i64
%whole = div %first, %bk : i64
%full = min %whole, %end : i64
)";
    } else {
        text += fmt::format("%end = add %all, %zero : i64\n%full = constant {} : i64\n",
                            a.keys / a.block_k);
    }
    if (a.segments) {
        text += R"(%rid = load %ids[%first : BLOCKQ] : i32ROWS
%ride = expand_dims %rid axis 1 : i32LEFT
%rowids = broadcast %ride : i32TILE
)";
    }
    if (a.nested) {
        text +=
            fmt::format("%two = constant 2 : i64\n%half = constant {} : i64\n", (blocks + 1) / 2);
        text +=
            R"(%m4r, %l4r, %o4r = for_loop %run = %zero, %two, %step carry (%m4 = %m0, %l4 = %l0, %o4 = %o0) : f32ROWS, f32ROWS, f32QUERIES {
%low = mul %run, %half : i64
%next = add %low, %half : i64
%high = min %next, %end : i64
)" + loop("2", "%low", "%high", "4", true) +
            "yield %m2r, %l2r, %o2r\n}\n";
    } else if (a.split) {
        text += loop("1", "%zero", "%full", "0", false) + loop("2", "%full", "%end", "1r", true);
    } else {
        text += loop("2", "%zero", "%end", "0", true);
    }
    std::string end = R"(%inverse = div %units, %l2r : f32ROWS
%ie = expand_dims %inverse axis 1 : f32LEFT
%ib = broadcast %ie : f32QUERIES
%scaled = mul %o2r, %ib : f32QUERIES
%rounded = cast %scaled : TYPEQUERIES
store %sums[%h, %first : BLOCKQ], %l2r
store %out[%h, %first : BLOCKQ, %zero : DIM], %rounded
yield
})";
    for (std::size_t at; a.nested && (at = end.find("2r")) != std::string::npos;) end[at] = '4';
    text += end;
    text.insert(text.find("%m0 = "), "%units = constant 1 : f32ROWS\n");
    const std::vector<std::int64_t> queries = {a.heads, a.queries, a.dim},
                                    keys = {a.heads, a.keys, a.dim};
    return {
        a.name, with(text), {queries, keys, keys, {a.keys}, {a.heads, a.queries}, queries}, 1.2e-2};
}

/// Sums over blocks of 64 queries whose rows are keys, as attention's gradients of keys and values:
/// four products, two of them of what the other two give. `adds`: and a fifth one, whose operand is
/// transposed, is added to memory.
inline CudaProgram gradients_of_keys(int queries, int keys, int dim, bool adds = false) {
    std::string text = R"(func @gradients(%query: ref<bf16[Q, D]>, %key: ref<bf16[K, D]>,
    %value: ref<bf16[K, D]>, %dout: ref<bf16[Q, D]>, %sums: ref<f32[Q]>, DQ%dk: ref<bf16[K, D]>,
    %dv: ref<bf16[K, D]>) grid [N] {
%i = program_id axis 0 : i64
%rows = constant 128 : i64
%first = mul %i, %rows : i64
%zero = constant 0 : i64
%step = constant 64 : i64
%end = constant Q : i64
%k = load %key[%first : 128, %zero : D] : bf16[128, D]
%v = load %value[%first : 128, %zero : D] : bf16[128, D]
%none = constant 0 : f32[128, D]
%dkr, %dvr = for_loop %j = %zero, %end, %step carry (%dka = %none, %dva = %none) : f32[128, D], f32[128, D] {
%sum = load %sums[%j : 64] : f32[64]
%q = load %query[%j : 64, %zero : D] : bf16[64, D]
%o = load %dout[%j : 64, %zero : D] : bf16[64, D]
%s = dot %k, %q transpose_b : f32[128, 64]
%dp = dot %v, %o transpose_b : f32[128, 64]
%sume = expand_dims %sum axis 0 : f32[1, 64]
%sumb = broadcast %sume : f32[128, 64]
%e = sub %s, %sumb : f32[128, 64]
%p = tanh %e : f32[128, 64]
%w = cast %p : bf16[128, 64]
%dvn = dot %w, %o, %dva : f32[128, D]
%ds = mul %p, %dp : f32[128, 64]
%g = cast %ds : bf16[128, 64]
PART%dkn = dot %g, %q, %dka : f32[128, D]
ADDyield %dkn, %dvn
}
%dkc = cast %dkr : bf16[128, D]
%dvc = cast %dvr : bf16[128, D]
store %dk[%first : 128, %zero : D], %dkc
store %dv[%first : 128, %zero : D], %dvc
yield
})";
    const std::pair<std::string, std::string> words[] = {
        {"DQ", adds ? "%dq: ref<f32[Q, D]>, " : ""},
        {"PART", adds ? "%part = dot %g, %k transpose_a : f32[64, D]\n" : ""},
        {"ADD", adds ? "%old = atomic_add %dq[%j : 64, %zero : D], %part : f32[64, D]\n" : ""},
        {"Q", std::to_string(queries)},
        {"K", std::to_string(keys)},
        {"D", std::to_string(dim)},
        {"N", std::to_string((keys + 127) / 128)}};
    for (const auto& [word, by] : words) {
        for (std::size_t at; (at = text.find(word)) != std::string::npos;) {
            text.replace(at, word.size(), by);
        }
    }
    const std::vector<std::int64_t> q = {queries, dim}, k = {keys, dim};
    std::vector<std::vector<std::int64_t>> extents = {q, k, k, q, {queries}, k, k};
    if (adds) extents.insert(extents.begin() + 5, q);
    return {adds ? "gradients" : "gradients of keys", text, extents, 1.2e-2};
}

/// Every path: one and two warpgroups, rows and keys that end inside of a block, loops without
/// iterations, both loops of causal attention, more iterations than slots, scores that a mod
/// changes, that have a soft cap, that depend on gathered elements, some of them outside, or on
/// random bits.
inline std::vector<CudaProgram> chained_programs() {
    const std::string capped = R"(%tX = tanh %sX : f32TILE
)";
    const auto soft_cap = [](double factor) {
        return fmt::format(R"(%factorX = constant {} : f32TILE
%aX = constant 4 : f32TILE
%offX = constant -2 : f32TILE
%yX = mul %sX, %factorX : f32TILE
%capX = logistic %yX approx : f32TILE
%tX = fma %capX, %aX, %offX : f32TILE
)",
                           factor);
    };
    const std::string slopes = R"(%gX = sub %cX, %rowsb : i32TILE
%gfX = cast %gX : f32TILE
%tX = fma %gfX, %one, %sX : f32TILE
)";
    const std::string gathered = R"(%gX = sub %cX, %rowsb : i32TILE
%hX = load %value[%h, tile %gX, %zero] : TYPETILE
%hfX = cast %hX : f32TILE
%tX = fma %sX, %one, %hfX : f32TILE
)";
    const std::string dropped = R"(%gX = sub %cX, %rowsb : i32TILE
%atX = cast %gX : u64TILE
%keyX = constant 77 : u64
%bitsX = random_bits %keyX, %atX : u32TILE
%limitX = constant 1000000000 : u32TILE
%keptX = gt %bitsX, %limitX : boolTILE
%tX = select %keptX, %sX, %never : f32TILE
)";
    const std::string twice = R"(%yX = load %value[%h, %jX : BLOCKK, %zero : DIM] : TYPEKEYS
%zX = dot %q, %yX transpose_b : f32TILE
%gX = add %sX, %zX : f32TILE
%tX = mul %gX, %one : f32TILE
)";
    return {
        attention({"two full blocks", 1, 128, 256, 64, 128, 128}),
        attention({"rounds and edges", 2, 200, 300, 64, 128, 64}),
        attention({"one warpgroup", 2, 100, 200, 64, 64, 64, true}),
        attention({"causal D 128", 1, 384, 384, 128, 128, 128, true}),
        attention({"causal, two loops", 2, 260, 260, 64, 128, 64, true, true}),
        attention({"f16, no full block", 1, 200, 40, 64, 128, 64, true, true, "f16"}),
        attention({"D 256", 1, 128, 192, 256, 64, 64, true}),
        attention({"three products in turn", 1, 256, 256, 64, 128, 64, true, false, "bf16", false,
                   false, twice}),
        attention({"capped scores", 1, 256, 256, 64, 128, 128, true, false, "bf16", false, false,
                   capped}),
        attention({"soft cap of small scores", 1, 256, 256, 64, 128, 128, true, false, "bf16",
                   false, false, soft_cap(0.01)}),
        attention({"soft cap of large scores", 1, 256, 256, 64, 128, 128, true, false, "bf16",
                   false, false, soft_cap(40)}),
        attention({.name = "two runs of blocks",
                   .heads = 1,
                   .queries = 300,
                   .keys = 320,
                   .block_k = 64,
                   .causal = true,
                   .nested = true}),
        attention({.name = "segments",
                   .heads = 2,
                   .queries = 256,
                   .keys = 256,
                   .block_k = 64,
                   .causal = true,
                   .segments = true}),
        attention({"slopes", 1, 256, 256, 64, 128, 64, true, false, "f16", false, false, slopes}),
        attention({"gathered scores", 1, 200, 256, 64, 128, 64, true, false, "bf16", false, false,
                   gathered}),
        attention(
            {"random bits", 1, 200, 256, 64, 128, 64, true, false, "bf16", false, false, dropped}),
        gradients_of_keys(200, 200, 64),
        gradients_of_keys(200, 400, 128),
        gradients_of_keys(200, 200, 64, true),
    };
}

}  // namespace tilewright::testing_support
