// Tile programs as IR text, one for each path of CUDA code generation, and their shapes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ir/op.h"

namespace tilewright::testing_support {

struct CudaProgram {
    std::string name;
    std::string text;
    std::vector<std::vector<std::int64_t>> extents;  ///< of the Refs, in parameter order
    double relative =
        0;  ///< error allowed against the reference, relative to the largest magnitude
    std::vector<std::int64_t> grid = {};
};

inline std::string matmul_text(const std::string& in, const std::string& out, int m, int n, int k,
                               int steps, const std::string& flags = "") {
    const auto s = [](int v) { return std::to_string(v); };
    const bool ta = flags.find("transpose_a") != std::string::npos;
    const bool tb = flags.find("transpose_b") != std::string::npos;
    const std::string a =
        ta ? "%p : " + s(k) + ", %zero : " + s(m) : "%zero : " + s(m) + ", %p : " + s(k);
    const std::string b =
        tb ? "%zero : " + s(n) + ", %p : " + s(k) : "%p : " + s(k) + ", %zero : " + s(n);
    const std::string at = ta ? s(k) + ", " + s(m) : s(m) + ", " + s(k);
    const std::string bt = tb ? s(n) + ", " + s(k) : s(k) + ", " + s(n);
    const std::string ae = ta ? s(k * steps) + ", " + s(m) : s(m) + ", " + s(k * steps);
    const std::string be = tb ? s(n) + ", " + s(k * steps) : s(k * steps) + ", " + s(n);
    const std::string mn = s(m) + ", " + s(n);
    return "func @matmul(%x: ref<" + in + "[" + ae + "]>, %y: ref<" + in + "[" + be +
           "]>, %z: ref<" + out + "[" + mn +
           "]>) grid [] {\n"
           "%zero = constant 0 : i64\n%one = constant 1 : i64\n%steps = constant " +
           s(steps) + " : i64\n%kk = constant " + s(k) + " : i64\n%init = constant 0 : " + out +
           "[" + mn +
           "]\n"
           "%sum = for_loop %i = %zero, %steps, %one carry (%acc = %init) : " +
           out + "[" + mn +
           "] {\n"
           "%p = mul %i, %kk : i64\n%a = load %x[" +
           a + "] : " + in + "[" + at + "]\n%b = load %y[" + b + "] : " + in + "[" + bt +
           "]\n%d = dot %a, %b, %acc " + flags + " : " + out + "[" + mn +
           "]\n"
           "yield %d\n}\nstore %z[%zero : " +
           s(m) + ", %zero : " + s(n) + "], %sum\nyield\n}\n";
}

inline CudaProgram matmul_program(const std::string& in, const std::string& out, int m, int n,
                                  int k, int steps, double relative,
                                  const std::string& flags = "") {
    const bool ta = flags.find("transpose_a") != std::string::npos;
    const bool tb = flags.find("transpose_b") != std::string::npos;
    const int kk = k * steps;
    return {"matmul " + in + " " + std::to_string(m) + "x" + std::to_string(n) + "x" +
                std::to_string(k) + " " + flags,
            matmul_text(in, out, m, n, k, steps, flags),
            {ta ? std::vector<std::int64_t>{kk, m} : std::vector<std::int64_t>{m, kk},
             tb ? std::vector<std::int64_t>{n, kk} : std::vector<std::int64_t>{kk, n},
             {m, n}},
            relative};
}

/// Attention for one block of queries: online softmax over blocks of keys, the last one partial.
inline CudaProgram attention_program(const std::string& in, int q, int k, int d, int length) {
    const auto s = [](int v) { return std::to_string(v); };
    const std::string qk = "[" + s(q) + ", " + s(k) + "]", qd = "[" + s(q) + ", " + s(d) + "]",
                      kd = "[" + s(k) + ", " + s(d) + "]", q1 = "[" + s(q) + "]";
    std::string t = "func @attention(%q: ref<" + in + "[" + s(q) + ", " + s(d) + "]>, %k: ref<" +
                    in + "[?, " + s(d) + "]>, %v: ref<" + in + "[?, " + s(d) + "]>, %o: ref<" + in +
                    qd + ">, %l: ref<f32" + q1 + ">) grid [] {\n";
    t += "%zero = constant 0 : i64\n%one = constant 1 : i64\n%bk = constant " + s(k) + " : i64\n";
    t += "%len = extent %k axis 0 : i64\n%blocks0 = add %len, %bk : i64\n%blocks1 = sub %blocks0, "
         "%one : i64\n"
         "%blocks = div %blocks1, %bk : i64\n";
    t += "%qt = load %q[%zero : " + s(q) + ", %zero : " + s(d) + "] : " + in + qd + "\n";
    t += "%m0 = constant -1e30 : f32" + q1 + "\n%l0 = constant 0 : f32" + q1 +
         "\n%o0 = constant 0 : f32" + qd +
         "\n%len32 = cast %len : i32\n%lenb = broadcast %len32 : i32" + qk +
         "\n%inf = constant -inf : f32" + qk + "\n";
    t += "%m, %ls, %acc = for_loop %j = %zero, %blocks, %one carry (%mi = %m0, %li = %l0, %oi = "
         "%o0) : "
         "f32" +
         q1 + ", f32" + q1 + ", f32" + qd + " {\n";
    t += "%p = mul %j, %bk : i64\n%kt = load %k[%p : " + s(k) + ", %zero : " + s(d) + "] : " + in +
         kd + "\n";
    t += "%s = dot %qt, %kt transpose_b : f32" + qk + "\n";
    t += "%p32 = cast %p : i32\n%pb = broadcast %p32 : i32" + qk + "\n%io = iota axis 1 : i32" +
         qk + "\n%pos = add %pb, %io : i32" + qk + "\n%ok = lt %pos, %lenb : bool" + qk +
         "\n%sm = select %ok, %s, %inf : f32" + qk + "\n";
    t += "%mr = reduce %sm max axis 1 : f32" + q1 + "\n%mn = max %mi, %mr : f32" + q1 +
         "\n%me = expand_dims %mn axis 1 : f32[" + s(q) + ", 1]\n%mb = broadcast %me : f32" + qk +
         "\n%sx = sub %sm, %mb : f32" + qk + "\n%e = exp2 %sx : f32" + qk + "\n";
    t += "%dm = sub %mi, %mn : f32" + q1 + "\n%al = exp2 %dm : f32" + q1 +
         "\n%es = reduce %e sum axis 1 : f32" + q1 + "\n%la = mul %li, %al : f32" + q1 +
         "\n%ln = add %la, %es : f32" + q1 + "\n";
    t += "%ae = expand_dims %al axis 1 : f32[" + s(q) + ", 1]\n%ab = broadcast %ae : f32" + qd +
         "\n%os = mul %oi, %ab : f32" + qd + "\n%vt = load %v[%p : " + s(k) + ", %zero : " + s(d) +
         "] : " + in + kd + "\n%pc = cast %e : " + in + qk + "\n%on = dot %pc, %vt, %os : f32" +
         qd + "\nyield %mn, %ln, %on\n}\n";
    t += "%le = expand_dims %ls axis 1 : f32[" + s(q) + ", 1]\n%lb = broadcast %le : f32" + qd +
         "\n%of = div %acc, %lb : f32" + qd + "\n%oc = cast %of : " + in + qd +
         "\nstore %o[%zero : " + s(q) + ", %zero : " + s(d) + "], %oc\nstore %l[%zero : " + s(q) +
         "], %ls\nyield\n}\n";
    return {"attention " + in + " " + s(q) + "x" + s(k) + "x" + s(d),
            t,
            {{q, d}, {length, d}, {length, d}, {q, d}, {q}},
            in == "bf16" ? 2e-2 : 4e-3};
}

/// Rows of 64 and more elements per thread: they stay packed over two reductions that combine their
/// warps' results at one barrier; a row of weights is loaded in every iteration; sums over rows are
/// in scratch memory, in which each thread has its own part.
inline CudaProgram wide_rows_program() {
    const std::string row = "f32[2048]", pieces = "f32[2, 256, 4]";
    std::string t =
        "func @wide_rows(%x: ref<bf16[5, 2048]>, %d: ref<bf16[5, 2048]>, %w: ref<bf16[2048]>, "
        "%y: ref<bf16[5, 2048]>, %t: ref<f32[2048]>, %s: scratch<f32[2, 256, 4]>) grid [] "
        "num_warps 2 {\n"
        "%zero = constant 0 : i64\n%one = constant 1 : i64\n%rows = constant 5 : i64\n";
    t +=
        "%init = constant 0 : " + pieces + "\nstore %s[%zero : 2, %zero : 256, %zero : 4], %init\n";
    t += "%wl = load %w[%zero : 2048] : bf16[2048]\n%wf = cast %wl : " + row + "\n";
    t += "for_loop %i = %zero, %rows, %one {\n"
         "%xl = load %x[%i, %zero : 2048] : bf16[2048]\n%xf = cast %xl : " +
         row + "\n%dl = load %d[%i, %zero : 2048] : bf16[2048]\n%df = cast %dl : " + row +
         "\n%g = mul %df, %wf : " + row + "\n%p = mul %g, %xf : " + row +
         "\n%a = reduce %p sum axis 0 : f32\n%b = reduce %g sum axis 0 : f32\n"
         "%scale = constant 0.0009765625 : f32\n%am = mul %a, %scale : f32\n"
         "%bm = mul %b, %scale : f32\n%ab = broadcast %am : " +
         row + "\n%bb = broadcast %bm : " + row + "\n%q = mul %xf, %ab : " + row +
         "\n%r = sub %g, %q : " + row + "\n%u = sub %r, %bb : " + row +
         "\n%yc = cast %u : bf16[2048]\nstore %y[%i, %zero : 2048], %yc\n";
    t += "%old = load %s[%zero : 2, %zero : 256, %zero : 4] : " + pieces +
         "\n%ot = transpose %old permutation [1, 0, 2] : f32[256, 2, 4]\n%ol = reshape %ot : " +
         row + "\n%sum = fma %df, %xf, %ol : " + row +
         "\n%sr = reshape %sum : f32[256, 2, 4]\n%st = transpose %sr permutation [1, 0, 2] : " +
         pieces + "\nstore %s[%zero : 2, %zero : 256, %zero : 4], %st\nyield\n}\n";
    t += "%end = load %s[%zero : 2, %zero : 256, %zero : 4] : " + pieces +
         "\n%et = transpose %end permutation [1, 0, 2] : f32[256, 2, 4]\n%el = reshape %et : " +
         row + "\nstore %t[%zero : 2048], %el\nyield\n}\n";
    return {"wide rows", t, {{5, 2048}, {5, 2048}, {2048}, {5, 2048}, {2048}}, 8e-3};
}

/// A loop over one row more than there are, whose loads are issued an iteration ahead: words of 16
/// bytes, an element per thread, and single elements, one at a computed index.
inline CudaProgram rows_ahead_program() {
    return {"rows ahead",
            R"(
func @rows_ahead(%x: ref<bf16[7, 1024]>, %e: ref<f32[7, 64]>, %a: ref<f32[7]>, %c: ref<f16[7]>,
                 %y: ref<f32[7, 1024]>, %z: ref<f32[7, 64]>) grid [] num_warps 2 {
  %zero = constant 0 : i64
  %one = constant 1 : i64
  %rows = constant 8 : i64
  %last = constant 6 : i64
  %none = constant 0 : f32
  %half = constant 0 : f16
  %words = constant 0 : bf16
  for_loop %i = %zero, %rows, %one {
    %xl = load %x[%i, %zero : 1024] other %words : bf16[1024]
    %xf = cast %xl : f32[1024]
    %el = load %e[%i, %zero : 64] other %none : f32[64]
    %al = load %a[%i] other %none : f32
    %back = sub %last, %i : i64
    %cl = load %c[%back] other %half : f16
    %cf = cast %cl : f32
    %ab = broadcast %al : f32[1024]
    %cb = broadcast %cf : f32[1024]
    %p = fma %xf, %ab, %cb : f32[1024]
    store %y[%i, %zero : 1024], %p
    %ae = broadcast %al : f32[64]
    %q = mul %el, %ae : f32[64]
    store %z[%i, %zero : 64], %q
    yield
  }
  yield
}
)",
            {{7, 1024}, {7, 64}, {7}, {7}, {7, 1024}, {7, 64}},
            1e-6};
}

