// `tilewright attention`: attention and its gradients on tensors in files.
#include "tilewright/attention.h"

#include <fmt/format.h>

#include <charconv>
#include <memory>

#include "cli/attention_check.h"
#include "cli/command.h"
#include "cli/tensor_file.h"
#include "support/check.h"

namespace tilewright::cli {
namespace {

struct Options {
    std::string query, key, value, grad_out, segment_ids, kv_segment_ids, kv_lengths;
    std::string out, lse, grads;
    std::string layout = "bhsd", device = "cpu", engine;
    std::string window, mask, score, sinks;
    std::vector<std::string> bind;
    double dropout = 0;
    std::uint64_t seed = 0;
    std::optional<double> scale;
    bool causal = false, check = false, checked = false;
};

/// Where the gradient of `argument` goes: in the format of --out.
OutputTensor gradient_file(const Options& options, const std::string& argument,
                           const Tensor& gradient) {
    const TensorSpec out = parse_tensor_spec(options.out, "out");
    const char* extension = out.format == TensorSpec::Format::npy ? ".npy" : ".safetensors";
    return {options.grads + argument + extension, argument, gradient};
}

std::vector<Capture> captures_of(const Mod& mod) {
    return mod.defined() ? mod.captures() : std::vector<Capture>();
}

void run(const Options& options, Console& console) {
    const Device device = parse_device("attention", options.device);
    if (!options.grads.empty() && options.grad_out.empty())
        user_error("attention", "expected --grad-out with --grads but got none");
    if (!options.grad_out.empty() && options.grads.empty() && !options.check)
        user_error("attention", "expected --grads or --check with --grad-out but got neither");
    // What cannot be written is refused before anything is computed.
    for (const std::string& spec : {options.out, options.lse})
        if (!spec.empty()) parse_tensor_spec(spec, "");
    AttentionOptions attention_options;
    attention_options.scale = options.scale;
    attention_options.causal = options.causal;
    if (!options.window.empty()) {
        const auto sides = parse_integers("attention", "--window LEFT,RIGHT", options.window, 2, 2);
        attention_options.window = {sides[0], sides[1]};
    }
    attention_options.layout = options.layout == "bhsd" ? Layout::bhsd : Layout::bshd;
    attention_options.checked = options.checked;
    const auto load = [](const std::string& spec, const char* name) {
        return spec.empty() ? Tensor() : load_tensor(spec, name);
    };
    attention_options.segment_ids = load(options.segment_ids, "segment-ids");
    attention_options.kv_segment_ids = load(options.kv_segment_ids, "kv-segment-ids");
    attention_options.kv_lengths = load(options.kv_lengths, "kv-lengths");
    attention_options.sinks = load(options.sinks, "sinks");
    attention_options.dropout = options.dropout;
    attention_options.seed = options.seed;
    const Bindings arrays = load_bindings("attention", options.bind);
    if (!options.mask.empty())
        attention_options.mask = parse_mod(options.mask, arrays, Mod::Kind::mask);
    if (!options.score.empty())
        attention_options.score_mod = parse_mod(options.score, arrays, Mod::Kind::score);
    expect_bindings_read("attention", arrays,
                         {attention_options.mask, attention_options.score_mod});
    const Tensor q = load(options.query, "query"), k = load(options.key, "key"),
                 v = load(options.value, "value"), dout = load(options.grad_out, "grad-out");

    // The files' tensors stay for --check; the call runs on copies where --device says.
    const auto there = [&](const Tensor& tensor) {
        return tensor.defined() ? tensor.to(device) : tensor;
    };
    const auto back = [](Tensor& tensor) {
        if (tensor.defined()) tensor = tensor.to(Device{});
    };
    AttentionOptions call_options = attention_options;
    call_options.engine = options.engine;
    for (Tensor* tensor :
         {&call_options.segment_ids, &call_options.kv_segment_ids, &call_options.sinks}) {
        *tensor = there(*tensor);
    }
    const Tensor query = there(q), key = there(k), value = there(v);
    const AttentionOutput on_device = attention(query, key, value, call_options);
    AttentionOutput output = on_device;
    for (Tensor* tensor : {&output.out, &output.lse, &output.max_scores}) back(*tensor);
    std::vector<OutputTensor> files = {{options.out, "out", output.out}};
    if (!options.lse.empty()) files.push_back({options.lse, "lse", output.lse});
    AttentionGradients gradients;
    if (dout.defined()) {
        gradients = attention_backward(query, key, value, on_device, there(dout), call_options);
        for (Tensor* tensor :
             {&gradients.query, &gradients.key, &gradients.value, &gradients.sinks}) {
            back(*tensor);
        }
        for (Tensor& captured : gradients.captured) back(captured);
        if (!options.grads.empty()) {
            files.push_back(gradient_file(options, "query", gradients.query));
            files.push_back(gradient_file(options, "key", gradients.key));
            files.push_back(gradient_file(options, "value", gradients.value));
            if (gradients.sinks.defined())
                files.push_back(gradient_file(options, "sinks", gradients.sinks));
            std::size_t place = 0;
            for (const Capture& capture : captures_of(attention_options.score_mod)) {
                if (!capture.differentiable()) continue;
                const Tensor& gradient = gradients.captured[place++];
                files.push_back(gradient_file(options, capture.name(), gradient));
            }
        }
    }
    save_tensors(files);
    for (const OutputTensor& file : files)
        console.out << fmt::format("wrote {}: {}\n", file.spec, file.tensor.type_name());
    if (options.check &&
        !check_attention({q, k, v, attention_options, output, dout, gradients}, console.out))
        console.status = 1;
}

}  // namespace

void add_attention(CLI::App& app, Console& console) {
    CLI::App* command = app.add_subcommand(
        "attention", "attention and its gradients on .npy and .safetensors files");
    auto options = std::make_shared<Options>();
    command->add_option("--query", options->query, "(B, Hq, L, E)")->required();
    command->add_option("--key", options->key, "(B, Hkv, S, E)")->required();
    command->add_option("--value", options->value, "(B, Hkv, S, Ev)")->required();
    command->add_option("--out", options->out, "the output, (B, Hq, L, Ev)")->required();
    command->add_option("--lse", options->lse, "log-sum-exp of every row, (B, Hq, L)");
    command->add_option("--scale", options->scale, "of the scores; 1/sqrt(E) by default");
    command->add_flag("--causal", options->causal, "kv <= q, counted from the top left");
    command->add_option("--window", options->window, "L,R: q - L <= kv <= q + R; -1: unbounded");
    command->add_option("--segment-ids", options->segment_ids, "(B, L) integers");
    command->add_option("--kv-segment-ids", options->kv_segment_ids,
                        "(B, S) integers; segment ids by default");
    command->add_option("--kv-lengths", options->kv_lengths,
                        "(B) integers: keys from there on do not exist");
    command->add_option("--mask", options->mask, "which pairs attend, as text: \"q >= kv\"");
    command->add_option("--score", options->score, "the scores, as text: \"softcap(20)\"");
    command->add_option("--bind", options->bind, "NAME=FILE: an array that the texts read");
    command->add_option("--sinks", options->sinks, "(Hq): one more logit per head");
    CLI::Option* const dropout =
        command->add_option("--dropout", options->dropout, "share of the probabilities dropped");
    command->add_option("--seed", options->seed, "of the dropout")
        ->needs(dropout)
        ->check(CLI::Validator(
            [](const std::string& text) {
                std::uint64_t seed = 0;
                const char* const end = text.data() + text.size();
                const auto [rest, error] = std::from_chars(text.data(), end, seed);
                const bool is_seed = error == std::errc() && rest == end;
                return is_seed ? "" : "expected an integer of 0 to 2^64 - 1 but got " + text;
            },
            ""));
    command->add_option("--layout", options->layout, "of all files")
        ->check(CLI::IsMember({"bhsd", "bshd"}));
    command->add_option("--grad-out", options->grad_out, "gradient of the output");
    command->add_option("--grads", options->grads,
                        "prefix of the files of gradients, in the format of --out");
    command->add_option("--device", options->device, "cpu, cuda or cuda:N");
    command->add_option("--engine", options->engine,
                        "tiles or sm90; the fastest that can serve by default");
    command->add_flag("--check", options->check, "compare with a dense f64 reference");
    command->add_flag("--checked", options->checked, "run in the checked mode (slow)");
    command->callback([options, &console] { run(*options, console); });
}

}  // namespace tilewright::cli
