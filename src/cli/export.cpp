// `tilewright export`: operations compiled ahead of time, as folders that run without a compiler.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "attention/tiles/options.h"
#include "cli/builtin.h"
#include "cli/command.h"
#include "cli/tensor_file.h"
#include "support/check.h"
#include "tilewright/artifact.h"
#include "tilewright/attention.h"
#include "tilewright/norm.h"

namespace tilewright::cli {
namespace {

struct Options {
    std::string kernel, folder, name, dtype, mask, score, window, shape = "256,4096";
    std::vector<std::string> archs, bind;
    std::int64_t batch = 1, heads = 8, seq_len = 1024, head_dim = 64;
    std::optional<std::int64_t> kv_heads, kv_len;
    std::optional<double> scale;
    double eps = 1e-5;
    bool causal = false, no_cpu = false;
};

ExportOptions export_options(const Options& given, std::vector<std::string> names) {
    ExportOptions options{.name = given.name, .names = std::move(names), .cpu = !given.no_cpu};
    options.archs = given.archs;
    if (options.name.empty()) options.name = given.kernel;
    return options;
}

/// Attention of fixed sizes; the artifact contains the arrays that mods read.
void export_attention(const Options& given, DType dtype) {
    const bool backward = given.kernel == "attention_backward";
    const std::int64_t b = given.batch, h = given.heads, l = given.seq_len, e = given.head_dim;
    const std::int64_t kv_heads = given.kv_heads.value_or(h), s = given.kv_len.value_or(l);
    for (const auto& [option, size] : {std::pair{"batch", b},
                                       {"heads", h},
                                       {"kv-heads", kv_heads},
                                       {"seq-len", l},
                                       {"kv-len", s},
                                       {"head-dim", e}})
        if (size < 1) user_error("export", "expected --{} of at least 1 but got {}", option, size);
    AttentionOptions options{.scale = given.scale, .causal = given.causal};
    if (!given.window.empty()) {
        const auto sides = parse_integers("export", "--window LEFT,RIGHT", given.window, 2, 2);
        options.window = {sides[0], sides[1]};
    }
    const Bindings arrays = load_bindings("export", given.bind);
    Mod mask;
    if (!given.mask.empty()) mask = parse_mod(given.mask, arrays, Mod::Kind::mask);
    if (!given.score.empty()) options.score_mod = parse_mod(given.score, arrays, Mod::Kind::score);
    expect_bindings_read("export", arrays, {mask, options.score_mod});
    // A mask that reads arrays is evaluated now; others may become ranges of keys, at no cost.
    if (mask.defined() && !mask.captures().empty())
        options.block_mask = create_block_mask(mask, b, h, l, s);
    else
        options.mask = mask;

    const Tensor q = random_values(dtype, {b, h, l, e}, 1);
    const Tensor k = random_values(dtype, {b, kv_heads, s, e}, 2);
    const Tensor v = random_values(dtype, {b, kv_heads, s, e}, 3);
    attn::tiles::Options blocks;
    attn::tiles::use_gpu_blocks(blocks, {.dtype = dtype,
                                         .head_dim = e,
                                         .value_dim = e,
                                         .query_length = l,
                                         .kv_length = s,
                                         .tested = mask.defined() || options.score_mod.defined(),
                                         .shared_bytes = 99 * 1024});
    AttentionOptions on_gpu = options;
    on_gpu.forward_blocks = on_gpu.backward_blocks = {blocks.block_q, blocks.block_k};
    const auto forward = [](const AttentionOptions& o) -> ExportedOperation {
        return [o](const std::vector<Tensor>& in) {
            const AttentionOutput result = attention(in[0], in[1], in[2], o);
            return std::vector{result.out, result.lse};
        };
    };
    const auto gradients = [](const AttentionOptions& o) -> ExportedOperation {
        return [o](const std::vector<Tensor>& in) {
            const AttentionGradients g = attention_backward(
                in[0], in[1], in[2], {.out = in[3], .lse = in[4], .max_scores = {}}, in[5], o);
            std::vector<Tensor> results{g.query, g.key, g.value};
            results.insert(results.end(), g.captured.begin(), g.captured.end());
            return results;
        };
    };
    if (!backward) {
        ExportOptions exported = export_options(given, {"query", "key", "value", "out", "lse"});
        if (!given.archs.empty()) exported.gpu_operation = forward(on_gpu);
        export_operation(given.folder, {q, k, v}, forward(options), exported);
        return;
    }
    const AttentionOutput o = attention(q, k, v, options);
    std::vector<std::string> names{"query",    "key",        "value",    "out",       "lse",
                                   "grad_out", "grad_query", "grad_key", "grad_value"};
    if (options.score_mod.defined()) {
        for (const Capture& capture : options.score_mod.captures())
            if (capture.differentiable()) names.push_back("grad_" + capture.name());
    }
    ExportOptions exported = export_options(given, std::move(names));
    if (!given.archs.empty()) exported.gpu_operation = gradients(on_gpu);
    export_operation(given.folder, {q, k, v, o.out, o.lse, random_values(dtype, {b, h, l, e}, 4)},
                     gradients(options), exported);
}

/// RMSNorm or LayerNorm of the rows of a matrix.
void export_norm(const Options& given, DType dtype) {
    const auto shape = parse_integers("export", "--shape ROWS,COLUMNS", given.shape, 2, 2);
    for (const std::int64_t extent : shape)
        if (extent < 1)
            user_error("export", "expected --shape of positive extents but got {}", given.shape);
    const bool layer = given.kernel == "layer_norm";
    const NormOptions options{.eps = given.eps};
    const Tensor x = random_values(dtype, shape, 1), weight = random_values(dtype, {shape[1]}, 2);
    const auto norm = [=](const std::vector<Tensor>& in) {
        const NormOutput result =
            layer ? layer_norm(in[0], in[1], in[2], options) : rms_norm(in[0], in[1], options);
        return std::vector{result.y};
    };
    if (layer)
        export_operation(given.folder, {x, weight, random_values(dtype, {shape[1]}, 3)}, norm,
                         export_options(given, {"x", "weight", "bias", "y"}));
    else
        export_operation(given.folder, {x, weight}, norm,
                         export_options(given, {"x", "weight", "y"}));
}

void export_kernel(const Options& given, Console& console) {
    std::error_code error;
    const bool is_file = std::filesystem::is_regular_file(given.kernel, error);
    const DType dtype = given.dtype.empty() ? f32 : float_dtype("export", given.dtype);
    const std::string& kernel = given.kernel;
    const bool is_attention = kernel == "attention" || kernel == "attention_backward";
    const bool is_norm = kernel == "rms_norm" || kernel == "layer_norm";
    if (!is_attention && !(given.mask + given.score + given.window).empty())
        user_error("export",
                   "expected attention or attention_backward with mods and windows but "
                   "got {}",
                   kernel);
    if (is_attention) {
        export_attention(given, dtype);
    } else if (is_norm) {
        export_norm(given, dtype);
    } else if (is_file) {
        if (!given.dtype.empty())
            user_error("export", "expected no --dtype with a file of IR text but got {}",
                       given.dtype);
        std::ifstream file(kernel, std::ios::binary);
        ExportOptions options = export_options(given, {});
        options.name = given.name;
        export_program(given.folder, std::string(std::istreambuf_iterator<char>(file), {}),
                       options);
    } else {
        const Builtin program = builtin("export", kernel, dtype, given.no_cpu);
        export_program(given.folder, fixed(program.call).ir(program.inputs),
                       export_options(given, {}));
    }
    console.error << fmt::format("{}: {}{}{}\n", given.folder, given.no_cpu ? "" : "cpu",
                                 given.no_cpu || given.archs.empty() ? "" : ", ",
                                 fmt::join(given.archs, ", "));
}

}  // namespace

void add_export(CLI::App& app, Console& console) {
    auto options = std::make_shared<Options>();
    CLI::App* command = app.add_subcommand(
        "export", "an operation as a folder that runs without a compiler, and its C++17 header");
    command
        ->add_option(
            "kernel", options->kernel,
            fmt::format("a file of IR text, or one of {}", fmt::join(builtin_names(), ", ")))
        ->required();
    command->add_option("--out", options->folder, "the folder")->required()->type_name("FOLDER");
    command->add_option("--name", options->name, "of the header and its class [the kernel's]");
    command->add_option("--arch", options->archs, "a GPU, as sm_90a (repeatable); needs NVRTC");
    command->add_flag("--no-cpu", options->no_cpu, "for GPUs alone");
    command->add_option("--dtype", options->dtype, "f32, f64, f16 or bf16 [f32]");
    const char* kSizes = "Attention";
    add_size(*command, "--batch", options->batch, "[1]")->group(kSizes);
    add_size(*command, "--heads", options->heads, "[8]")->group(kSizes);
    add_size(*command, "--kv-heads", options->kv_heads, "[those of queries]")->group(kSizes);
    add_size(*command, "--seq-len", options->seq_len, "[1024]")->group(kSizes);
    add_size(*command, "--kv-len", options->kv_len, "[that of queries]")->group(kSizes);
    add_size(*command, "--head-dim", options->head_dim, "[64]")->group(kSizes);
    command->add_option("--scale", options->scale, "of the scores [1/sqrt(E)]")->group(kSizes);
    command->add_flag("--causal", options->causal, "kv <= q")->group(kSizes);
    command->add_option("--window", options->window, "LEFT,RIGHT; -1 leaves a side open")
        ->group(kSizes);
    command->add_option("--mask", options->mask, "which pairs attend: \"q >= kv\"")->group(kSizes);
    command->add_option("--score", options->score, "the scores: \"softcap(20)\"")->group(kSizes);
    command->add_option("--bind", options->bind, "NAME=FILE: an array that the texts read")
        ->group(kSizes);
    command->add_option("--shape", options->shape, "ROWS,COLUMNS [256,4096]")->group("Norms");
    command->add_option("--eps", options->eps, "[1e-5]")->group("Norms");
    command->callback([options, &console] { export_kernel(*options, console); });
}

}  // namespace tilewright::cli