/// Batched products of signed and unsigned bytes, in both orders.
inline CudaProgram bytes_rows_program() {
    return {"rows of bytes",
            R"(
func @bytes(%x: ref<i8[2, 48, 70]>, %y: ref<u8[2, 70, 40]>, %z: ref<i32[2, 48, 40]>,
            %w: ref<i32[2, 40, 48]>) grid [] {
  %o = constant 0 : i64
  %a = load %x[%o : 2, %o : 48, %o : 70] : i8[2, 48, 70]
  %five = constant 5 : i8[2, 48, 70]
  %signed = sub %a, %five : i8[2, 48, 70]
  %b = load %y[%o : 2, %o : 70, %o : 40] : u8[2, 70, 40]
  %many = constant 31 : u8[2, 70, 40]
  %large = mul %b, %many : u8[2, 70, 40]
  %c = dot %signed, %large : i32[2, 48, 40]
  store %z[%o : 2, %o : 48, %o : 40], %c
  %d = dot %large, %signed transpose_a transpose_b : i32[2, 40, 48]
  store %w[%o : 2, %o : 40, %o : 48], %d
  yield
}
)",
            {{2, 48, 70}, {2, 70, 40}, {2, 48, 40}, {2, 40, 48}},
            0};
}

/// Running sums of exponentials, along rows and down columns.
inline CudaProgram log_sum_exp_program() {
    return {"running rows",
            R"(
func @running(%x: ref<f32[7, 300]>, %h: ref<bf16[7, 300]>, %a: ref<f32[7, 300]>,
              %b: ref<f32[7, 300]>, %c: ref<bf16[7, 300]>) grid [] {
  %o = constant 0 : i64
  %l = load %x[%o : 7, %o : 300] : f32[7, 300]
  %scale = constant 60 : f32[7, 300]
  %low = constant 0.3 : f32[7, 300]
  %lowest = constant -inf : f32[7, 300]
  %far = mul %l, %scale : f32[7, 300]
  %few = lt %l, %low : bool[7, 300]
  %some = select %few, %lowest, %far : f32[7, 300]
  %up = scan %some logsumexp axis 1 : f32[7, 300]
  %floor = constant -100 : f32[7, 300]
  %finite = max %up, %floor : f32[7, 300]
  store %a[%o : 7, %o : 300], %finite
  %down = scan %l logsumexp axis 0 reverse : f32[7, 300]
  store %b[%o : 7, %o : 300], %down
  %lh = load %h[%o : 7, %o : 300] : bf16[7, 300]
  %half = scan %lh logsumexp axis 1 reverse exclusive : bf16[7, 300]
  %least = constant -8 : bf16[7, 300]
  %known = max %half, %least : bf16[7, 300]
  store %c[%o : 7, %o : 300], %known
  yield
}
)",
            {{7, 300}, {7, 300}, {7, 300}, {7, 300}, {7, 300}},
            8e-3};
}

