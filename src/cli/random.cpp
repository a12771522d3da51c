// `tilewright random`: writes files of test data.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>

#include "cli/builtin.h"
#include "cli/command.h"
#include "cli/tensor_file.h"
#include "support/check.h"

namespace tilewright::cli {
namespace {

struct RandomOptions {
    std::string out, dtype;
    std::vector<std::string> shape;
    std::string range;
    std::int64_t documents = 0;
    bool starts = false;
    std::uint32_t seed = 0;
};

/// Integers, uniform in [low, high).
Tensor random_integers(const RandomOptions& options, DType dtype, const Tensor::Dims& shape) {
    std::vector<std::int64_t> range = {0, dtype == boolean ? 2 : 100};
    if (!options.range.empty())
        range = parse_integers("random", "--range LOW,HIGH", options.range, 2, 2);
    // Only values that i64 holds, because elements are set through i64.
    const int bits = 8 * size_of(dtype) - (!is_signed(dtype) ? 0 : 1);
    const std::int64_t most = dtype == boolean ? 1 : bits >= 63 ? INT64_MAX : (1LL << bits) - 1;
    const std::int64_t least = dtype == boolean || !is_signed(dtype) ? 0 : -most - 1;
    if (range[0] >= range[1] || range[0] < least || range[1] - 1 > most)
        user_error("random", "expected --range LOW,HIGH with {} <= LOW < HIGH <= {} + 1 but got {}",
                   least, most, options.range);
    const std::uint64_t width =
        static_cast<std::uint64_t>(range[1]) - static_cast<std::uint64_t>(range[0]);
    std::mt19937_64 random(options.seed);
    std::vector<std::int64_t> values(Tensor::zeros(u8, shape).size());
    for (std::int64_t& value : values)
        value = static_cast<std::int64_t>(static_cast<std::uint64_t>(range[0]) + random() % width);
    return Tensor::from_vector(values, shape, i64).to(dtype);
}

/// Along the last dimension, ids 0, 0, ..., 1, 1, ... of documents with random lengths of at least
/// 1; or the positions where those begin, and the total length.
Tensor random_documents(const RandomOptions& options, DType dtype, Tensor::Dims shape) {
    const std::int64_t length = shape.back(), count = options.documents;
    if (count < 1 || count > length)
        user_error("random", "expected --documents of 1 to the last dimension, {}, but got {}",
                   length, count);
    if (options.starts && shape.size() != 1)
        user_error("random", "expected --shape TOTAL with --cu-seqlens but got ({})",
                   fmt::join(shape, ", "));
    std::int64_t rows = 1;
    for (std::size_t d = 0; d + 1 < shape.size(); ++d) rows *= shape[d];
    std::mt19937_64 random(options.seed);
    std::vector<std::int64_t> values;
    for (std::int64_t row = 0; row < rows; ++row) {
        std::set<std::int64_t> starts = {0, length};
        while (std::ssize(starts) < count + 1)
            starts.insert(
                1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(length - 1)));
        if (options.starts) {
            values.assign(starts.begin(), starts.end());
            continue;
        }
        std::int64_t id = -1;
        for (std::int64_t i = 0; i < length; ++i)
            values.push_back(id += starts.contains(i) ? 1 : 0);
    }
    if (options.starts) shape = {count + 1};
    return Tensor::from_vector(values, shape, i64).to(dtype);
}

Tensor random_tensor(const RandomOptions& options, const Tensor::Dims& shape) {
    const bool documents = options.documents != 0;
    const std::string text = !options.dtype.empty() ? options.dtype : documents ? "i32" : "f32";
    const std::optional<DType> dtype = parse_dtype(text);
    if (options.starts && !documents)
        user_error("random", "expected --documents with --cu-seqlens but it was left out");
    if (documents) {
        if (!options.range.empty())
            user_error("random", "expected --documents or --range but got both");
        if (!dtype || !is_integer(*dtype) || size_of(*dtype) < 4)
            user_error("random",
                       "expected --dtype of i32, i64, u32 or u64 with --documents but "
                       "got {}",
                       text);
        return random_documents(options, *dtype, shape);
    }
    if (dtype && (is_integer(*dtype) || *dtype == boolean))
        return random_integers(options, *dtype, shape);
    if (!dtype || size_of(*dtype) == 1)
        user_error("random",
                   "expected --dtype of f32, f64, f16, bf16, bool or an integer type, as "
                   "i32, but got {}",
                   text);
    if (!options.range.empty())
        user_error("random", "expected --range with an integer --dtype but got {}", text);
    return random_values(*dtype, shape, options.seed);
}

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
    const Tensor tensor = random_tensor(options, shape);
    check_outputs({{options.out, "random", tensor.dtype()}}, &console.out);
    save_tensors({{options.out, "random", tensor}}, &console.out);
    console.notes(use_standard_output({options.out}))
        << fmt::format("wrote {}: {}\n", options.out, tensor.type_name());
}

}  // namespace

void add_random(CLI::App& app, Console& console) {
    auto options = std::make_shared<RandomOptions>();
    CLI::App* command = app.add_subcommand(
        "random", "a file of repeatable random values, integers or document ids");
    command
        ->add_option("--out", options->out,
                     "FILE.npy, FILE.safetensors[:NAME] (added to what is there), - (.npy) or "
                     "-:NAME (.safetensors) for standard output")
        ->type_name("FILE")
        ->required();
    command->add_option("--shape", options->shape, "of the array, as 1,8,4Ki,64")
        ->type_name("N,...")
        ->required();
    command
        ->add_option("--dtype", options->dtype,
                     "f32, f64, f16, bf16 (uniform in [-1, 1)), bool, i8 to i64, u8 to u64 [f32; "
                     "i32 with --documents]")
        ->type_name("TYPE");
    command->add_option("--range", options->range, "integers are uniform in [LOW, HIGH) [0,100]")
        ->type_name("LOW,HIGH");
    add_size(*command, "--documents", options->documents,
             "ids 0 to N - 1, ascending along the last dimension, of documents of random lengths");
    command->add_flag("--cu-seqlens", options->starts,
                      "where those documents begin, and the total length, instead of ids: (N + 1)");
    command->add_option("--seed", options->seed, "of the generator; equal seeds give equal values")
        ->type_name("N")
        ->check(integer_in(0, UINT32_MAX))
        ->capture_default_str();
    command->callback([options, &console] { make_random(*options, console); });
}

}  // namespace tilewright::cli
