// `tilewright attention`: attention and its gradients on tensors in files.
#include "tilewright/attention.h"

#include <fmt/format.h>
#include <oneapi/tbb/parallel_for.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>

#include "attention/reference.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "cli/tensor_file.h"
#include "run/to_array.h"
#include "support/accuracy.h"
#include "support/check.h"

namespace tilewright::cli {
namespace {

struct Options {
    std::string query, key, value, grad_out, segment_ids, kv_segment_ids;
    std::string out, lse, grads;
    std::string layout = "bhsd", device = "cpu", engine;
    std::string window, mask, score, sinks;
    std::vector<std::string> bind;
    double dropout = 0;
    std::uint64_t seed = 0;
    std::optional<double> scale;
    bool causal = false, check = false, checked = false;
};

/// "L,R", two integers of at least -1.
Window parse_window(const std::string& text) {
    Window window;
    int end = 0;
    if (std::sscanf(text.c_str(), "%ld,%ld%n", &window.left, &window.right, &end) != 2 ||
        static_cast<std::size_t>(end) != text.size())
        user_error("attention", "expected --window LEFT,RIGHT but got \"{}\"", text);
    return window;
}

/// Where the gradient of `argument` goes: in the format of --out.
OutputTensor gradient_file(const Options& options, const std::string& argument,
                           const Tensor& gradient) {
    const TensorSpec out = parse_tensor_spec(options.out, "out");
    const char* extension = out.format == TensorSpec::Format::npy ? ".npy" : ".safetensors";
    return {options.grads + argument + extension, argument, gradient};
}

/// Rows [b, b + 1) x [h, h + heads) of a (B, H, ...) array.
Array part_of(const Array& x, std::int64_t b, std::int64_t h, std::int64_t heads) {
    Array result;
    if (!x.given()) return result;
    result.shape = x.shape;
    result.shape[0] = 1;
    std::int64_t row = 1;
    for (std::size_t axis = 2; axis < x.shape.size(); ++axis) row *= x.shape[axis];
    result.shape[1] = heads;
    const auto first = x.data.begin() + (b * x.shape[1] + h) * row;
    result.data.assign(first, first + heads * row);
    return result;
}

/// Compares with the dense reference, one (batch, kv head) at a time on all cores.
class Checker {
  public:
    Checker(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options)
        : query_(bhsd(q, options)),
          key_(bhsd(k, options)),
          value_(bhsd(v, options)),
          dtype_(q.dtype()),
          layout_(options.layout) {
        options_.scale = options.scale;
        options_.causal = options.causal;
        options_.window_left = options.window.left;
        options_.window_right = options.window.right;
        options_.mask = options.mask;
        options_.score_mod = options.score_mod;
        options_.dropout = options.dropout;
        options_.seed = options.seed;
        sinks_ = to_array(options.sinks);
        sinks_dtype_ = options.sinks.defined() ? options.sinks.dtype() : f32;
        segment_ids_ = to_array(options.segment_ids);
        kv_segment_ids_ = to_array(options.kv_segment_ids);
    }

    /// Prints a line per result and returns whether all are within the allowed error.
    bool check(const AttentionOutput& output, const AttentionGradients& gradients,
               const Tensor& dout, std::ostream& out) const {
        const DType statistics = dtype_ == f64 ? f64 : f32;
        std::vector<Compared> results = {{"out", to_array(view(output.out)), dtype_},
                                         {"lse", to_array(output.lse), statistics}};
        if (dout.defined()) {
            results.push_back({"grad query", to_array(view(gradients.query)), dtype_});
            results.push_back({"grad key", to_array(view(gradients.key)), dtype_});
            results.push_back({"grad value", to_array(view(gradients.value)), dtype_});
        }
        const Array gradient = dout.defined() ? to_array(view(dout)) : Array();
        // Gradients that all heads share are summed up, then compared.
        std::vector<Shared> shared;
        if (dout.defined() && sinks_.given()) {
            shared.push_back({{"grad sinks", to_array(gradients.sinks), sinks_dtype_}});
        }
        for (const Tensor& captured : gradients.captured) {
            shared.push_back({{"grad bound", to_array(captured), captured.dtype()}});
        }
        for (Shared& sum : shared) {
            sum.exact = Array(sum.compared.ours.shape);
            sum.plain = Array(sum.compared.ours.shape);
        }
        const std::int64_t kv_heads = key_.dim(1);
        const std::int64_t group = kv_heads == 0 ? 1 : query_.dim(1) / kv_heads;
        std::mutex mutex;
        Progress progress("check");
        const std::int64_t parts = query_.dim(0) * kv_heads;
        std::int64_t done = 0;
        tbb::parallel_for(std::int64_t{0}, parts, [&](std::int64_t i) {
            const std::int64_t b = i / kv_heads, kv = i % kv_heads;
            const std::vector<Array> exact = reference(b, kv, group, gradient, DType::f64);
            const std::vector<Array> plain = reference(b, kv, group, gradient, dtype_);
            const std::lock_guard lock(mutex);
            progress.update(static_cast<double>(++done) / static_cast<double>(parts));
            for (std::size_t s = 0; s < shared.size(); ++s) {
                const bool is_sinks = s == 0 && sinks_.given();
                const std::int64_t first = is_sinks ? kv * group : 0;
                add(exact[results.size() + s], first, shared[s].exact);
                add(plain[results.size() + s], first, shared[s].plain);
            }
            for (std::size_t r = 0; r < results.size(); ++r) {
                const bool of_query = r < 3;
                const Array ours =
                    part_of(results[r].ours, b, of_query ? kv * group : kv, of_query ? group : 1);
                const double error = largest_error(ours, exact[r]);
                const double allowed = allowed_error(plain[r], exact[r], results[r].dtype);
                results[r].error = std::max(results[r].error, error);
                results[r].allowed = std::max(results[r].allowed, allowed);
                results[r].ok = results[r].ok && error <= allowed;
            }
        });
        for (Shared& sum : shared) {
            Compared& compared = sum.compared;
            compared.error = largest_error(compared.ours, sum.exact);
            compared.allowed = allowed_error(sum.plain, sum.exact, compared.dtype);
            compared.ok = compared.error <= compared.allowed;
            results.push_back(compared);
        }
        bool ok = true;
        for (const Compared& r : results) {
            out << fmt::format("check {:<10}  largest error {:.2e}, allowed {:.2e}: {}\n", r.name,
                               r.error, r.allowed, r.ok ? "ok" : "WRONG");
            ok = ok && r.ok;
        }
        return ok;
    }

