// `tilewright attention`: attention and its gradients on tensors in files.
#include "tilewright/attention.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "attention/spec.h"
#include "cli/attention_check.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "cli/tensor_file.h"
#include "cli/tuning_tables.h"
#include "support/check.h"

namespace tilewright::cli {
namespace {

struct Options {
    std::string query, key, value, grad_out, segment_ids, kv_segment_ids, kv_lengths;
    std::string out, lse, grads;
    std::string layout = "bhsd", device = "cpu", engine, precision;
    std::string window, mask, block_mask, score, sinks, cu_seqlens, kv_cu_seqlens;
    std::string blocks, backward_blocks;
    std::vector<std::string> bind;
    double dropout = 0;
    std::uint64_t seed = 0;
    std::optional<double> scale;
    bool causal = false, check = false, checked = false, deterministic = true, autotune = false;
};

/// The file for the gradient of `argument`, in the format of --out.
std::string gradient_file(const Options& options, const std::string& argument) {
    const TensorSpec out = parse_tensor_spec(options.out, "out");
    const char* extension = out.format == TensorSpec::Format::npy ? ".npy" : ".safetensors";
    return options.grads + argument + extension;
}

std::vector<Capture> captures_of(const Mod& mod) {
    return mod.defined() ? mod.captures() : std::vector<Capture>();
}

AttentionBlocks parse_blocks(const char* form, const std::string& text) {
    if (text.empty()) return {};
    const auto sizes = parse_integers("attention", form, text, 2, 2);
    return {sizes[0], sizes[1]};
}

/// The options of the call, with the contents of the files.
AttentionOptions load_options(const Options& options, Console& console) {
    AttentionOptions result;
    result.scale = options.scale;
    result.causal = options.causal;
    if (!options.window.empty()) {
        const auto sides = parse_integers("attention", "--window LEFT,RIGHT", options.window, 2, 2);
        result.window = {sides[0], sides[1]};
    }
    result.layout = options.layout == "bhsd" ? Layout::bhsd : Layout::bshd;
    result.checked = options.checked;
    result.deterministic = options.deterministic;
    result.precision = options.precision;
    result.autotune = options.autotune;
    result.forward_blocks = parse_blocks("--blocks Q,KV", options.blocks);
    result.backward_blocks = parse_blocks("--backward-blocks Q,KV", options.backward_blocks);
    const auto load = [&](const std::string& spec, const char* name) {
        return spec.empty() ? Tensor() : load_tensor(spec, name, &console.input);
    };
    result.segment_ids = load(options.segment_ids, "segment-ids");
    result.kv_segment_ids = load(options.kv_segment_ids, "kv-segment-ids");
    result.kv_lengths = load(options.kv_lengths, "kv-lengths");
    result.cu_seqlens = load(options.cu_seqlens, "cu-seqlens");
    result.kv_cu_seqlens = load(options.kv_cu_seqlens, "kv-cu-seqlens");
    result.sinks = load(options.sinks, "sinks");
    if (!options.block_mask.empty()) {
        const Tensor words = load(options.block_mask, "block-mask");
        if (words.dtype() != u32 || words.rank() != 1)
            user_error(
                "attention",
                "expected --block-mask of the words of a block mask, u32 (n), as `tilewright "
                "mask --out` writes them, but got {}",
                words.type_name());
        result.block_mask = BlockMask::from_packed(words);
    }
    result.dropout = options.dropout;
    result.seed = options.seed;
    const Bindings arrays = load_bindings("attention", options.bind, &console.input);
    if (!options.mask.empty()) result.mask = parse_mod(options.mask, arrays, Mod::Kind::mask);
    if (!options.score.empty())
        result.score_mod = parse_mod(options.score, arrays, Mod::Kind::score);
    expect_bindings_read("attention", arrays, {result.mask, result.score_mod});
    return result;
}

/// The files to write, checked before anything is computed.
std::vector<PlannedTensor> planned_files(const Options& options, const AttentionOptions& loaded,
                                         DType dtype, DType value_dtype) {
    std::vector<PlannedTensor> files = {{options.out, "out", value_dtype}};
    if (!options.lse.empty()) files.push_back({options.lse, "lse", dtype == f64 ? f64 : f32});
    if (options.grads.empty()) return files;
    const auto add = [&](const std::string& argument, DType type) {
        files.push_back({gradient_file(options, argument), argument, type});
    };
    for (const char* argument : {"query", "key", "value"}) add(argument, dtype);
    if (loaded.sinks.defined()) add("sinks", loaded.sinks.dtype());
    for (const Capture& capture : captures_of(loaded.score_mod))
        if (capture.differentiable()) add(capture.name(), capture.tensor().dtype());
    return files;
}

void run(const Options& options, Console& console) {
    const Device device = parse_device("attention", options.device);
    if (!options.grads.empty() && options.grad_out.empty())
        user_error("attention", "expected --grad-out with --grads but got none");
    if (!options.grad_out.empty() && options.grads.empty() && !options.check)
        user_error("attention", "expected --grads or --check with --grad-out but got neither");
    if (!options.grads.empty() && use_standard_output({options.out}))
        user_error("attention", "expected --out of a file with --grads but got {}", options.out);
    for (const std::string& spec : {options.out, options.lse})
        if (!spec.empty()) parse_tensor_spec(spec, "");
    const AttentionOptions loaded = load_options(options, console);
    const auto load = [&](const std::string& spec, const char* name) {
        return spec.empty() ? Tensor() : load_tensor(spec, name, &console.input);
    };
    const Tensor q = load(options.query, "query"), k = load(options.key, "key"),
                 v = load(options.value, "value"), dout = load(options.grad_out, "grad-out");
    const std::vector<PlannedTensor> planned = planned_files(options, loaded, q.dtype(), v.dtype());
    check_outputs(planned, &console.out);

    // The files' tensors are kept for --check; the call runs on copies on --device.
    const auto there = [&](const Tensor& tensor) {
        return tensor.defined() ? tensor.to(device) : tensor;
    };
    AttentionOptions call_options = loaded;
    call_options.engine = options.engine;
    for (Tensor* tensor :
         {&call_options.segment_ids, &call_options.kv_segment_ids, &call_options.sinks}) {
        *tensor = there(*tensor);
    }
    std::ostream& notes = console.notes(use_standard_output({options.out, options.lse}));
    const TuningTables tables(options.autotune, notes);
    std::vector<Tensor> results;  // in the order of `planned`
    AttentionOutput output;
    AttentionGradients gradients;
    {
        const Elapsed elapsed("attention");
        const Tensor query = there(q), key = there(k), value = there(v);
        const auto back = [](const Tensor& tensor) {
            return tensor.defined() ? tensor.to(Device{}) : tensor;
        };
        const AttentionOutput on_device = attention(query, key, value, call_options);
        output = {back(on_device.out), back(on_device.lse), back(on_device.max_scores)};
        if (dout.defined()) {
            gradients = attention_backward(query, key, value, on_device, there(dout), call_options);
            for (Tensor* tensor :
                 {&gradients.query, &gradients.key, &gradients.value, &gradients.sinks}) {
                *tensor = back(*tensor);
            }
            for (Tensor& captured : gradients.captured) captured = back(captured);
        }
    }
    results.push_back(output.out);
    if (!options.lse.empty()) results.push_back(output.lse);
    if (!options.grads.empty()) {
        for (const Tensor& gradient : {gradients.query, gradients.key, gradients.value})
            results.push_back(gradient);
        if (gradients.sinks.defined()) results.push_back(gradients.sinks);
        results.insert(results.end(), gradients.captured.begin(), gradients.captured.end());
    }
    TW_ASSERT(results.size() == planned.size());
    std::vector<OutputTensor> files;
    for (std::size_t i = 0; i < planned.size(); ++i)
        files.push_back({planned[i].spec, planned[i].default_name, results[i]});
    save_tensors(files, &console.out);
    for (const OutputTensor& file : files)
        notes << fmt::format("wrote {}: {}\n", file.spec, file.tensor.type_name());
    if (options.check &&
        !check_attention(
            {q, k, v, loaded, output, dout, gradients, device.kind == Device::Kind::cuda}, notes))
        console.status = 1;
}

}  // namespace

void add_attention(CLI::App& app, Console& console) {
    CLI::App* command = app.add_subcommand(
        "attention", "attention and its gradients on .npy and .safetensors files");
    command->footer(
        "Files are FILE.npy or FILE.safetensors[:NAME], where NAME is the option's by default; - "
        "and -:NAME are standard input and output, of .npy and .safetensors. What a .safetensors "
        "file holds under other names stays when it is written to.");
    auto options = std::make_shared<Options>();
    const auto file = [&](const char* name, std::string& value, const char* description) {
        return command->add_option(name, value, description)->type_name("FILE");
    };
    file("--query", options->query, "(B, Hq, L, E); f32, f64, f16 or bf16")->required();
    file("--key", options->key, "(B, Hkv, S, E), where Hkv divides Hq")->required();
    file("--value", options->value, "(B, Hkv, S, Ev)")->required();
    file("--out", options->out, "the output, (B, Hq, L, Ev)")->required();
    file("--lse", options->lse,
         "log-sum-exp of every row, (B, Hq, L), natural log; f32, f64 for f64");
    command->add_option("--scale", options->scale, "of the scores [1/sqrt(E)]")->type_name("X");
    command->add_flag("--causal", options->causal, "kv <= q, counted from the top left");
    command
        ->add_option("--window", options->window,
                     "q - L <= kv <= q + R, in positions; -1: unbounded [-1,-1]")
        ->type_name("L,R");
    file("--segment-ids", options->segment_ids, "(B, L) integers: equal ids attend to each other");
    file("--kv-segment-ids", options->kv_segment_ids, "(B, S) integers [those of --segment-ids]");
    file("--kv-lengths", options->kv_lengths,
         "(B) integers: keys from there on do not exist; with --cu-seqlens one for each sequence");
    file("--cu-seqlens", options->cu_seqlens,
         "(N + 1) integers from 0 to L: N sequences packed in a batch of 1");
    file("--kv-cu-seqlens", options->kv_cu_seqlens,
         "the same for the keys [those of --cu-seqlens]");
    command->add_option("--mask", options->mask, "which pairs attend: \"q >= kv\"")
        ->type_name("TEXT");
    file("--block-mask", options->block_mask,
         "which pairs attend, as written by `tilewright mask --out`; with --cu-seqlens, of packed "
         "positions");
    command->add_option("--score", options->score, "the scores: \"softcap(20)\"")
        ->type_name("TEXT");
    command->add_option("--bind", options->bind, "an array that the texts read (repeatable)")
        ->type_name("NAME=FILE");
    file("--sinks", options->sinks, "(Hq): one more logit per head in the softmax");
    CLI::Option* const dropout =
        command
            ->add_option("--dropout", options->dropout,
                         "share of the probabilities dropped, in [0, 1) [0]")
            ->type_name("P");
    command->add_option("--seed", options->seed, "of the dropout [0]")
        ->type_name("N")
        ->needs(dropout)
        ->check(integer_in(0, UINT64_MAX));
    command->add_option("--layout", options->layout, "of all files: bhsd or bshd")
        ->type_name("ORDER")
        ->capture_default_str()
        ->check(one_of({"bhsd", "bshd"}));
    file("--grad-out", options->grad_out, "gradient of the output, (B, Hq, L, Ev)");
    command
        ->add_option("--grads", options->grads,
                     "write Pquery, Pkey, Pvalue, Psinks and P<bound name> in the format of --out")
        ->type_name("P");
    command->add_option("--device", options->device, "cpu, cuda or cuda:N")
        ->type_name("DEVICE")
        ->capture_default_str();
    command
        ->add_option("--engine", options->engine,
                     fmt::format("{} [the fastest that supports it]",
                                 fmt::join(attn::engine_names(), " or ")))
        ->type_name("NAME");
    command
        ->add_option("--precision", options->precision,
                     "of products of f32 on GPUs: ieee, tf32 or bf16x3 [ieee]")
        ->type_name("NAME");
    command
        ->add_option("--blocks", options->blocks,
                     "queries and keys that the forward pass works on at once, a hint [chosen]")
        ->type_name("Q,KV");
    command
        ->add_option("--backward-blocks", options->backward_blocks,
                     "the same for the backward pass [chosen]")
        ->type_name("Q,KV");
    command->add_flag("--autotune", options->autotune,
                      "measure a few blocks and take the fastest, which the disk cache keeps");
    command->add_flag_callback(
        "--no-deterministic", [options] { options->deterministic = false; },
        "gradients may be summed in any order (GPUs: faster)");
    add_threads(*command);
    command->add_flag("--check", options->check, "compare with a dense f64 reference");
    command->add_flag("--checked", options->checked, "run in the checked mode (slow)");
    command->callback([options, &console] { run(*options, console); });
}

}  // namespace tilewright::cli
