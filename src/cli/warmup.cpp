// `tilewright warmup`: calls attention on zeros, so that its kernels are compiled in advance.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "attention/spec.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "support/check.h"
#include "support/disk_cache.h"
#include "tilewright/attention.h"
#include "tilewright/first_calls.h"
#include "tilewright/run.h"

namespace tilewright::cli {
namespace {

/// A call: everything that its shapes and kernels depend on.
struct WarmCall {
    std::int64_t batch = 1, heads = 1, kv_heads = 0, q_len = 0, kv_len = 0, head_dim = 128;
    std::int64_t value_dim = 0;
    std::string dtype = "bf16", window, mask, score, engine, precision;
    bool causal = false, backward = false, deterministic = true;
};

/// Visits the fields of a call with their names: "kv_len" in files, for the option "--kv-len".
template <typename Visit>
void each_field(WarmCall& call, const Visit& visit) {
    visit("batch", call.batch, "sequences [1]");
    visit("heads", call.heads, "heads of the queries [1]");
    visit("kv_heads", call.kv_heads, "heads of keys and values [heads]");
    visit("q_len", call.q_len,
          "queries of a sequence, as 4096 or 4Ki; without a file it has to be given");
    visit("kv_len", call.kv_len, "keys [q_len]");
    visit("head_dim", call.head_dim, "elements of a head [128]");
    visit("value_dim", call.value_dim, "elements of a head of the values [head_dim]");
    visit("dtype", call.dtype, "bf16, f16, f32 or f64 [bf16]");
    visit("window", call.window,
          "LEFT,RIGHT: q - LEFT <= kv <= q + RIGHT, in positions; -1: unbounded [-1,-1]");
    visit("mask", call.mask, "which pairs attend: \"q >= kv\"");
    visit("score", call.score, "the scores: \"softcap(20)\"");
    visit(
        "engine", call.engine,
        fmt::format("{} [the fastest that supports it]", fmt::join(attn::engine_names(), " or ")));
    visit("precision", call.precision, "of products of f32 on GPUs: ieee, tf32 or bf16x3 [ieee]");
    visit("causal", call.causal, "kv <= q");
    visit("backward", call.backward, "the gradients too");
    visit("deterministic", call.deterministic, "gradients with the same bits in every run");
}

struct Options {
    std::string file, device = "cuda";
    WarmCall call;
    std::int64_t jobs = 0;
};

void read_field(const nlohmann::json& value, const std::string& key, std::int64_t& field) {
    if (!value.is_number_integer())
        user_error("warmup", "expected an integer for \"{}\" but got {}", key, value.dump());
    field = value.get<std::int64_t>();
}
void read_field(const nlohmann::json& value, const std::string& key, std::string& field) {
    if (!value.is_string())
        user_error("warmup", "expected a text for \"{}\" but got {}", key, value.dump());
    field = value.get<std::string>();
}
void read_field(const nlohmann::json& value, const std::string& key, bool& field) {
    if (!value.is_boolean())
        user_error("warmup", "expected true or false for \"{}\" but got {}", key, value.dump());
    field = value.get<bool>();
}

WarmCall read_call(const nlohmann::json& record, const WarmCall& usual) {
    if (!record.is_object())
        user_error("warmup", "expected an object for each call but got {}", record.dump());
    WarmCall call = usual;
    for (const auto& [key, value] : record.items()) {
        bool known = false;
        std::vector<std::string> names;
        each_field(call, [&, &name = key, &content = value](const char* field_name, auto& field,
                                                            const auto&) {
            names.emplace_back(field_name);
            if (name != field_name) return;
            read_field(content, name, field);
            known = true;
        });
        if (!known)
            user_error("warmup", "expected keys of {} but got \"{}\"", fmt::join(names, ", "), key);
    }
    return call;
}

/// The calls in a file, a list of objects; what an object leaves out comes from the options.
std::vector<WarmCall> read_calls(const std::string& file, const WarmCall& usual) {
    std::ifstream in(file);
    if (!in) user_error("warmup", "expected a file that can be read but got {}", file);
    const nlohmann::json records = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
    if (!records.is_array())
        user_error("warmup", "expected a JSON list of calls in {} but got {}", file,
                   records.is_discarded() ? "no JSON" : records.type_name());
    std::vector<WarmCall> calls;
    for (const nlohmann::json& record : records) calls.push_back(read_call(record, usual));
    return calls;
}

/// The arguments of a call, checked before anything is compiled.
struct Prepared {
    DType dtype;
    Tensor::Dims query, key, value;
    AttentionOptions options;
    bool backward;
};

Prepared prepare(WarmCall call) {
    if (call.kv_heads == 0) call.kv_heads = call.heads;
    if (call.kv_len == 0) call.kv_len = call.q_len;
    if (call.value_dim == 0) call.value_dim = call.head_dim;
    for (const std::int64_t size : {call.batch, call.heads, call.kv_heads, call.q_len, call.kv_len,
                                    call.head_dim, call.value_dim}) {
        if (size < 1)
            user_error("warmup", "expected sizes of at least 1 and --q-len but got {}", size);
    }
    const std::optional<DType> dtype = parse_dtype(call.dtype);
    if (!dtype || !is_float(*dtype) || size_of(*dtype) == 1)
        user_error("warmup", "expected bf16, f16, f32 or f64 but got {}", call.dtype);
    Prepared result{*dtype,
                    {call.batch, call.heads, call.q_len, call.head_dim},
                    {call.batch, call.kv_heads, call.kv_len, call.head_dim},
                    {call.batch, call.kv_heads, call.kv_len, call.value_dim},
                    {},
                    call.backward};
    AttentionOptions& options = result.options;
    options.causal = call.causal;
    options.deterministic = call.deterministic;
    options.gradient = call.backward;
    options.engine = call.engine;
    options.precision = call.precision;
    if (!call.window.empty()) {
        const auto sides = parse_integers("warmup", "--window LEFT,RIGHT", call.window, 2, 2);
        options.window = {sides[0], sides[1]};
    }
    if (!call.mask.empty()) options.mask = parse_mod(call.mask, {}, Mod::Kind::mask);
    if (!call.score.empty()) options.score_mod = parse_mod(call.score, {}, Mod::Kind::score);
    return result;
}

void run_once(const Prepared& call, Device device) {
    const auto zeros = [&](const Tensor::Dims& shape) {
        return Tensor::zeros(call.dtype, shape, device);
    };
    const Tensor query = zeros(call.query), key = zeros(call.key), value = zeros(call.value);
    const AttentionOutput output = attention(query, key, value, call.options);
    if (call.backward) {
        attention_backward(query, key, value, output,
                           Tensor::zeros(call.dtype, output.out.shape(), device), call.options);
    }
    synchronize(device);
}

void run(const Options& options, Console& console) {
    const NoCompactKernels full;  // later calls shall find their kernels
    const Device device = parse_device("warmup", options.device);
    const std::vector<WarmCall> calls = options.file.empty()
                                            ? std::vector<WarmCall>{options.call}
                                            : read_calls(options.file, options.call);
    std::vector<Prepared> prepared;
    for (const WarmCall& call : calls) prepared.push_back(prepare(call));
    const std::size_t jobs = std::min(
        prepared.size(), options.jobs > 0 ? static_cast<std::size_t>(options.jobs)
                                          : std::max(1u, std::thread::hardware_concurrency()));
    const auto start = std::chrono::steady_clock::now();
    std::mutex mutex;
    std::exception_ptr failure;
    std::atomic<std::size_t> next = 0, done = 0;
    Progress progress("compiling");
    const auto work = [&] {
        for (std::size_t i = next++; i < prepared.size(); i = next++) {
            try {
                run_once(prepared[i], device);
                progress.update(static_cast<double>(++done) / static_cast<double>(prepared.size()));
            } catch (...) {
                const std::lock_guard lock(mutex);
                if (!failure) failure = std::current_exception();
                next = prepared.size();
            }
        }
    };
    {
        std::vector<std::jthread> threads;
        for (std::size_t i = 0; i < jobs; ++i) threads.emplace_back(work);
    }
    if (failure) std::rethrow_exception(failure);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    console.out << fmt::format("{} calls in {:.1f} s; their kernels are in {}\n", prepared.size(),
                               taken.count(), cache_root().string());
}

}  // namespace

void add_warmup(CLI::App& app, Console& console) {
    auto options = std::make_shared<Options>();
    CLI::App* command = app.add_subcommand(
        "warmup", "compile the kernels of attention calls before they are wanted");
    command->footer(
        "Runs every call once on zeros, side by side, and keeps the kernels in the disk cache.");
    command
        ->add_option("file", options->file,
                     "JSON: a list of objects with the options' names as keys (\"q_len\"); what "
                     "one leaves out is as the options say")
        ->type_name("FILE");
    each_field(options->call, [&](const std::string& name, auto& field, const auto& description) {
        std::string option = "--" + name;
        std::replace(option.begin(), option.end(), '_', '-');
        using Field = std::decay_t<decltype(field)>;
        if constexpr (std::is_same_v<Field, std::int64_t>) {
            add_size(*command, option, field, description);
        } else if constexpr (std::is_same_v<Field, bool>) {
            if (field) {
                command->add_flag_callback(
                    "--no-" + option.substr(2), [&field] { field = false; },
                    fmt::format("turns off: {}", description));
            } else {
                command->add_flag(option, field, description);
            }
        } else {
            command->add_option(option, field, description)->type_name("TEXT");
        }
    });
    command->add_option("--device", options->device, "cuda, cuda:N or cpu")->capture_default_str();
    add_size(*command, "--jobs", options->jobs, "calls at once; 0: one for each core [0]");
    command->callback([options, &console] { run(*options, console); });
}

}  // namespace tilewright::cli