  private:
    struct Compared {
        const char* name;
        Array ours;
        DType dtype;
        double error = 0, allowed = 0;
        bool ok = true;
    };

    struct Shared {
        Compared compared;
        Array exact = {}, plain = {};
    };

    static void add(const Array& part, std::int64_t first, Array& sum) {
        for (std::size_t i = 0; i < part.data.size(); ++i) {
            sum.data[static_cast<std::size_t>(first) + i] += part.data[i];
        }
    }

    static Array bhsd(const Tensor& x, const AttentionOptions& options) {
        return to_array(options.layout == Layout::bhsd ? x : x.transpose({0, 2, 1, 3}));
    }
    Tensor view(const Tensor& x) const {
        return layout_ == Layout::bhsd ? x : x.transpose({0, 2, 1, 3});
    }

    std::vector<Array> reference(std::int64_t b, std::int64_t kv, std::int64_t group,
                                 const Array& dout, DType arithmetic) const {
        attn::ReferenceOptions options = options_;
        options.arithmetic = arithmetic;
        const auto ids = [&](const Array& all) {
            Array row;
            if (!all.given()) return row;
            row = Array({1, all.dim(1)});
            std::copy_n(all.data.begin() + b * all.dim(1), all.dim(1), row.data.begin());
            return row;
        };
        options.segment_ids = ids(segment_ids_);
        options.kv_segment_ids = ids(kv_segment_ids_);
        options.first_batch = b;
        options.first_head = kv * group;
        if (sinks_.given()) {
            options.sinks = Array({group});
            std::copy_n(sinks_.data.begin() + kv * group, group, options.sinks.data.begin());
        }
        const Array q = part_of(query_, b, kv * group, group), k = part_of(key_, b, kv, 1),
                    v = part_of(value_, b, kv, 1);
        attn::ReferenceOutput forward = attn::reference_forward(q, k, v, options);
        std::vector<Array> results = {std::move(forward.out), std::move(forward.lse)};
        if (dout.given()) {
            const Array gradient = part_of(dout, b, kv * group, group);
            attn::ReferenceGradients g = attn::reference_backward(q, k, v, gradient, {}, options);
            results.push_back(std::move(g.query));
            results.push_back(std::move(g.key));
            results.push_back(std::move(g.value));
            if (sinks_.given()) results.push_back(std::move(g.sinks));
            for (Array& captured : g.captured) results.push_back(std::move(captured));
        }
        return results;
    }

    Array query_, key_, value_, segment_ids_, kv_segment_ids_, sinks_;
    DType sinks_dtype_;
    attn::ReferenceOptions options_;
    DType dtype_;
    Layout layout_;
};

std::vector<Capture> captures_of(const Mod& mod) {
    return mod.defined() ? mod.captures() : std::vector<Capture>();
}

void run(const Options& options, Console& console) {
    const Device device = parse_device("attention", options.device);
    if (!options.grads.empty() && options.grad_out.empty())
        user_error("attention", "expected --grad-out with --grads but got none");
    AttentionOptions attention_options;
    attention_options.scale = options.scale;
    attention_options.causal = options.causal;
    if (!options.window.empty()) attention_options.window = parse_window(options.window);
    attention_options.layout = options.layout == "bhsd" ? Layout::bhsd : Layout::bshd;
    attention_options.checked = options.checked;
    const auto load = [](const std::string& spec, const char* name) {
        return spec.empty() ? Tensor() : load_tensor(spec, name);
    };
    attention_options.segment_ids = load(options.segment_ids, "segment-ids");
    attention_options.kv_segment_ids = load(options.kv_segment_ids, "kv-segment-ids");
    attention_options.sinks = load(options.sinks, "sinks");
    attention_options.dropout = options.dropout;
    attention_options.seed = options.seed;
    const Bindings arrays = load_bindings("attention", options.bind);
    if (!options.mask.empty())
        attention_options.mask = parse_mod(options.mask, arrays, Mod::Kind::mask);
    if (!options.score.empty())
        attention_options.score_mod = parse_mod(options.score, arrays, Mod::Kind::score);
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
        !Checker(q, k, v, attention_options).check(output, gradients, dout, console.out))
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
    command->add_option("--mask", options->mask, "which pairs attend, as text: \"q >= kv\"");
    command->add_option("--score", options->score, "the scores, as text: \"softcap(20)\"");
    command->add_option("--bind", options->bind, "NAME=FILE: an array that the texts read");
    command->add_option("--sinks", options->sinks, "(Hq): one more logit per head");
    command->add_option("--dropout", options->dropout, "share of the probabilities dropped");
    command->add_option("--seed", options->seed, "of the dropout");
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