/// Recurrences along rows and down columns, and along rows that are done piece by piece.
inline std::vector<CudaProgram> recurrence_programs() {
    const std::string maps = R"(
func @maps(%a: i32, %b: i32, %c: i32, %d: i32) {
  %p = mul %a, %c : i32
  %q = mul %b, %c : i32
  %r = add %q, %d : i32
  yield %p, %r
}
)";
    const std::string halves = R"(
func @halves(%a: bf16, %b: bf16, %c: bf16, %d: bf16, %rate: bf16) {
  %f = mul %c, %rate : bf16
  %p = mul %a, %f : bf16
  %q = mul %b, %f : bf16
  %r = add %q, %d : bf16
  yield %p, %r
}
)";
    return {{"recurrences in rows",
             maps + halves + R"(
func @recurrences(%m: ref<i32[3, 1200]>, %c: ref<i32[3, 1200]>, %h: ref<bf16[7, 300]>,
                  %u: ref<i32[3, 1200]>, %v: ref<i32[3, 1200]>, %w: ref<bf16[7, 300]>) grid [] {
  %o = constant 0 : i64
  %x = load %m[%o : 3, %o : 1200] : i32[3, 1200]
  %y = load %c[%o : 3, %o : 1200] : i32[3, 1200]
  %a, %b = associative_scan @maps(%x, %y) axis 1 : i32[3, 1200], i32[3, 1200]
  store %u[%o : 3, %o : 1200], %b
  %d, %e = associative_scan @maps(%a, %b) axis 0 reverse : i32[3, 1200], i32[3, 1200]
  store %v[%o : 3, %o : 1200], %e
  %rate = constant 0.5 : bf16
  %z = load %h[%o : 7, %o : 300] : bf16[7, 300]
  %f, %g = associative_scan @halves(%z, %z, %rate) axis 1 reverse : bf16[7, 300], bf16[7, 300]
  store %w[%o : 7, %o : 300], %g
  yield
}
)",
             {{3, 1200}, {3, 1200}, {7, 300}, {3, 1200}, {3, 1200}, {7, 300}},
             3e-2},
            {"recurrences in long rows",
             maps + R"(
func @pieces(%m: ref<i32[1, 100004]>, %c: ref<i32[1, 100004]>, %u: ref<i32[1, 100004]>) grid [] {
  %o = constant 0 : i64
  %x = load %m[%o : 1, %o : 100004] : i32[1, 100004]
  %y = load %c[%o : 1, %o : 100004] : i32[1, 100004]
  %a, %b = associative_scan @maps(%x, %y) axis 1 reverse : i32[1, 100004], i32[1, 100004]
  store %u[%o : 1, %o : 100004], %b
  yield
}
)",
             {{1, 100004}, {1, 100004}, {1, 100004}},
             0}};
}

