// `tilewright bench`: whole operations against the machine's limits and other libraries.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/spec.h"
#include "cli/bench/gpu_timing.h"
#include "cli/bench/registry.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/tuning_tables.h"
#include "run/tune_kernel.h"
#include "support/check.h"
#include "support/write_file.h"
#include "tilewright/first_calls.h"
#include "tilewright/system.h"

namespace tilewright::cli {
namespace {

struct Options {
    std::string operation, dtype, device = "cpu", json;
    BenchOptions bench;
    bool no_check = false, causal = false, graphs = false;
};

/// Refuses options that the operation would ignore.
void expect_read(const CLI::App& command, const std::string& operation) {
    std::map<std::string, std::vector<std::string>> readers;
    for (const Benchmark& benchmark : benchmarks()) {
        for (const std::string& option : benchmark.reads) readers[option].push_back(benchmark.name);
    }
    for (const auto& [option, names] : readers) {
        if (command.count(option) == 0) continue;
        if (std::find(names.begin(), names.end(), operation) == names.end())
            user_error("bench", "expected {} with {} but got {}", option, fmt::join(names, ", "),
                       operation);
    }
}

/// Accepts more than 0 seconds and at most an hour.
std::string check_seconds(const std::string& text) {
    double seconds = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, seconds);
    if (error == std::errc() && rest == end && seconds > 0 && seconds <= 3600) return "";
    return "expected a number above 0 and at most 3600 but got " + text;
}

std::string check_baselines(const std::string& text) {
    const CLI::Validator known =
        one_of({"torch-sdpa", "torch-flex", "torch", "torch-compile", "xla", "onednn", "numba",
                "halide", "cudnn", "fa2", "fa2-causal", "fa3", "fa4", "sdpa-mask", "pallas",
                "pallas-mgpu", "triton", "none"});
    for (const std::string& one : CLI::detail::split(text, ',')) {
        if (const std::string error = known(one); !error.empty()) return error;
    }
    return "";
}

void run(const Options& options, const CLI::App& command, Console& console) {
    const auto& benchmark =
        *std::find_if(benchmarks().begin(), benchmarks().end(),
                      [&](const Benchmark& one) { return one.name == options.operation; });
    expect_read(command, options.operation);
    BenchOptions bench = options.bench;
    bench.device = parse_device("bench", options.device);
    const bool gpu = bench.device.kind == Device::Kind::cuda;
    if (gpu && benchmark.on_gpu == nullptr)
        user_error("bench", "expected --device cpu for {} but got {}", options.operation,
                   options.device);
    // On a GPU the FlexAttention notebook uses f16.
    const char* const usual = !gpu ? "f32" : options.operation == "flex" ? "f16" : "bf16";
    bench.dtype = parse_dtype(options.dtype.empty() ? usual : options.dtype).value();
    if (options.operation != "matmul" && (!is_float(bench.dtype) || size_of(bench.dtype) == 1))
        user_error("bench", "expected --dtype f32, bf16, f16 or f64 for {} but got {}",
                   options.operation, name(bench.dtype));
    if (!bench.precision.empty() && bench.dtype != f32)
        user_error("bench", "expected --precision with --dtype f32 but got {}", name(bench.dtype));
    bench.check = !options.no_check;
    if (options.causal) bench.causal = true;
    if (bench.sweep && bench.sweep_head_dim)
        user_error("bench", "expected --sweep or --sweep-head-dim but got both");
    if (bench.front_end == "cpp") bench.front_end.clear();
    if (!bench.front_end.empty() && (!bench.mask.empty() || !bench.score.empty()))
        user_error("bench",
                   "expected --front-end torch with the cases, not with --mask or --score");
    const std::pair<const char*, bool> gpu_alone[] = {{"graphs", options.graphs},
                                                      {"sweep", bench.sweep},
                                                      {"sweep-head-dim", bench.sweep_head_dim},
                                                      {"sustained", bench.sustained},
                                                      {"once", bench.once},
                                                      {"no-deterministic", !bench.deterministic},
                                                      {"engine", !bench.engine.empty()},
                                                      {"precision", !bench.precision.empty()}};
    if (!gpu && bench.baseline.find(',') != std::string::npos)
        user_error("bench", "expected one --baseline on a CPU but got {}", bench.baseline);
    for (const auto& [option, given] : gpu_alone)
        if (given && !gpu) user_error("bench", "expected --{} with --device cuda", option);
    if (bench.autotune && !gpu && options.operation != "attention" && options.operation != "cpu")
        user_error("bench", "expected --autotune of {} with --device cuda", options.operation);
    if (gpu && !bench.arch.empty())
        user_error("bench", "expected --arch with --device cpu but got {}", options.device);
    if (!bench.arch.empty() && bench.head_dim)
        user_error("bench", "expected --arch or --head-dim but got both");
    if (options.operation == "compile" && bench.arch.empty() && !bench.only.empty())
        user_error("bench", "expected --case of compile with --arch");
    if (options.graphs) bench.graph_calls = 20;
    const std::pair<const char*, std::optional<std::int64_t>> sizes[] = {
        {"batch", bench.batch},     {"heads", bench.heads},   {"kv-heads", bench.kv_heads},
        {"seq-len", bench.seq_len}, {"kv-len", bench.kv_len}, {"head-dim", bench.head_dim}};
    for (const auto& [option, size] : sizes)
        if (size && *size < 1)
            user_error("bench", "expected --{} of at least 1 but got {}", option, *size);
    const bool all_peers = gpu || options.operation == "flex" || options.operation == "cpu";
    if (bench.baseline.empty() && all_peers) bench.baseline = "auto";
    if (bench.baseline == "none") bench.baseline.clear();
    const bool json_on_out = options.json == "-";
    std::ostream& notes = console.notes(json_on_out);
    bench.out = &notes;
    // Checked first, so that measurements are not lost at the end.
    if (!options.json.empty() && !json_on_out) expect_writable("bench --json", options.json);
    const bool own_tables = options.operation == "flex" && !gpu;
    const std::string device = gpu ? gpu_name(bench.device) : device_name();
    notes << device << "\n\n" << std::flush;
    const OnInterrupt on_interrupt;
    const auto write_json = [&](const Report& report, bool complete) {
        if (options.json.empty()) return;
        const std::string text =
            to_json(device, console.arguments, report.rows(), complete, report.peers()) + '\n';
        if (json_on_out) {
            if (complete) console.out << text << std::flush;
            OnInterrupt::leave("\ninterrupted\n", complete ? "" : text);
            return;
        }
        write_file("bench --json", options.json, [&](std::ostream& file) { file << text; });
        OnInterrupt::leave(fmt::format("\ninterrupted: the rows so far are in {}\n", options.json),
                           "");
    };
    const TuningTables tables(bench.autotune, notes);
    if (bench.autotune && options.operation == "matmul") run::tune_kernels(true);
    std::optional<NoCompactKernels> full;  // others would be measured in their place
    if (options.operation != "compile") full.emplace();
    Report report(own_tables ? nullptr : &notes,
                  [&](const Report& so_far) { write_json(so_far, false); });
    (gpu ? benchmark.on_gpu : benchmark.on_cpu)(bench, report);
    report.print();
    write_json(report, true);
    for (const Row& row : report.rows())
        if (!row.ok) console.status = 1;
}

}  // namespace

