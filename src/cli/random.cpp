// `tilewright random`: files of test data.
#include <fmt/format.h>

#include <memory>

#include "cli/builtin.h"
#include "cli/command.h"
#include "cli/tensor_file.h"
#include "support/check.h"

namespace tilewright::cli {
namespace {

struct RandomOptions {
    std::string out, dtype = "f32";
    std::vector<std::string> shape;
    std::uint32_t seed = 0;
};

void make_random(const RandomOptions& options, Console& console) {
    const std::string text = fmt::format("{}", fmt::join(options.shape, ","));
    const std::vector<std::int64_t> shape =
        parse_integers("random", "--shape N,N,...", text, 1, std::string::npos);
    std::int64_t size = 1;
    for (const std::int64_t dim : shape) {
        if (dim < 0 || (dim > 0 && size > (std::int64_t{1} << 33) / dim))
            user_error("random", "expected a shape of at most 2^33 elements but got ({})",
                       fmt::join(shape, ", "));
        size *= dim;
    }
    const Tensor tensor = random_values(float_dtype("random", options.dtype), shape, options.seed);
    save_tensors({{options.out, "random", tensor}});
    console.out << fmt::format("wrote {}: {}\n", options.out, tensor.type_name());
}

}  // namespace

void add_random(CLI::App& app, Console& console) {
    auto options = std::make_shared<RandomOptions>();
    CLI::App* command = app.add_subcommand("random", "a file of repeatable random values");
    command->add_option("--out", options->out, "FILE.npy or FILE.safetensors[:NAME]")->required();
    command->add_option("--shape", options->shape, "as in 1,8,1024,64")->required();
    command->add_option("--dtype", options->dtype, "f32, f64, f16 or bf16");
    command->add_option("--seed", options->seed, "other seeds, other values");
    command->callback([options, &console] { make_random(*options, console); });
}

}  // namespace tilewright::cli
