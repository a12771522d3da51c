// Chooses the program that `dump` and `explain` describe.
#include "cli/kernel_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "cli/builtin.h"
#include "cli/tensor_file.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "support/check.h"

namespace tilewright::cli {
namespace {

std::string load_file(const char* op, const KernelChoice& choice) {
    if (!choice.dtype.empty())
        user_error(op, "expected a built-in program with --dtype but got the file {}",
                   choice.kernel);
    if (!std::filesystem::is_regular_file(choice.kernel))
        user_error(op, "expected a built-in program or a file of IR text but `{}` is a {}",
                   choice.kernel,
                   std::filesystem::is_directory(choice.kernel) ? "folder" : "special file");
    std::ifstream file(choice.kernel, std::ios::binary);
    std::string text(std::istreambuf_iterator<char>(file), {});
    ir::parse(text);
    return text;
}

}  // namespace

std::string choose_kernel(const char* op, const KernelChoice& choice, bool gpu, bool lines,
                          StandardInput& input) {
    const bool is_flex = choice.kernel == "flex" || choice.kernel == "flex_backward";
    const std::pair<const char*, bool> of_flex[] = {{"mask", !choice.mask.empty()},
                                                    {"score", !choice.score.empty()},
                                                    {"bind", !choice.bind.empty()}};
    for (const auto& [option, given] : of_flex)
        if (given && !is_flex)
            user_error(op, "expected `flex` or `flex_backward` with --{} but got {}", option,
                       choice.kernel);
    const std::vector<std::string> names = builtin_names();
    const bool named =
        is_flex || std::find(names.begin(), names.end(), choice.kernel) != names.end();
    std::error_code no_such_file;
    if (!named && std::filesystem::exists(choice.kernel, no_such_file))
        return load_file(op, choice);
    const DType dtype = choice.dtype.empty() ? f32 : float_dtype(op, choice.dtype);
    const ModTexts texts{choice.mask, choice.score, load_bindings(op, choice.bind, &input)};
    const Builtin program = is_flex ? flex_builtin(op, dtype, texts, choice.kernel != "flex", gpu)
                                    : builtin(op, choice.kernel, dtype, gpu);
    return (gpu ? program.call : fixed(program.call)).ir(program.inputs, lines);
}

void add_kernel_choice(CLI::App& command, KernelChoice& choice) {
    command
        .add_option("kernel", choice.kernel,
                    fmt::format("a file of IR text, or one of flex, flex_backward, {}",
                                fmt::join(builtin_names(), ", ")))
        ->required();
    command.add_option("--dtype", choice.dtype, "of a built-in program: f32, f64, f16 or bf16")
        ->type_name("TYPE")
        ->default_str("f32");
    command.add_option("--mask", choice.mask, "flex: a mask, evaluated in the program")
        ->type_name("TEXT");
    command.add_option("--score", choice.score, "flex: a score mod")->type_name("TEXT");
    command
        .add_option("--bind", choice.bind,
                    "an array that the texts read: .npy, .safetensors[:NAME], - for standard "
                    "input (repeatable)")
        ->type_name("NAME=FILE");
}

}  // namespace tilewright::cli
