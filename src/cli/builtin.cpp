// Built-in programs by name.
#include "cli/builtin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>

#include "attention/tiles/backward.h"
#include "attention/tiles/decode.h"
#include "attention/tiles/forward.h"
#include "cli/softmax.h"
#include "cli/tensor_file.h"
#include "mod/traced.h"
#include "norm/programs.h"
#include "support/check.h"
#include "support/integer.h"
#include "tilewright/system.h"

namespace tilewright::cli {
namespace {

/// Attention with 8 heads of `queries` x `dim` elements, on a GPU with the shared memory that all
/// have from SM80 on.
attn::tiles::GpuProblem gpu_problem(DType dtype, std::int64_t dim, std::int64_t queries) {
    return {.dtype = dtype,
            .heads = 8,
            .head_dim = dim,
            .value_dim = dim,
            .query_length = queries,
            .kv_length = 1024,
            .shared_bytes = 99 * 1024};
}

/// Options of attention with 8 heads of 1024 x `dim` elements, with the blocks that its calls use.
attn::tiles::Options attention_options(DType dtype, std::int64_t dim, bool tested, bool backward,
                                       bool gpu) {
    attn::tiles::Options options{.scale = 1 / std::sqrt(static_cast<double>(dim))};
    if (!gpu) return options;
    options.narrow_inputs = size_of(dtype) == 2;
    attn::tiles::GpuProblem problem = gpu_problem(dtype, dim, 1024);
    problem.tested = tested;
    attn::tiles::use_gpu_blocks(options, problem);
    if (backward) attn::tiles::use_gpu_backward_blocks(options, problem);
    return options;
}

Builtin attention_builtin(DType dtype, bool backward, bool gpu) {
    const Tensor x = Tensor::zeros(dtype, {1, 8, 1024, 64});
    const Tensor row = Tensor::zeros(dtype == f64 ? f64 : f32, {1, 8, 1024});
    attn::tiles::Options options = attention_options(dtype, 64, false, backward, gpu);
    options.causal = true;
    Builtin result = backward
                         ? Builtin{attn::tiles::backward(options, {}, {}), {x, x, x, x, row, row}}
                         : Builtin{attn::tiles::forward(options, {}, true), {x, x, x}};
    result.inputs.resize(result.call.options().in.size());
    if (backward) add_blocks(result, options, {});
    return result;
}

/// The programs of the backward pass for warpgroups, in blocks that warps hold, too.
Builtin separate_builtin(DType dtype, bool keys) {
    const Tensor x = Tensor::zeros(dtype, {1, 8, 1024, 64});
    const Tensor row = Tensor::zeros(dtype == f64 ? f64 : f32, {1, 8, 1024});
    const attn::tiles::Options options{.scale = 1.0 / 8,
                                       .causal = true,
                                       .block_q = 64,
                                       .block_k = 64,
                                       .separate = true,
                                       .step_q = 32,
                                       .step_k = 32,
                                       .gpu = true};
    Builtin result{keys ? attn::tiles::backward_of_keys(options, {}, {})
                        : attn::tiles::backward_of_queries(options, {}, {}),
                   {x, x, x, x, row, row}};
    result.inputs.resize(result.call.options().in.size());
    return result;
}

Builtin decode_builtin(DType dtype, bool gpu) {
    const Tensor kv = Tensor::zeros(dtype, {1, 8, 4096, 128});
    attn::tiles::Options options{.scale = 1 / std::sqrt(128.0), .group = 4};
    if (gpu) {
        const attn::tiles::GpuProblem problem = gpu_problem(dtype, 128, 1);
        attn::tiles::use_gpu_blocks(options, problem);
        attn::tiles::use_gpu_decode_blocks(options, problem, options.group);
    }
    Builtin result{attn::tiles::decode(options, {}),
                   {Tensor::zeros(dtype, {1, 8, 4, 128}), kv, kv}};
    result.inputs.resize(result.call.options().in.size());
    return result;
}

Builtin norm_builtin(DType dtype, bool layer, bool backward) {
    const Tensor x = Tensor::zeros(dtype, {256, 4096}), weight = Tensor::zeros(dtype, {4096});
    const Tensor row = Tensor::zeros(dtype == f64 ? f64 : f32, {256});
    const norm::Options options{.layer = layer,
                                .weight = true,
                                .bias = layer,
                                .residual = false,
                                .n = 4096,
                                .eps = 1e-5,
                                .output = dtype};
    const Tensor optional = layer ? weight : Tensor();
    if (backward) return {norm::backward(options), {x, x, row, layer ? row : Tensor(), weight, {}}};
    return {norm::forward(options), {x, weight, optional, {}}};
}

const std::map<std::string, std::function<Builtin(DType, bool)>>& table() {
    static const std::map<std::string, std::function<Builtin(DType, bool)>> programs = {
        {"attention", [](DType t, bool gpu) { return attention_builtin(t, false, gpu); }},
        {"attention_backward", [](DType t, bool gpu) { return attention_builtin(t, true, gpu); }},
        {"attention_backward_keys", [](DType t, bool) { return separate_builtin(t, true); }},
        {"attention_backward_queries", [](DType t, bool) { return separate_builtin(t, false); }},
        {"decode", [](DType t, bool gpu) { return decode_builtin(t, gpu); }},
        {"layer_norm", [](DType t, bool) { return norm_builtin(t, true, false); }},
        {"layer_norm_backward", [](DType t, bool) { return norm_builtin(t, true, true); }},
        {"matmul",
         [](DType t, bool) {
             const Tensor x = Tensor::zeros(t, {1024, 1024});
             return Builtin{matmul(1024, 1024, 1024), {x, x}};
         }},
        {"rms_norm", [](DType t, bool) { return norm_builtin(t, false, false); }},
        {"rms_norm_backward", [](DType t, bool) { return norm_builtin(t, false, true); }},
        {"softmax",
         [](DType t, bool gpu) {
             return Builtin{softmax(4096, gpu), {Tensor::zeros(t, {256, 4096})}};
         }},
    };
    return programs;
}

/// A block size of at most `most` that divides `extent` into equal parts of whole vectors.
std::int64_t equal_block(std::int64_t extent, std::int64_t most) {
    constexpr std::int64_t kMultiple = 64;
    if (extent <= kMultiple) return std::max<std::int64_t>(extent, 1);
    const std::int64_t parts = (extent + most - 1) / most;
    return (extent + parts * kMultiple - 1) / (parts * kMultiple) * kMultiple;
}

}  // namespace

Builtin flex_builtin(const char* op, DType dtype, const ModTexts& texts, bool backward, bool gpu) {
    const Tensor x = Tensor::zeros(dtype, {1, 8, 1024, 64});
    const DType sums = dtype == f64 ? f64 : f32;
    const Tensor row = Tensor::zeros(sums, {1, 8, 1024});
    const attn::tiles::Options options = attention_options(dtype, 64, true, backward, gpu);
    attn::tiles::Features features;
    std::vector<Tensor> extras(attn::tiles::Extra::count);
    extras[attn::tiles::Extra::origin] = Tensor::zeros(i64, {4});
    attn::tiles::ScoreDerivative derivative;
    std::vector<Mod> mods;
    const auto inlined = [&](const std::string& text, Mod::Kind kind) {
        const Mod parsed = parse_mod(text, texts.arrays, kind);
        mods.push_back(parsed);
        const mod::Traced& traced = mod::trace(parsed, sums);
        for (const Capture& capture : traced.captures) extras.push_back(capture.tensor());
        return attn::tiles::InlinedMod{traced.function, {}, traced.text};
    };
    if (!texts.score.empty()) {
        features.score = inlined(texts.score, Mod::Kind::score);
        if (backward) {
            derivative = attn::tiles::differentiate_score(
                features.score, std::vector<bool>(features.score.captures()), {}, {});
        }
    }
    if (!texts.mask.empty()) features.mask = inlined(texts.mask, Mod::Kind::mask);
    expect_bindings_read(op, texts.arrays, mods);
    if (!features.positions()) extras[attn::tiles::Extra::origin] = {};
    Builtin result =
        backward ? Builtin{attn::tiles::backward(options, features, derivative),
                           {x, x, x, x, row, row, {}, {}}}
                 : Builtin{attn::tiles::forward(options, features, true), {x, x, x, {}, {}, {}}};
    result.inputs.insert(result.inputs.end(), extras.begin(), extras.end());
    if (backward) add_blocks(result, options, features);
    return result;
}

Call matmul(std::int64_t m, std::int64_t n, std::int64_t k) {
    // A program packs its rows of x and columns of y once, so large blocks pack least. But every
    // thread needs many programs, because threads that share a core or a host take longer.
    constexpr std::int64_t kProgramsOfThread = 8, kLargest = 512, kSmallest = 128;
    std::int64_t block_m = equal_block(m, kLargest), block_n = equal_block(n, kLargest);
    const auto blocks = [](std::int64_t size, std::int64_t block) {
        return (size + block - 1) / block;
    };
    while (blocks(m, block_m) * blocks(n, block_n) < kProgramsOfThread * num_threads()) {
        std::int64_t& larger = block_m >= block_n ? block_m : block_n;
        if (larger <= kSmallest) break;
        larger = equal_block(larger == block_m ? m : n, larger / 2);
    }
    CallOptions options;
    options.grid = {blocks(m, block_m), blocks(n, block_n)};
    options.in = {BlockSpec({block_m, k}, [](auto i, auto) { return block(i, 0); }),
                  BlockSpec({k, block_n}, [](auto, auto j) { return block(0, j); })};
    options.out = {BlockSpec({block_m, block_n}, [](auto i, auto j) { return block(i, j); })};
    options.out_type = [m, n](std::span<const Tensor> in) {
        // Products of bytes do not fit in bytes.
        const bool bytes = size_of(in[0].dtype()) == 1;
        const DType dtype = !bytes ? in[0].dtype() : is_float(in[0].dtype()) ? f32 : i32;
        return std::vector<TensorType>{{dtype, {m, n}}};
    };
    return call(kernel("matmul", {"x", "y", "z"},
                       [](Ref x, Ref y, Ref z) {
                           z.store(dot(x.load({.other = 0}), y.load({.other = 0})).to(z.dtype()));
                       }),
                options);
}

Call fixed(const Call& call) {
    CallOptions options = call.options();
    options.dynamic.clear();
    return Call(call.kernel(), options);
}

void add_blocks(Builtin& backward, const attn::tiles::Options& options,
                const attn::tiles::Features& features) {
    constexpr std::size_t kFirstExtra = 8;
    if (!attn::tiles::looks_for_infinities(options, features)) return;
    const Tensor& query = backward.inputs[0];
    backward.inputs[kFirstExtra + attn::tiles::Extra::not_finite] = Tensor::zeros(
        boolean, {query.shape()[0], query.shape()[1], ceil_div(query.shape()[2], options.block_q)});
}

std::vector<std::string> builtin_names() {
    std::vector<std::string> names;
    for (const auto& [name, make] : table()) names.push_back(name);
    return names;
}

Builtin builtin(const char* op, const std::string& name, DType dtype, bool gpu) {
    const auto found = table().find(name);
    if (found == table().end())
        user_error(
            op,
            "expected a built-in program (flex, flex_backward, {}) or a file of IR text but got "
            "\"{}\"",
            fmt::join(builtin_names(), ", "), name);
    return found->second(dtype, gpu);
}

DType float_dtype(const char* op, const std::string& text) {
    const std::optional<DType> dtype = parse_dtype(text);
    if (!dtype || (*dtype != f32 && *dtype != f64 && *dtype != f16 && *dtype != bf16))
        user_error(op, "expected --dtype f32, f64, f16 or bf16 but got \"{}\"", text);
    return *dtype;
}

Tensor random_values(DType dtype, Tensor::Dims shape, std::uint32_t seed) {
    const Tensor result = Tensor::empty(f32, std::move(shape));
    float* data = result.data<float>();
    std::uint32_t state = seed * 747796405u + 2891336453u;
    for (std::int64_t i = 0; i < result.size(); ++i) {
        state = state * 1664525u + 1013904223u;
        data[i] = static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1.0f;
        if (!is_float(dtype)) data[i] = std::floor(data[i] * 128);
        if (dtype == u8) data[i] += 128;
    }
    return result.to(dtype);
}

}  // namespace tilewright::cli