void add_bench(CLI::App& app, Console& console) {
    CLI::App* command = app.add_subcommand("bench", "time whole operations");
    command->footer(
        "Sizes by default, cpu: attention B1 H8 S4096, D64 and D128; decode B1 H8 S1 x 32768 D128; "
        "flex B1 H4 S1024 D64; mask B1 H1 S1048576; matmul 2048; norm 16384 x 4096; compile D64. "
        "cuda: attention B4 H16 S8192 D128; decode, several shapes of D128; flex B16 H16 S8192 "
        "D64; "
        "matmul 8192; norm 16384 x 8192. Lines: median milliseconds; the rate, FLOP/s of pairs "
        "that "
        "attend or bytes; the share of the machine's limit, measured in the same rounds; times the "
        "speed of the baseline (above 1: we are faster); the largest difference from the f64 "
        "reference.");
    auto options = std::make_shared<Options>();
    BenchOptions& bench = options->bench;
    command
        ->add_option("operation", options->operation,
                     fmt::format("{}", fmt::join(benchmark_names(), ", ")))
        ->type_name("")
        ->required()
        ->check(one_of(benchmark_names()));
    command->add_flag_callback(
        "--list", [] { throw CLI::CallForVersion(benchmark_list(), 0); },
        "print all benchmarks, also those of bench/, and how to run them");
    command
        ->add_option("--dtype", options->dtype,
                     "f32, bf16, f16 or f64, of matmul also i8, u8, i16, i32, f8e4m3 or f8e5m2 "
                     "[f32; cuda: bf16, flex f16]")
        ->type_name("TYPE")
        ->check(
            one_of({"f32", "bf16", "f16", "f64", "i8", "u8", "i16", "i32", "f8e4m3", "f8e5m2"}));
    command->add_option("--device", options->device, "cpu, cuda or cuda:N")
        ->type_name("DEVICE")
        ->capture_default_str();
    command->add_flag_callback(
        "--no-deterministic", [&bench] { bench.deterministic = false; },
        "cuda: dQ in any order, as the baselines sum it");
    add_size(*command, "--batch", bench.batch, "sequences, B");
    add_size(*command, "--heads", bench.heads, "heads of the queries, H");
    add_size(*command, "--kv-heads", bench.kv_heads, "heads of keys and values [--heads]");
    add_size(*command, "--seq-len", bench.seq_len,
             "queries, S; matmul: rows and columns; norm: rows; mask: queries and keys");
    add_size(*command, "--kv-len", bench.kv_len, "keys [--seq-len]");
    add_size(*command, "--head-dim", bench.head_dim, "elements of a head, D; norm: of a row");
    command->add_flag("--causal", options->causal, "attention: the causal case alone");
    command->add_flag("--backward", bench.backward, "attention: the backward pass too");
    command
        ->add_option("--baseline", bench.baseline,
                     "torch-sdpa (attention), torch-flex (flex: by itself where torch is there), "
                     "torch, xla, onednn (matmul), none; cpu: onednn, torch, torch-compile, numba, "
                     "halide, by default all that are there; cuda: cudnn, fa2, torch-flex, torch, "
                     "of flex also fa2-causal and sdpa-mask, by default all that are there, and by "
                     "name fa3, fa4, xla, pallas (attention), pallas-mgpu and triton (attention, "
                     "matmul), torch-compile "
                     "(norm); on cuda several with commas between them")
        ->type_name("NAME")
        ->check(CLI::Validator(check_baselines, ""));
    command->add_flag(
        "--sweep", bench.sweep,
        "cuda: attention of lengths from 512 to 131072, batch x length 32768, and odd lengths; "
        "norms of 128 to 262144 elements");
    command->add_flag("--sweep-head-dim", bench.sweep_head_dim,
                      "cuda: attention of head dimensions from 8 to 256 in steps of 8");
    command->add_flag("--sustained", bench.sustained,
                      "cuda: bursts after a rest, and beside them a second without one");
    command->add_option("--mask", bench.mask, "attention, flex: this mask")->type_name("TEXT");
    command->add_option("--score", bench.score, "attention, flex: this score mod")
        ->type_name("TEXT");
    command->add_option("--seconds", bench.seconds, "for each case")
        ->type_name("SECONDS")
        ->capture_default_str()
        ->check(CLI::Validator(check_seconds, ""));
    add_threads(*command)->description(
        "threads of the CPU at most [TILEWRIGHT_THREADS, else all cores]; 1: timed by CPU time, "
        "for machines with other work");
    command
        ->add_option("--engine", bench.engine,
                     fmt::format("attention, flex on cuda: {} [the fastest that supports it]",
                                 fmt::join(attn::engine_names(), " or ")))
        ->type_name("NAME")
        ->check(one_of(attn::engine_names()));
    command
        ->add_option("--precision", bench.precision,
                     "attention, decode, flex of f32 on cuda: products by ieee, tf32 or bf16x3 "
                     "[ieee]")
        ->type_name("NAME")
        ->check(one_of({"ieee", "tf32", "bf16x3"}));
    command->add_flag(
        "--autotune", bench.autotune,
        "attention, flex, matmul on cuda: measure a few blocks, print what each takes "
        "and use the fastest, which the disk cache keeps; cpu: compare blocks as they "
        "are with the best of some tiles");
    command
        ->add_option("--arch", bench.arch,
                     "compile on cpu: the processor time of generating and compiling kernels for "
                     "this GPU, as sm_90a, without one")
        ->type_name("ARCH");
    command->add_flag("--once", bench.once,
                      "compile on cuda: the first calls of this process, with the cache as it is");
    command->add_flag("--graphs", options->graphs,
                      "cuda: time replays of CUDA graphs, so without what calls cost the host");
    command
        ->add_option("--json", options->json,
                     "also write the rows to this file, after each case; - for standard output")
        ->type_name("FILE");
    command
        ->add_option("--case", bench.only,
                     "flex: this case alone; cpu, compile --arch: the cases whose names contain it")
        ->type_name("NAME");
    command->add_flag("--small", bench.small, "cpu: arrays of some thousand elements");
    command
        ->add_option("--front-end", bench.front_end,
                     "flex: torch adds rows that go through tilewright.torch, in a Python process")
        ->type_name("NAME")
        ->check(one_of({"cpp", "torch"}));
    command->add_flag_callback(
        "--no-picture", [&bench] { bench.picture = false; }, "flex: draw no masks");
    command->add_flag("--no-check", options->no_check, "do not compare with the reference");
    command->callback([options, command, &console] { run(*options, *command, console); });
}

}  // namespace tilewright::cli