/// Blocks that fit in registers but not in shared memory, or that would fill the registers: they
/// are cut. A scan of the first stays whole.
inline std::vector<CudaProgram> cut_programs() {
    return {{"cut rows",
             R"(
func @cut(%x: ref<f16[255, 257]>, %t: ref<f16[257, 255]>, %a: ref<f16[257]>, %b: ref<f16[255]>,
          %c: ref<f16[255, 257]>) grid [] {
  %o = constant 0 : i64
  %l = load %x[%o : 255, %o : 257] : f16[255, 257]
  %lt = transpose %l permutation [1, 0] : f16[257, 255]
  store %t[%o : 257, %o : 255], %lt
  %columns = reduce %l max axis 0 : f16[257]
  store %a[%o : 257], %columns
  %rows = reduce %l max axis 1 : f16[255]
  store %b[%o : 255], %rows
  %s = scan %l max axis 1 : f16[255, 257]
  store %c[%o : 255, %o : 257], %s
  yield
}
)",
             {{255, 257}, {257, 255}, {257}, {255}, {255, 257}}},
            {"cut rows scattered",
             R"(
func @scattered(%x: ref<f32[40000]>, %p: ref<i32[40000]>, %y: ref<f32[40000]>) grid [] {
  %o = constant 0 : i64
  %l = load %x[%o : 40000] : f32[40000]
  %q = load %p[%o : 40000] : i32[40000]
  store %y[tile %q], %l
  yield
}
)",
             {{40000}, {40000}, {40000}}},
            {"cut product",
             R"(
func @product(%x: ref<f64[17, 33]>, %y: ref<f64[33, 129]>, %z: ref<f64[17, 129]>) grid [] {
  %o = constant 0 : i64
  %a = load %x[%o : 17, %o : 33] : f64[17, 33]
  %b = load %y[%o : 33, %o : 129] : f64[33, 129]
  %c = dot %a, %b : f64[17, 129]
  store %z[%o : 17, %o : 129], %c
  yield
}
)",
             {{17, 33}, {33, 129}, {17, 129}},
             1e-14}};
}

