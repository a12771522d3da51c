// The norms on tensors: checks arguments, flattens tensors to rows, runs the programs.
#include "tilewright/norm.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <tuple>

#include "norm/programs.h"
#include "run/call_cache.h"
#include "run/machine.h"
#include "run/overlap.h"
#include "support/check.h"
#include "support/debug_log.h"

namespace tilewright {
namespace norm {
namespace {

using run::cached;

void check_float(const char* op, const char* argument, const Tensor& tensor) {
    const DType dtype = tensor.dtype();
    if (dtype != f32 && dtype != f64 && dtype != f16 && dtype != bf16)
        user_error(op, "expected {} of f32, f64, f16 or bf16 but got {}", argument,
                   tensor.type_name());
}

void expect(const char* op, const char* argument, const Tensor& tensor, DType dtype,
            const Tensor::Dims& shape) {
    if (tensor.defined() && tensor.dtype() == dtype && tensor.shape() == shape) return;
    user_error(op, "expected {} of type {} but got {}", argument,
               to_string(TensorType{dtype, shape}),
               tensor.defined() ? tensor.type_name() : "nothing");
}

/// x as (rows, n): a view if its strides allow that.
Tensor as_rows(const Tensor& x, std::int64_t n) {
    if (x.rank() == 2 && x.dim(1) == n && (n == 1 || x.strides()[1] == 1)) return x;
    const std::int64_t rows = n == 0 ? 0 : x.size() / n;
    if (!x.is_contiguous())
        debug_log("norm", "slow path: {} is copied, since its rows are not contiguous",
                  x.type_name());
    return x.contiguous().reshape({rows, n});
}

/// The shape of x without its normalised dimensions.
Tensor::Dims row_shape(const Tensor& x, int normalised) {
    return {x.shape().begin(), x.shape().end() - normalised};
}

std::int64_t num_rows(const Tensor::Dims& rows) {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{1}, std::multiplies<>());
}

/// Checks the arguments that forward and backward share.
Options check(const char* op, bool layer, const Tensor& x, const Tensor& weight, const Tensor& bias,
              const NormOptions& options) {
    if (!x.defined()) user_error(op, "expected x but it was left out");
    check_float(op, "x", x);
    if (x.rank() < 1) user_error(op, "expected x of rank 1 or more but got {}", x.type_name());
    Options o;
    o.layer = layer;
    o.weight = weight.defined();
    o.bias = bias.defined();
    o.eps = options.eps;
    o.interpret = options.checked;
    o.output = o.weight ? weight.dtype() : x.dtype();
    o.n = x.dim(-1);
    if (o.weight) {
        check_float(op, "weight", weight);
        const int rank = weight.rank();
        if (rank < 1 || rank > x.rank() ||
            !std::equal(weight.shape().begin(), weight.shape().end(), x.shape().end() - rank))
            user_error(op, "expected a weight whose shape ends that of x, {}, but got {}",
                       x.type_name(), weight.type_name());
        o.n = weight.size();
    }
    if (o.bias) {
        if (!o.weight) user_error(op, "expected a weight with the bias but got none");
        expect(op, "bias", bias, weight.dtype(), weight.shape());
    }
    if (!(options.eps >= 0)) user_error(op, "expected eps of at least 0 but got {}", options.eps);
    return o;
}

/// On a CPU, an iteration of a loop costs as much as some thousand elements, and a program as much
/// as many iterations, which within one program prefetch what the next one reads. Yet there must be
/// enough programs for all cores. How a row is summed depends only on its length.
void tile_rows(Options& o, std::int64_t rows) {
    constexpr std::int64_t kElements = 4096, kProgram = 1 << 18, kPrograms = 512;
    if (o.n > kLongestTile) return;
    while (o.tile_rows < 8 && 2 * o.tile_rows * o.n <= kElements) o.tile_rows *= 2;
    while (4 * o.rows_per_program * o.n <= kProgram && 4 * o.rows_per_program * kPrograms <= rows)
        o.rows_per_program *= 4;
}

/// How many rows share a tile of this many elements: a power of two.
std::int64_t rows_of_tile(std::int64_t n, std::int64_t elements) {
    constexpr std::int64_t kMost = 64;
    std::int64_t rows = 1;
    while (rows < kMost && 2 * rows * n <= elements) rows *= 2;
    return rows;
}

/// Elements of a tile of a long row on a GPU; a thread block of 16 warps takes such tiles in
/// sequence.
constexpr std::int64_t kGpuTile = 4096;
constexpr int kGpuWarps = 16;

/// On a GPU, a tile has several short rows, in two warps; longer rows have a program each, with few
/// warps: blocks that share a multiprocessor hide each other's latency.
void use_gpu_tiles_forward(Options& o, DType x, std::int64_t rows) {
    constexpr std::int64_t kShortTile = 2048, kPrograms = 1024, kManyWarps = 8;
    if (o.n > kLongestTile) return;
    if (o.n < kShortTile / 2 || (o.n < kShortTile && o.layer)) {
        o.num_warps = 2;
        // Measured; the shortest rows need more blocks.
        o.tile_rows = rows_of_tile(o.n, o.n <= kShortTile / 8 ? kShortTile / 2 : kShortTile);
        o.rows_per_program = o.tile_rows * (rows >= 4 * o.tile_rows * kPrograms ? 4 : 1);
        return;
    }
    o.rows_per_program = 1;
    o.num_stages = 1;
    // The more warps join in a sum, the longer they wait, and LayerNorm has two sums.
    std::int64_t of_warp = 4096 / size_of(x);
    if (!o.layer || o.n <= kShortTile) of_warp = std::min<std::int64_t>(of_warp, 1024);
    o.num_warps = 1;
    while (o.num_warps < kManyWarps && o.num_warps * of_warp < o.n) o.num_warps *= 2;
    if (o.n > 2 * kGpuTile && o.n % kGpuTile == 0 && o.n <= kLongestTile) o.tile = kGpuTile;
    if (o.n > 4 * kGpuTile) o.num_warps = kGpuWarps;
}

/// On a GPU: where the sums over rows are kept, and by how many programs. False if a row is too
/// long for one program and must be split into pieces.
bool use_gpu_tiles_backward(Options& o, DType x, const Device& device) {
    const std::int64_t num_sums = (o.weight ? 1 : 0) + (o.bias ? 1 : 0);
    // The longest row that a thread block's registers hold next to the sums of one or two
    // gradients.
    const std::int64_t longest = o.bias ? 8192 : 16384;
    // The sums, and 1 KiB to exchange partial ones between threads.
    const std::int64_t bytes = num_sums * o.n * 4 + 1024;
    const bool in_tiles = o.n > 2 * kGpuTile && o.n % kGpuTile == 0 && o.n <= kLongestTile;
    constexpr std::int64_t kRowBytes = 65536;  // of x, which stays in registers
    const bool in_scratch = in_tiles && x != f64 && o.n > longest &&
                            o.n * size_of(x) <= kRowBytes &&
                            bytes <= run::shared_bytes_per_block(device.index);
    if (o.n > longest && !in_scratch) return false;
    // About one program per multiprocessor of a large GPU, or several smaller ones.
    o.parts = 132;
    if (o.n <= kGpuTile / 2) {
        o.num_warps = 4;  // each of which holds whole rows
        o.tile_rows = rows_of_tile(o.n, kGpuTile / (x == f64 ? 4 : 1));
        if (o.n > 256) o.parts *= 2;
    } else if (o.n <= kGpuTile && !o.bias) {
        o.num_warps = 8;
        o.parts *= 2;
    }
    if (in_tiles) {
        o.tile = kGpuTile;
        o.num_warps = kGpuWarps;
        if (in_scratch) o.scratch_vector = 16 / size_of(x);
    }
    return true;
}

Tensor flat(const Tensor& x) {
    return x.defined() ? x.contiguous().reshape({x.size()}) : Tensor();
}

/// Runs into `outputs`, or into new tensors if there are none.
std::vector<Tensor> launch(const Call& call, const std::vector<Tensor>& inputs,
                           std::vector<Tensor> outputs) {
    if (outputs.empty()) return call.run(inputs);
    call.into(outputs, inputs);
    return outputs;
}

/// A caller's tensor to write to, in the shape that the programs use.
Tensor destination(const char* op, const char* argument, const Tensor& tensor, DType dtype,
                   const Tensor::Dims& shape, const Tensor::Dims& as) {
    expect(op, argument, tensor, dtype, shape);
    if (!tensor.is_contiguous())
        user_error(op, "expected {} without gaps but got strides", argument);
    return tensor.reshape(as);
}

NormOutput run_forward(const char* op, bool layer, const Tensor& x, const Tensor& weight,
                       const Tensor& bias, const NormOptions& options, const NormOutput* into) {
    Options o = check(op, layer, x, weight, bias, options);
    o.residual = options.residual.defined();
    if (o.residual) expect(op, "residual", options.residual, x.dtype(), x.shape());
    const Tensor::Dims rows = row_shape(x, o.weight ? weight.rank() : 1);
    const DType statistics = x.dtype() == f64 ? f64 : f32;
    const std::int64_t count = num_rows(rows);
    std::vector<Tensor> given;
    Tensor given_sum;
    if (into) {
        const auto add = [&](const char* name, const Tensor& tensor, DType dtype,
                             const Tensor::Dims& shape, const Tensor::Dims& as) {
            given.push_back(destination(op, name, tensor, dtype, shape, as));
        };
        add("out.y", into->y, o.output, x.shape(), {count, o.n});
        add("out.inverse_deviation", into->inverse_deviation, statistics, rows, {count});
        if (layer) add("out.mean", into->mean, statistics, rows, {count});
        if (o.residual)
            given_sum = destination(op, "out.sum", into->sum, x.dtype(), x.shape(), {count, o.n});
        const run::Named targets[] = {{"out.y", into->y},
                                      {"out.inverse_deviation", into->inverse_deviation},
                                      {"out.mean", layer ? into->mean : Tensor()},
                                      {"out.sum", given_sum}};
        const run::Named sources[] = {
            {"x", x}, {"weight", weight}, {"bias", bias}, {"residual", options.residual}};
        run::check_targets(op, targets, sources);
    }
    if (x.size() == 0) {
        NormOutput result = {Tensor::empty(o.output, x.shape(), x.device()), x,
                             Tensor::empty(statistics, rows, x.device()),
                             layer ? Tensor::empty(statistics, rows, x.device()) : Tensor()};
        if (into) result = *into;
        result.inverse_deviation.fill(1 / std::sqrt(o.eps));
        if (layer) result.mean.fill(0);
        return result;
    }
    if (x.device().kind == Device::Kind::cpu) {
        tile_rows(o, count);
    } else {
        use_gpu_tiles_forward(o, x.dtype(), count);
    }
    const Tensor residual = o.residual ? as_rows(options.residual, o.n) : Tensor();
    std::vector<Tensor> outputs;
    if (o.n <= kLongestTile) {
        if (given_sum.defined()) given.push_back(given_sum);
        const Call call = cached(o, [&] { return forward(o); });
        outputs = launch(call, {as_rows(x, o.n), flat(weight), flat(bias), residual}, given);
    } else {
        std::vector<Tensor> parts_given;
        const TensorType type{statistics, {count, pieces(o)}};
        if (given_sum.defined()) {
            parts_given.assign(layer ? 2 : 1, Tensor());
            for (Tensor& part : parts_given)
                part = Tensor::empty(type.dtype, type.shape, x.device());
            parts_given.push_back(given_sum);
        }
        const Call first = cached(o, [&] { return row_statistics(o); });
        const std::vector<Tensor> parts = launch(first, {as_rows(x, o.n), residual}, parts_given);
        const Tensor sum = o.residual ? parts.back() : as_rows(x, o.n);
        const Call second = cached(o, [&] { return forward_long(o); });
        outputs =
            launch(second,
                   {sum, flat(weight), flat(bias), Tensor(), parts[0], layer ? parts[1] : Tensor()},
                   given);
        if (o.residual) outputs.push_back(sum);
    }
    NormOutput result;
    result.y = outputs[0].reshape(x.shape());
    result.inverse_deviation = outputs[1].reshape(rows);
    if (layer) result.mean = outputs[2].reshape(rows);
    result.sum = o.residual ? outputs.back().reshape(x.shape()) : x;
    return result;
}

NormGradients run_backward(const char* op, bool layer, const NormOutput& saved,
                           const Tensor& weight, const Tensor& bias, const Tensor& dy,
                           const Tensor& dsum, const NormOptions& options,
                           const NormGradients* into) {
    const Tensor& x = saved.sum;
    Options o = check(op, layer, x, weight, bias, options);
    const bool on_gpu = x.device().kind == Device::Kind::cuda;
    const bool is_long =
        on_gpu ? !use_gpu_tiles_backward(o, x.dtype(), x.device()) : o.n > kLongestTile;
    if (is_long) {
        constexpr std::int64_t kPrograms = 264;
        o.parts = on_gpu ? std::max<std::int64_t>(kPrograms / pieces(o), 1) : 1;
    } else if (!on_gpu) {
        tile_rows(o, x.size() / std::max<std::int64_t>(o.n, 1));
    }
    const DType statistics = x.dtype() == f64 ? f64 : f32;
    const Tensor::Dims rows = row_shape(x, o.weight ? weight.rank() : 1);
    expect(op, "dy", dy, o.output, x.shape());
    expect(op, "forward.inverse_deviation", saved.inverse_deviation, statistics, rows);
    if (layer) expect(op, "forward.mean", saved.mean, statistics, rows);
    o.residual = dsum.defined();
    if (o.residual) expect(op, "dsum", dsum, x.dtype(), x.shape());
    NormGradients result;
    if (into) {
        result = *into;
        const run::Named targets[] = {{"out.x", into->x},
                                      {"out.weight", o.weight ? into->weight : Tensor()},
                                      {"out.bias", o.bias ? into->bias : Tensor()}};
        const run::Named sources[] = {{"forward.sum", x},
                                      {"forward.inverse_deviation", saved.inverse_deviation},
                                      {"forward.mean", saved.mean},
                                      {"weight", weight},
                                      {"bias", bias},
                                      {"dy", dy},
                                      {"dsum", dsum}};
        run::check_targets(op, targets, sources);
    } else {
        result.x = Tensor::empty(x.dtype(), x.shape(), x.device());
        if (o.weight) result.weight = Tensor::zeros(weight.dtype(), weight.shape(), x.device());
        if (o.bias) result.bias = Tensor::zeros(bias.dtype(), bias.shape(), x.device());
    }
    const std::int64_t count = num_rows(rows);
    std::vector<Tensor> outputs = {
        destination(op, "out.x", result.x, x.dtype(), x.shape(), {count, o.n})};
    if (o.weight) {
        outputs.push_back(
            destination(op, "out.weight", result.weight, weight.dtype(), weight.shape(), {o.n}));
    }
    if (o.bias) {
        outputs.push_back(
            destination(op, "out.bias", result.bias, bias.dtype(), bias.shape(), {o.n}));
    }
    if (x.size() == 0) {
        if (o.weight) result.weight.fill(0);
        if (o.bias) result.bias.fill(0);
        return result;
    }
    std::vector<Tensor> inputs = {as_rows(x, o.n), as_rows(dy, o.n), flat(saved.inverse_deviation),
                                  flat(saved.mean), flat(weight)};
    const Tensor added = o.residual ? as_rows(dsum, o.n) : Tensor();
    inputs.push_back(added);
    if (is_long) {
        const Call first = cached(o, [&] { return row_products(o); });
        const std::vector<Tensor> products = first.run({inputs.begin(), inputs.end() - 1});
        inputs.insert(inputs.end(), {products[0], layer ? products[1] : Tensor()});
    }
    const Call call = is_long ? cached(o, [&] { return backward_long(o); })
                              : cached(o, [&] { return backward(o); });
    std::vector<Tensor> parts = {outputs[0]};
    const Tensor::Dims part_shape = {std::min(o.parts, count), o.n};
    while (parts.size() < outputs.size())
        parts.push_back(Tensor::empty(statistics, part_shape, x.device()));
    call.into(parts, inputs);
    for (std::size_t i = 1; i < outputs.size(); ++i) {
        const Call sum = cached(std::tuple(o.output, o.interpret),
                                [&] { return sum_parts(o.output, o.interpret); });
        sum.into({outputs[i]}, {parts[i]});
    }
    return result;
}

}  // namespace
}  // namespace norm

