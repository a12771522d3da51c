// Tile programs of RMSNorm and LayerNorm.
#include "norm/programs.h"

#include <algorithm>
#include <functional>

namespace tilewright::norm {
namespace {

constexpr std::int64_t kLongestTile = 8192;  ///< rows up to this length are one tile
constexpr std::int64_t kChunk = 4096;        ///< longer ones are read in chunks, once per pass
constexpr std::int64_t kRowsPerProgram = 8;

DType accumulator(DType dtype) {
    return dtype == f64 ? f64 : f32;
}

/// A row as one tile or as a loop over chunks.
class Row {
  public:
    explicit Row(std::int64_t n) : n_(n), chunk_(n <= kLongestTile ? n : kChunk) {}

    /// Sum over the row of what `f` gives for each chunk. `f` takes the slice of a chunk; lanes
    /// past the end of the row do not count.
    Tile sum(DType dtype, const std::function<Tile(Slice)>& f) const {
        if (chunk_ == n_) return tilewright::sum(f(ds(0, n_)));
        const Tile zero = constant(0, dtype);
        return for_loop(0, (n_ + chunk_ - 1) / chunk_, zero, [&](Tile i, Tile total) {
            Tile values = f(ds(i * chunk_, chunk_));
            if (n_ % chunk_ != 0) values = where(i * chunk_ + iota(chunk_, i64) < n_, values, zero);
            return total + tilewright::sum(values);
        });
    }
    /// Runs `f` for every chunk.
    void each(const std::function<void(Slice)>& f) const {
        if (chunk_ == n_) return f(ds(0, n_));
        for_loop(0, (n_ + chunk_ - 1) / chunk_, [&](Tile i) { f(ds(i * chunk_, chunk_)); });
    }

