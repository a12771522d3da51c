// Instantiates every PTX wrapper and compiles it for every architecture with its instruction.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <regex>

#include "cuda/codegen/wgmma_shapes.h"
#include "cuda/runtime/compiler.h"
#include "tests/cuda/test_support.h"

namespace tilewright::cuda {
namespace {

struct HeaderCase {
    std::string header;
    std::vector<std::string> archs;
    std::string body;  ///< of a kernel that has the parameters below
};

const std::vector<std::string> kAll = {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"};
const std::vector<std::string> kFrom89 = {"sm_89", "sm_90a", "sm_100a", "sm_120a"};
const std::vector<std::string> kFrom90 = {"sm_90a", "sm_100a", "sm_120a"};
const std::vector<std::string> kOnly90 = {"sm_90a"};

std::string kernel_text(const std::string& includes, const std::string& body) {
    return includes + R"(
namespace twd::ptx {}
using namespace twd;
using namespace twd::ptx;
extern "C" __global__ void __launch_bounds__(128, 1)
kernel(const __grid_constant__ TensorMap map, float* f, u32* u, double* g, const uint4* in, uint4* out) {
    extern __shared__ __align__(1024) u8 memory[];
    const u32 s = shared_address(memory);
    u32 r1[1] = {u[0]}, r2[2] = {u[1], u[2]}, r4[4] = {u[3], u[4], u[5], u[6]};
    float d4[4] = {f[0], f[1], f[2], f[3]};
    u64 l = 0;
)" + body + R"(
    u[7] = r1[0] + r2[0] + r2[1] + r4[0] + r4[1] + r4[2] + r4[3] + static_cast<u32>(l);
    f[4] = d4[0] + d4[1] + d4[2] + d4[3];
})";
}

const std::vector<HeaderCase> kCases = {
    {"convert.cuh", kAll, R"(
    r1[0] = pack(Bf16{}, d4[0], d4[1]) + pack(F16{}, d4[0], d4[1]) + to_tf32(d4[2]);
    d4[3] = low(Bf16{}, r1[0]) + high(Bf16{}, r1[0]) + low(F16{}, r1[0]) + high(F16{}, r1[0]);
    uint4 words = in[lane_zero()];
    keep_bits(words);
    out[0] = words;
    d4[0] += from_bits(F16{}, to_bits(F16{}, d4[1])); r2[0] = to_bits(Bf16{}, d4[2]);)"},
    {"convert.cuh", kFrom89, "r1[0] = pack_e4m3(d4[0], d4[1]) + pack_e5m2(d4[2], d4[3]);"},
    {"cp_async.cuh", kAll, R"(
    cp_async_16(s, in); cp_async_16(s, in, 4); cp_async_8(s, in, 2); cp_async_4(s, in, 0);
    cp_async_commit(); cp_async_wait<1>(); cp_async_wait<0>(); cp_async_arrive(s + 512);)"},
    {"math.cuh", kAll, R"(
    d4[0] = exp2_approx(log2_approx(tanh_approx(d4[1]))) + reciprocal_approx(d4[2]) +
            rsqrt_approx(d4[3]) + sin_approx(d4[0]) + cos_approx(d4[0]) +
            max_nan(d4[1], d4[2]) + min_nan(d4[2], d4[3]);
    r1[0] = max_unsigned(r2[0], r2[1]);)"},
    {"matrix_move.cuh", kAll, R"(
    ldmatrix(r1, s); ldmatrix(r2, s); ldmatrix(r4, s);
    u[8] = r4[0] + r2[0]; ldmatrix_transposed(r2, s); ldmatrix_transposed(r4, s);
    r2[0] = transpose_matrix(r4[0]); load_fragment_pair(r2[0], r2[1], s);)"},
    {"matrix_move.cuh", kFrom90, "stmatrix(s, r2); stmatrix(s, r4); stmatrix_transposed(s, r4);"},
    {"reduce.cuh", kFrom90, "reduce_add_pair(f, 1.0f, d4[0]);"},
    {"mbarrier.cuh", kAll, R"(
    mbarrier_init(s, 1); mbarrier_arrive(s); r1[0] = mbarrier_test(s, 0); mbarrier_invalidate(s);)"},
    {"mbarrier.cuh", kFrom90, R"(
    mbarrier_init(s, 1); mbarrier_arrive_expect(s, 16); mbarrier_arrive_cluster(s);
    mbarrier_wait(s, 0); mbarrier_wait(s, 1);)"},
    {"memory.cuh", kAll, R"(
    store_shared_32(s, r1[0]); store_shared_128(s + 16, load_once_128(in));
    store_shared_128(s + 32, load_constant_128(in + 4));
    r2[0] = load_shared_32(s); l = load_shared_64(s) + global_nanoseconds() + clock_cycles();
    out[1] = load_shared_128(s); store_once_128(out, out[2]); reduce_add(f, 1.0f);
    r2[1] = fetch_add(u, 1) + lane_index(); store_relaxed(u + 9, load_acquire(u));
    d4[0] = load_shared_f32x2(s + 8).y;)"},
    {"memory.cuh", kFrom90, "reduce_add(f, make_float4(1, 2, 3, 4));"},
    {"mma.cuh", kAll, R"(
    mma_m16n8k16(F16{}, d4, r4, r2); mma_m16n8k16(Bf16{}, d4, r4, r2);
    mma_m16n8k8(F16{}, d4, r2, r1[0]); mma_m16n8k8(Bf16{}, d4, r2, r1[0]);
    mma_m16n8k8(Tf32{}, d4, r4, r2); mma_m16n8k4(Tf32{}, d4, r2, r1[0]);
    int i[4] = {}; const u32 ones = r1[0];
    mma_m16n8k32(S8{}, S8{}, i[0], i[1], i[2], i[3], ones, ones, ones, ones, ones, ones);
    mma_m16n8k32(S8{}, U8{}, i[0], i[1], i[2], i[3], ones, ones, ones, ones, ones, ones);
    mma_m16n8k32(U8{}, S8{}, i[0], i[1], i[2], i[3], ones, ones, ones, ones, ones, ones);
    mma_m16n8k32(U8{}, U8{}, i[0], i[1], i[2], i[3], ones, ones, ones, ones, ones, ones);
    u[8] = static_cast<u32>(i[0] + i[1] + i[2] + i[3]);
    double e[2] = {g[0], g[1]}; mma_m8n8k4(e, g[2], g[3]); g[4] = e[0] + e[1];)"},
    {"sync.cuh", kAll, R"(
    named_barrier_sync(1, 128); named_barrier_arrive(2, 128); fence_device();
    r1[0] = uniform_here(r2[0]);)"},
    {"sync.cuh", kFrom90, R"(
    cluster_arrive(); cluster_wait(); r1[0] = cluster_map(s, cluster_rank()); fence_mbarrier_init();
    cluster_store(r1[0], l);
    fence_async_shared(); fence_async(); grid_dependency_wait(); grid_dependency_launch();
    r2[0] = elect_lane();)"},
    {"sync.cuh", kOnly90, "registers_decrease<24>(); registers_increase<240>();"},
    {"tma.cuh", kFrom90, R"(
    const u64 policy = l2_evict_last() + l2_evict_first();
    prefetch_tensor_map(&map); bulk_load(s, in, 16, s + 512); bulk_store(out, s, 16);
    bulk_add_f32(f, s, 16);
    tensor_load(s, &map, s, policy, 0); tensor_load(s, &map, s, policy, 0, 1);
    tensor_load(s, &map, s, policy, 0, 1, 2); tensor_load(s, &map, s, policy, 0, 1, 2, 3);
    tensor_load(s, &map, s, policy, 0, 1, 2, 3, 4);
    tensor_load_multicast(s, &map, s, 3, 0, 1); tensor_load_multicast(s, &map, s, 3, 0, 1, 2);
    tensor_load_multicast(s, &map, s, 3, 0, 1, 2, 3);
    tensor_load_multicast(s, &map, s, 3, 0, 1, 2, 3, 4);
    tensor_store(&map, s, 0); tensor_store(&map, s, 0, 1); tensor_store(&map, s, 0, 1, 2);
    tensor_store(&map, s, 0, 1, 2, 3); tensor_store(&map, s, 0, 1, 2, 3, 4);
    tensor_add(&map, s, 0); tensor_add(&map, s, 0, 1); tensor_add(&map, s, 0, 1, 2);
    tensor_add(&map, s, 0, 1, 2, 3); tensor_add(&map, s, 0, 1, 2, 3, 4);
    bulk_commit(); bulk_wait_read<1>(); bulk_wait<0>();)"},
    {"types.cuh", kAll, "r1[0] = s;"},
    {"wgmma.cuh", kOnly90, R"(
    l = wgmma_descriptor_swizzle128(s, 16, 1024);
    wgmma_fence(); wgmma_commit(); wgmma_wait<0>(); wgmma_tie(d4); wgmma_tie(r4);)"},
};

TEST(Ptx, EveryWrapperCompilesWhereItsInstructionExists) {
    TW_REQUIRE_NVRTC();
    for (const HeaderCase& test : kCases) {
        const std::string include = "#include \"cuda/device/ptx/" + test.header + "\"\n";
        for (const std::string& arch : test.archs) {
            SCOPED_TRACE(test.header + " for " + arch);
            CompileRequest request;
            request.name = test.header;
            request.source = kernel_text(include, test.body);
            request.arch = arch;
            EXPECT_NO_THROW(compile(request));
        }
    }
}

// Otherwise a wrapper could go untested.
TEST(Ptx, EveryWrapperOfTheHeadersHasACase) {
    const std::regex wrapper(R"(TW_DEVICE[^(;]*?(\w+)\()");
    for (const Header& header : embedded_headers()) {
        if (header.name.find("device/ptx/") == std::string::npos) continue;
        std::string bodies = "u32 s = shared_address(memory);";  // in every kernel
        for (const HeaderCase& test : kCases) {
            if (header.name == "cuda/device/ptx/" + test.header) bodies += test.body;
        }
        int wrappers = 0;
        for (std::sregex_iterator it(header.text.begin(), header.text.end(), wrapper), end;
             it != end; ++it, ++wrappers) {
            const std::regex use(fmt::format(R"(\b{}\b)", (*it)[1].str()));
            EXPECT_TRUE(std::regex_search(bodies, use)) << (*it)[1] << " of " << header.name;
        }
        EXPECT_GT(wrappers, 0) << header.name;
    }
}

TEST(Ptx, HeadersIncludeOnlyOneAnother) {
    for (const Header& header : embedded_headers()) {
        std::size_t at = 0;
        while ((at = header.text.find("#include", at)) != std::string::npos) {
            const std::string line = header.text.substr(at, header.text.find('\n', at) - at);
            EXPECT_TRUE(line.starts_with("#include \"cuda/device/")) << header.name << ": " << line;
            at += line.size();
        }
    }
}

TEST(Ptx, GeneratedWgmmaShapesCompile) {
    TW_REQUIRE_NVRTC();
    const WgmmaShape shapes[] = {{192, DType::bf16, false, 4, true, 2},
                                 {8, DType::bf16, false, 1},
                                 {80, DType::bf16, false, 4},
                                 {96, DType::f16, false, 5},
                                 {64, DType::f16, true, 1},
                                 {128, DType::bf16, true, 2}};
    CompileRequest request;
    request.name = "shapes.cu";
    request.arch = "sm_90a";
    request.headers = {{"shapes.cuh", wgmma_shapes_header(shapes)}};
    request.source = kernel_text("#include \"shapes.cuh\"\n", R"(
    float a[4], b[40], c[48], d[32], e[64];
    u32 r8[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    using Rows = AlongRows<8192>;
    wgmma_fence();
    wgmma<0, 0, 0, Rows, Rows>(Bf16{}, Steps<1>{}, a, u64{1}, u64{2});
    wgmma<0, 1, 0, Rows, AlongColumns>(Bf16{}, Steps<4>{}, b, u64{1}, u64{2});
    wgmma<0, 0, 1, AlongColumns, Rows>(F16{}, Steps<5>{}, c, u64{1}, u64{2});
    wgmma<0, 1, AlongColumns>(F16{}, Steps<1>{}, d, r4, u64{2});
    wgmma<0, 1, AlongColumns>(Bf16{}, Steps<2>{}, e, r8, u64{2});
    wgmma<1, 1, AlongColumns>(Bf16{}, Steps<2>{}, e, r8, u64{3});
    wgmma_commit(); wgmma_wait<0>();
    f[8] = a[0] + b[39] + c[47] + d[31] + e[63];)");
    Compiled compiled;
    ASSERT_NO_THROW(compiled = compile(request));
    for (const char* mnemonic :
         {"m64n8k16.f32.bf16.bf16", "m64n80k16.f32.bf16.bf16", "m64n96k16.f32.f16.f16",
          "m64n64k16.f32.f16.f16", "m64n128k16.f32.bf16.bf16"}) {
        EXPECT_NE(compiled.ptx.find(mnemonic), std::string::npos) << mnemonic;
    }
    // After four steps the address advances by a panel, 8192 bytes, not by 4 x 32.
    EXPECT_NE(compiled.ptx.find(", 512;"), std::string::npos);
}

}  // namespace
}  // namespace tilewright::cuda
