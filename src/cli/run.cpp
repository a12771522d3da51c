// `tilewright run`: runs a program of IR text on arrays from files.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/tensor_file.h"
#include "cli/tuning_tables.h"
#include "run/tune_kernel.h"
#include "support/check.h"
#include "support/write_file.h"
#include "tilewright/program.h"

namespace tilewright::cli {
namespace {

struct RunOptions {
    std::string kernel, device = "cpu";
    std::vector<std::string> in, out;
    std::string trace;
    bool checked = false, profile = false, autotune = false;
};

/// "NAME=FILE", or only a file, in which case the name is empty.
struct NamedFile {
    std::string name, file;
};

NamedFile parse_named(const std::string& text) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || text.find('/') < equals) return {"", text};
    return {text.substr(0, equals), text.substr(equals + 1)};
}

/// Files by parameter: first those with names, then the others in order.
std::vector<std::optional<std::string>> assigned(const char* option,
                                                 const std::vector<std::string>& texts,
                                                 const std::vector<Program::Parameter>& parameters,
                                                 const std::vector<bool>& takes) {
    std::vector<std::optional<std::string>> files(parameters.size());
    std::vector<std::string> unnamed;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < parameters.size(); ++i)
        if (takes[i]) names.push_back(parameters[i].name);
    for (const std::string& text : texts) {
        const NamedFile named = parse_named(text);
        if (named.name.empty()) {
            unnamed.push_back(named.file);
            continue;
        }
        const auto found = std::find_if(
            parameters.begin(), parameters.end(),
            [&](const Program::Parameter& parameter) { return parameter.name == named.name; });
        const std::size_t i = found - parameters.begin();
        if (found == parameters.end() || !takes[i])
            user_error("run", "expected --{} of {} but got `{}`", option, fmt::join(names, ", "),
                       named.name);
        if (files[i])
            user_error("run", "expected one --{} for `{}` but got two", option, named.name);
        files[i] = named.file;
    }
    std::size_t next = 0;
    for (const std::string& file : unnamed) {
        while (next < files.size() && (!takes[next] || files[next])) ++next;
        if (next == files.size())
            user_error("run", "expected at most {} of --{} ({}) but got {}", names.size(), option,
                       fmt::join(names, ", "), texts.size());
        files[next] = file;
    }
    return files;
}

std::string text_of(const std::string& path, StandardInput& input) {
    if (path == "-") {
        input.take_npy();  // marks it as used, so that no array reads it too
        return input.bytes();
    }
    if (!std::filesystem::is_regular_file(path))
        user_error("run",
                   "expected a file of IR text, as `tilewright dump` and f.ir() write it, "
                   "but there is no file {}",
                   path);
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
}

/// Profiles a few more runs, because the first one touches new pages. Programs that update arrays
/// run only once.
void report_profile(const Program& program, const std::vector<Tensor>& arrays,
                    const RunOptions& options, Console& console) {
    constexpr int kMoreRuns = 9;
    const auto& parameters = program.parameters();
    const bool updates = std::any_of(parameters.begin(), parameters.end(),
                                     [](const auto& p) { return p.written && p.alias_group >= 0; });
    for (int i = 0; i < kMoreRuns && !updates; ++i) program.run(arrays);
    const Profile profile = program.profile();
    console.error << profile.table();
    if (options.trace.empty()) return;
    write_file("run", options.trace, [&](std::ostream& out) { out << profile.chrome_trace(); });
}

void run_kernel(const RunOptions& options, Console& console) {
    const Device device = parse_device("run", options.device);
    const std::string text = text_of(options.kernel, console.input);
    if (!options.trace.empty() && !options.profile)
        user_error("run", "expected --profile with --trace but got --trace alone");
    if (options.checked && options.profile)
        user_error("run", "expected --checked or --profile but got both");
    if (options.autotune && device.kind != Device::Kind::cuda)
        user_error("run", "expected --autotune with --device cuda but got {}", options.device);
    const TuningTables tables(options.autotune, console.error);
    if (options.autotune) run::tune_kernels(true);
    const Program program(
        text, {.device = device, .checked = options.checked, .profile = options.profile});
    const std::vector<Program::Parameter>& parameters = program.parameters();
    std::vector<bool> is_input(parameters.size());
    std::vector<bool> is_output(parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        // Of arrays that share memory, the last is the result and the others are read.
        const auto& [name, type, written, group] = parameters[i];
        const bool last = std::none_of(
            parameters.begin() + i + 1, parameters.end(),
            [&](const Program::Parameter& p) { return group >= 0 && p.alias_group == group; });
        is_output[i] = written && last;
        is_input[i] = !is_output[i];
    }
    const auto in = assigned("in", options.in, parameters, is_input);
    const auto out = assigned("out", options.out, parameters, is_output);
    std::vector<Tensor> arrays(parameters.size());
    std::vector<OutputTensor> outputs;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const Program::Parameter& parameter = parameters[i];
        if (is_input[i]) {
            if (!in[i])
                user_error("run",
                           "expected --in {}=FILE for each input of `{}` but got none for it",
                           parameter.name, program.name());
            arrays[i] = load_tensor(*in[i], parameter.name, &console.input).to(device);
            continue;
        }
        for (std::size_t j = 0; j < i; ++j) {
            if (parameter.alias_group >= 0 && parameters[j].alias_group == parameter.alias_group)
                arrays[i] = arrays[j];
        }
        if (arrays[i].defined()) continue;
        for (const std::int64_t extent : parameter.type.shape)
            if (extent < 0)
                user_error("run", "expected `{}` to have static extents but got {}", parameter.name,
                           to_string(parameter.type));
        arrays[i] = Tensor::empty(parameter.type.dtype, parameter.type.shape, device);
    }
    program.run(arrays);
    if (options.profile) report_profile(program, arrays, options, console);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (!is_output[i]) continue;
        const Tensor result = arrays[i].to(Device{});
        if (out[i]) outputs.push_back({*out[i], parameters[i].name, result});
        console.error << fmt::format("{}: {}{}\n", parameters[i].name, result.type_name(),
                                     out[i] ? " in " + *out[i] : " (not kept: no --out)");
    }
    save_tensors(outputs, &console.out);
}

}  // namespace

void add_run(CLI::App& app, Console& console) {
    auto options = std::make_shared<RunOptions>();
    CLI::App* command = app.add_subcommand("run", "a program of IR text on arrays from files");
    command->add_option("kernel", options->kernel, "a file of IR text; - for standard input")
        ->type_name("FILE")
        ->required();
    command
        ->add_option("--in", options->in,
                     "one for each input in order: .npy, .safetensors[:NAME], - for standard input")
        ->type_name("[NAME=]FILE");
    command
        ->add_option("--out", options->out,
                     "one for each result in order, likewise; - for standard output")
        ->type_name("[NAME=]FILE");
    command->add_option("--device", options->device, "cpu, cuda or cuda:N")
        ->type_name("DEVICE")
        ->default_str("cpu");
    add_threads(*command);
    command->add_flag("--autotune", options->autotune,
                      "measure how to generate the program for the GPU, print what each way takes "
                      "and use the fastest, which the disk cache keeps");
    command->add_flag("--checked", options->checked, "in the checked mode (on the CPU)");
    command->add_flag("--profile", options->profile,
                      "a table of what each line of the bytecode takes (on the CPU), of 10 runs");
    command->add_option("--trace", options->trace, "with --profile: a Chrome trace as JSON")
        ->type_name("FILE");
    command->callback([options, &console] { run_kernel(*options, console); });
}

}  // namespace tilewright::cli