  private:
    std::int64_t n_, chunk_;
};

void forward_program(const Options& o, std::span<const Ref> refs) {
    const Ref x = refs[0], weight = refs[1], bias = refs[2], residual = refs[3], y = refs[4],
              inverse_ref = refs[5];
    const Ref mean_ref = o.layer ? refs[6] : Ref();
    const Ref sum_ref = o.residual ? refs.back() : x;
    const DType sums = accumulator(x.dtype());
    const Row row(o.n);
    const auto count = static_cast<double>(o.n);
    const Tile first = program_id(0) * kRowsPerProgram;
    for_loop(first, minimum(first + kRowsPerProgram, x.extent(0)), [&](Tile r) {
        if (o.residual)
            row.each([&](Slice part) {
                const Tile total = x.at(r, part).load({.other = 0}).to(sums) +
                                   residual.at(r, part).load({.other = 0}).to(sums);
                sum_ref.at(r, part).store(total.to(x.dtype()));
            });
        const auto value = [&](Slice part) {
            return sum_ref.at(r, part).load({.other = 0}).to(sums);
        };
        Tile mean;
        if (o.layer) mean = row.sum(sums, value) / count;
        const auto centred = [&](Slice part) { return o.layer ? value(part) - mean : value(part); };
        const Tile squares = row.sum(sums, [&](Slice part) { return square(centred(part)); });
        const Tile inverse = rsqrt(squares / count + o.eps);
        row.each([&](Slice part) {
            Tile result = centred(part) * inverse;
            if (o.weight) result *= weight.at(part).load({.other = 0}).to(sums);
            if (o.bias) result += bias.at(part).load({.other = 0}).to(sums);
            y.at(r, part).store(result.to(y.dtype()));
        });
        inverse_ref.at(r).store(inverse);
        if (o.layer) mean_ref.at(r).store(mean);
    });
}

void backward_program(const Options& o, std::span<const Ref> refs) {
    const Ref x = refs[0], dy = refs[1], inverse_ref = refs[2], mean_ref = refs[3],
              weight = refs[4], dsum = refs[5], dx = refs[6];
    const Ref d_weight = o.weight ? refs[7] : Ref(), d_bias = o.bias ? refs.back() : Ref();
    const DType sums = accumulator(x.dtype());
    const Row row(o.n);
    const auto count = static_cast<double>(o.n);
    row.each([&](Slice part) {
        if (o.weight) d_weight.at(part).store(zeros({part.size}, sums));
        if (o.bias) d_bias.at(part).store(zeros({part.size}, sums));
    });
    const Tile rows = x.extent(0), per_program = cdiv(rows, num_programs(0));
    const Tile first = program_id(0) * per_program;
    for_loop(first, minimum(first + per_program, rows), [&](Tile r) {
        const Tile inverse = inverse_ref.at(r).load();
        Tile mean;
        if (o.layer) mean = mean_ref.at(r).load();
        const auto normal = [&](Slice part) {
            const Tile value = x.at(r, part).load({.other = 0}).to(sums);
            return (o.layer ? value - mean : value) * inverse;
        };
        const auto scaled = [&](Slice part) {  // dy * weight
            const Tile gradient = dy.at(r, part).load({.other = 0}).to(sums);
            return o.weight ? gradient * weight.at(part).load({.other = 0}).to(sums) : gradient;
        };
        Tile mean_scaled;
        if (o.layer) mean_scaled = row.sum(sums, scaled) / count;
        const Tile mean_product =
            row.sum(sums, [&](Slice part) { return scaled(part) * normal(part); }) / count;
        row.each([&](Slice part) {
            const Tile n = normal(part);
            Tile result = scaled(part) - n * mean_product;
            if (o.layer) result -= mean_scaled;
            result *= inverse;
            if (o.residual) result += dsum.at(r, part).load({.other = 0}).to(sums);
            dx.at(r, part).store(result.to(dx.dtype()));
            if (!o.weight && !o.bias) return;
            const Tile gradient = dy.at(r, part).load({.other = 0}).to(sums);
            if (o.weight)
                d_weight.at(part).store(fma(gradient, n, d_weight.at(part).load({.other = 0})));
            if (o.bias) d_bias.at(part).store(d_bias.at(part).load({.other = 0}) + gradient);
        });
    });
}

BlockSpec given(bool present) {
    return present ? BlockSpec() : BlockSpec::absent();
}

}  // namespace

Call forward(const Options& o) {
    CallOptions call_options;
    call_options.grid = [](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{(in[0].dim(0) + kRowsPerProgram - 1) / kRowsPerProgram};
    };
    call_options.in = {BlockSpec(), given(o.weight), given(o.bias), given(o.residual)};
    call_options.out_type = [o](std::span<const Tensor> in) {
        const TensorType row{accumulator(in[0].dtype()), {in[0].dim(0)}};
        std::vector<TensorType> types{{o.output, in[0].shape()}, row};
        if (o.layer) types.push_back(row);
        if (o.residual) types.push_back({in[0].dtype(), in[0].shape()});
        return types;
    };
    call_options.dynamic = {{0, {0}}};
    if (o.residual) call_options.dynamic[3] = {0};
    call_options.interpret = o.interpret;
    return call(kernel(o.layer ? "layer_norm" : "rms_norm",
                       [o](std::span<const Ref> refs) { forward_program(o, refs); }),
                call_options);
}

Call backward(const Options& o) {
    const BlockSpec part({squeezed, all}, [](auto i) { return block(i, 0); });
    CallOptions call_options;
    call_options.grid = [](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{std::min(kBackwardParts, in[0].dim(0))};
    };
    call_options.in = {BlockSpec(),    BlockSpec(),     BlockSpec(),
                       given(o.layer), given(o.weight), given(o.residual)};
    call_options.out = {BlockSpec()};
    if (o.weight) call_options.out.push_back(part);
    if (o.bias) call_options.out.push_back(part);
    call_options.out_type = [o](std::span<const Tensor> in) {
        const TensorType parts{accumulator(in[0].dtype()),
                               {std::min(kBackwardParts, in[0].dim(0)), o.n}};
        std::vector<TensorType> types{{in[0].dtype(), in[0].shape()}};
        if (o.weight) types.push_back(parts);
        if (o.bias) types.push_back(parts);
        return types;
    };
    call_options.dynamic = {{0, {0}}, {1, {0}}, {2, {0}}};
    if (o.layer) call_options.dynamic[3] = {0};
    if (o.residual) call_options.dynamic[5] = {0};
    call_options.interpret = o.interpret;
    return call(kernel(o.layer ? "layer_norm_backward" : "rms_norm_backward",
                       [o](std::span<const Ref> refs) { backward_program(o, refs); }),
                call_options);
}

Call sum_parts(DType dtype, bool interpret) {
    constexpr std::int64_t kBlock = 1024;
    CallOptions call_options;
    call_options.grid = [](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{(in[0].dim(1) + kBlock - 1) / kBlock};
    };
    call_options.in = {BlockSpec({all, kBlock}, [](auto i) { return block(0, i); })};
    call_options.out = {BlockSpec({kBlock}, [](auto i) { return block(i); })};
    call_options.out_type = [dtype](std::span<const Tensor> in) {
        return std::vector<TensorType>{{dtype, {in[0].dim(1)}}};
    };
    call_options.interpret = interpret;
    return call(kernel("norm_sum_parts", {"parts", "gradient"},
                       [](Ref parts, Ref gradient) {
                           const Tile total =
                               for_loop(1, parts.extent(0), parts.at(0).load(),
                                        [&](Tile i, Tile sum) { return sum + parts.at(i).load(); });
                           gradient.store(total.to(gradient.dtype()));
                       }),
                call_options);
}

}  // namespace tilewright::norm