NormOutput rms_norm(const Tensor& x, const Tensor& weight, const NormOptions& options) {
    return norm::run_forward("rms_norm", false, x, weight, {}, options, nullptr);
}

void rms_norm_into(const NormOutput& out, const Tensor& x, const Tensor& weight,
                   const NormOptions& options) {
    norm::run_forward("rms_norm_into", false, x, weight, {}, options, &out);
}

NormOutput layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const NormOptions& options) {
    return norm::run_forward("layer_norm", true, x, weight, bias, options, nullptr);
}

void layer_norm_into(const NormOutput& out, const Tensor& x, const Tensor& weight,
                     const Tensor& bias, const NormOptions& options) {
    norm::run_forward("layer_norm_into", true, x, weight, bias, options, &out);
}

NormGradients rms_norm_backward(const NormOutput& forward, const Tensor& weight, const Tensor& dy,
                                const Tensor& dsum, const NormOptions& options) {
    return norm::run_backward("rms_norm_backward", false, forward, weight, {}, dy, dsum, options,
                              nullptr);
}

void rms_norm_backward_into(const NormGradients& out, const NormOutput& forward,
                            const Tensor& weight, const Tensor& dy, const Tensor& dsum,
                            const NormOptions& options) {
    norm::run_backward("rms_norm_backward_into", false, forward, weight, {}, dy, dsum, options,
                       &out);
}

NormGradients layer_norm_backward(const NormOutput& forward, const Tensor& weight,
                                  const Tensor& bias, const Tensor& dy, const Tensor& dsum,
                                  const NormOptions& options) {
    return norm::run_backward("layer_norm_backward", true, forward, weight, bias, dy, dsum, options,
                              nullptr);
}

void layer_norm_backward_into(const NormGradients& out, const NormOutput& forward,
                              const Tensor& weight, const Tensor& bias, const Tensor& dy,
                              const Tensor& dsum, const NormOptions& options) {
    norm::run_backward("layer_norm_backward_into", true, forward, weight, bias, dy, dsum, options,
                       &out);
}

}  // namespace tilewright