/// A row of results for each function of ir/ops.inl, for numbers from 0.5 to 1.5.
inline CudaProgram functions_program() {
    constexpr int kLanes = 64;
    const std::string tile = "f32[" + std::to_string(kLanes) + "]";
    const std::string lanes = "%zero : " + std::to_string(kLanes);
    std::string body = "%zero = constant 0 : i64\n%half = constant 0.5 : " + tile +
                       "\n%read = load %x[" + lanes + "] : " + tile +
                       "\n%a = add %read, %half : " + tile + "\n%b = mul %a, %half : " + tile +
                       "\n";
    int rows = 0;
    for (int i = 0; i < ir::kNumOps; ++i) {
        const ir::FunctionInfo* const function = ir::function_info(static_cast<ir::Op>(i));
        if (function == nullptr) continue;
        const std::string n = std::to_string(rows++);
        body += "%r" + n + " = " + std::string(ir::name(function->op)) + " %a" +
                (function->operands == 2 ? ", %b" : "") + " : " + tile + "\n%i" + n +
                " = constant " + n + " : i64\nstore %z[%i" + n + ", " + lanes + "], %r" + n + "\n";
    }
    return {"rows of functions",
            "func @functions(%x: ref<" + tile + ">, %z: ref<f32[" + std::to_string(rows) + ", " +
                std::to_string(kLanes) + "]>) grid [] {\n" + body + "yield\n}\n",
            {{kLanes}, {rows, kLanes}},
            1e-6};
}

