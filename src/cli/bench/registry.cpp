// All benchmarks. tools/check_layout.py fails where one is missing here.
#include "cli/bench/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tilewright::cli {

const std::vector<Benchmark>& benchmarks() {
    static const std::vector<Benchmark> kBenchmarks{
        {"attention",
         "attention, causal and full, forward and with --backward the gradients",
         bench_attention,
         bench_attention_gpu,
         {"--dtype", "--batch", "--heads", "--kv-heads", "--seq-len", "--kv-len", "--head-dim",
          "--causal", "--backward", "--baseline", "--mask", "--score", "--sweep",
          "--sweep-head-dim", "--engine", "--no-deterministic", "--autotune", "--precision"}},
        {"compile",
         "the first call of attention: tracing, code generation, compilation",
         bench_compile,
         bench_compile_gpu,
         {"--dtype", "--head-dim", "--once", "--no-deterministic", "--arch", "--case"}},
        {"cpu",
         "kernels of users on CPUs, beside plain loops and five libraries",
         bench_cpu,
         nullptr,
         {"--autotune", "--baseline", "--case", "--small"}},
        {"decode",
         "attention of one query to many keys",
         bench_decode,
         bench_decode_gpu,
         {"--dtype", "--batch", "--heads", "--kv-heads", "--seq-len", "--kv-len", "--head-dim",
          "--baseline", "--precision"}},
        {"flex",
         "masks and score mods, beside FlexAttention",
         bench_flex,
         bench_flex_gpu,
         {"--dtype", "--batch", "--heads", "--kv-heads", "--seq-len", "--kv-len", "--head-dim",
          "--backward", "--baseline", "--mask", "--score", "--engine", "--no-deterministic",
          "--autotune", "--precision", "--case", "--front-end", "--no-picture"}},
        {"mask",
         "building block masks from mask mods",
         bench_mask,
         bench_mask_gpu,
         {"--dtype", "--batch", "--heads", "--seq-len"}},
        {"matmul",
         "matrix products",
         bench_matmul,
         bench_matmul_gpu,
         {"--dtype", "--seq-len", "--baseline", "--autotune"}},
        {"norm",
         "RMSNorm and LayerNorm, forward and backward",
         bench_norm,
         bench_norm_gpu,
         {"--dtype", "--seq-len", "--head-dim", "--baseline", "--sweep"}},
    };
    return kBenchmarks;
}

const std::vector<BenchmarkFiles>& benchmark_files() {
    const std::string library = "build/bench/libtw_bench_cuda.so";
    static const std::vector<BenchmarkFiles> kFiles{
        {{"attention_cuda.py", "attention_cuda_backward.py"},
         "attention's kernels for Hopper GPUs beside PyTorch's, by configuration",
         "python bench/attention_cuda.py " + library},
        {{"flex_cuda.py", "flex_cuda_backward.py"},
         "the same with masks as data and score mods",
         "python bench/flex_cuda.py " + library},
        {{"documents_cuda.py"},
         "the same with small documents, as a mask or packed, beside PyTorch's varlen_attn",
         "python bench/documents_cuda.py " + library},
        {{"attention_cuda_library.cpp", "attention_cuda_backward_library.cpp",
          "flex_cuda_library.cpp"},
         "the C surface that these scripts call",
         "cmake --build build --target tw_bench_cuda"},
        {{"compare_flash_attention.py"},
         "attention as users call it beside FlashAttention-4, FlashAttention-3 and cuDNN",
         "python bench/compare_flash_attention.py"},
        {{"cpu/elementwise_bench.cpp"},
         "elementwise chains and norms on CPUs",
         "cmake --build build --target run_benchmarks"},
        {{"cpu/gemm_bench.cpp"},
         "micro-kernels of products on CPUs",
         "cmake --build build --target run_benchmarks"},
        {{"cpu/machine_bench.cpp"},
         "the tile machine: calls, strips, reductions",
         "cmake --build build --target run_benchmarks"},
        {{"grouped_matmul.py"},
         "grouped products of experts, as a tile program, beside torch._grouped_mm",
         "python bench/grouped_matmul.py"},
        {{"jax_cpu.py"},
         "tilewright.jax on CPUs beside XLA and Pallas's interpreter",
         "python bench/jax_cpu.py"},
        {{"jax_cuda.py"},
         "tilewright.jax on GPUs beside XLA and Pallas",
         "python bench/jax_cuda.py"},
        {{"matmul_cuda.py"},
         "products written as tile programs beside cuBLAS",
         "python bench/matmul_cuda.py build/libtilewright.so"},
        {{"sorting.py"},
         "rows sorted by tile programs beside PyTorch and NumPy",
         "OMP_NUM_THREADS=1 python bench/sorting.py [--device cuda]"},
        {{"torch_calls.py"},
         "what calls through tilewright.torch cost beside the kernels",
         "python bench/torch_calls.py [--device cuda]"},
        {{"torch_first_calls.py"},
         "what first calls through tilewright.torch wait for on a GPU",
         "python bench/torch_first_calls.py [--peer]"},
        {{"torch_baseline.py", "xla_baseline.py"},
         "operations of PyTorch, XLA and Pallas, timed on request",
         "tilewright bench OPERATION --baseline NAME"},
        {{"triton_kernels.py"},
         "a product and attention in Triton, as its tutorials write them",
         "tilewright bench attention|matmul --device cuda --baseline triton"},
        {{"flash_attention.py"},
         "FlashAttention-4 and -3 with windows, soft caps, ALiBi and documents",
         "tilewright bench attention|flex --device cuda --baseline fa4|fa3"},
        {{"cpu_peers.py", "cpu_peers_halide.py", "cpu_peers_numba.py"},
         "the kernels of bench cpu by oneDNN, PyTorch, torch.compile, Numba and Halide",
         "tilewright bench cpu --baseline NAME"},
    };
    return kFiles;
}

std::vector<std::string> benchmark_names() {
    std::vector<std::string> names;
    for (const Benchmark& benchmark : benchmarks()) names.push_back(benchmark.name);
    return names;
}

std::string benchmark_list() {
    std::string text = "Operations: tilewright bench NAME\n";
    for (const Benchmark& benchmark : benchmarks()) {
        text += fmt::format("  {:<10} {}{}\n", benchmark.name, benchmark.what,
                            benchmark.on_gpu == nullptr ? "" : "; --device cpu or cuda");
    }
    text += "Programs in bench/ of a checkout\n";
    for (const BenchmarkFiles& files : benchmark_files()) {
        text += fmt::format("  {}\n      {}\n      {}\n", fmt::join(files.files, ", "), files.what,
                            files.run_by);
    }
    text.pop_back();
    return text;
}

}  // namespace tilewright::cli