/// nextafter depends on the format of its operands: for every float dtype, up, down and at zero.
inline CudaProgram neighbours_program() {
    std::string parameters, body = "%zero = constant 0 : i64\n";
    std::vector<std::vector<std::int64_t>> extents;
    for (const std::string dtype : {"f64", "f32", "f16", "bf16", "f8e5m2", "f8e4m3"}) {
        const std::string tile = dtype + "[64]";
        parameters += (extents.empty() ? "%x" : ", %x") + dtype + ": ref<" + tile + ">, %z" +
                      dtype + ": ref<" + tile + ">";
        body += "%a" + dtype + " = load %x" + dtype + "[%zero : 64] : " + tile + "\n%b" + dtype +
                " = constant 0.625 : " + tile + "\n%c" + dtype + " = nextafter %a" + dtype +
                ", %b" + dtype + " : " + tile + "\nstore %z" + dtype + "[%zero : 64], %c" + dtype +
                "\n";
        extents.insert(extents.end(), 2, {64});
    }
    return {"rows of neighbours",
            "func @neighbours(" + parameters + ") grid [] {\n" + body + "yield\n}\n", extents, 0};
}

inline std::vector<CudaProgram> cuda_programs() {
    std::vector<CudaProgram> programs;
    // Sums of products of small multiples of 1/8 are exact in any order.
    for (const char* in : {"f16", "bf16"}) {
        for (const char* flags : {"", "transpose_a", "transpose_b", "transpose_a transpose_b"}) {
            programs.push_back(matmul_program(in, "f32", 64, 64, 32, 3, 1e-6, flags));
        }
        programs.push_back(matmul_program(in, "f32", 96, 48, 80, 2, 1e-6));
        programs.push_back(matmul_program(in, "f32", 8, 40, 16, 2, 1e-6));
        programs.push_back(matmul_program(in, "f32", 128, 128, 64, 2, 1e-6));
    }
    programs.push_back(matmul_program("f8e4m3", "f32", 32, 32, 32, 2, 1e-6));
    programs.push_back(wide_rows_program());
    programs.push_back(rows_ahead_program());
    programs.push_back(functions_program());
    programs.push_back(neighbours_program());
    for (CudaProgram& program : cut_programs()) programs.push_back(std::move(program));
    for (const char* flags : {"", "transpose_a", "transpose_b"}) {
        programs.push_back(matmul_program("f32", "f32", 32, 64, 32, 2, 1e-6, flags));
        programs.push_back(matmul_program("f32", "f32", 32, 32, 16, 2, 1e-3,
                                          std::string(flags) + " precision tf32"));
        programs.push_back(matmul_program("f64", "f64", 32, 32, 8, 2, 1e-14, flags));
        programs.push_back(matmul_program("i8", "i32", 16, 32, 20, 2, 0, flags));
        programs.push_back(matmul_program("u8", "i32", 8, 16, 32, 2, 0, flags));
        programs.push_back(matmul_program("i8", "i32", 96, 64, 64, 3, 0, flags));
    }
    programs.push_back(bytes_rows_program());
    programs.push_back(attention_program("bf16", 64, 64, 64, 200));
    programs.push_back(attention_program("f16", 128, 64, 128, 130));
    programs.push_back(attention_program("bf16", 32, 32, 80, 61));
    programs.push_back(attention_program("bf16", 16, 128, 96, 128));
    programs.push_back(log_sum_exp_program());
    for (CudaProgram& program : recurrence_programs()) programs.push_back(std::move(program));
    // One warp copies tiles of 32 pieces for each thread.
    CudaProgram few = attention_program("bf16", 16, 64, 128, 300);
    few.name += ", few rows of queries";
    few.text.replace(few.text.find("grid [] {"), 9, "grid [] num_warps 1 {");
    programs.push_back(std::move(few));
    return programs;
}

}  // namespace tilewright::testing_support
