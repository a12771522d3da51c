// Tile programs of RMSNorm and LayerNorm. On a CPU their passes over rows are functions, which the
// build makes from these programs.
#include "norm/programs.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "support/integer.h"

namespace tilewright::norm {
namespace {

constexpr std::int64_t kPiece = 4096;  ///< a long row is split into pieces of this length

DType accumulator(DType dtype) {
    return dtype == f64 ? f64 : f32;
}

/// Piece `c` of a long row; the last one may extend past the row's end.
Slice piece(const Tile& c) {
    return ds(c * kPiece, kPiece);
}

/// Elements of a row in the type of sums. Lanes past the row's end are 0.
Tile widened(const Ref& view) {
    return view.load({.other = 0}).to(accumulator(view.dtype()));
}

/// The rows of one iteration of a loop: only `r`, or as many short ones as fill a tile.
RefIndex rows_from(const Options& o, const Tile& r) {
    return o.tile_rows == 1 ? RefIndex(r) : RefIndex(ds(r, o.tile_rows));
}

/// The tiles in which a row that is not long is processed.
std::vector<Slice> tiles_of(const Options& o) {
    const std::int64_t length = o.tile > 0 ? o.tile : o.n;
    std::vector<Slice> tiles;
    for (std::int64_t start = 0; start < o.n; start += length) tiles.push_back(ds(start, length));
    return tiles;
}

/// The sum over each row of f over its tiles, in a shape that broadcasts against the rows.
template <typename T, typename F>
Tile row_sum(const Options& o, const std::vector<T>& tiles, F f) {
    Tile total = f(tiles[0]);
    for (std::size_t i = 1; i < tiles.size(); ++i) total = total + f(tiles[i]);
    return o.tile_rows == 1 ? sum(total) : sum(total, 1, true);
}

/// Loads or stores one number per row, in the shape that row_sum returns.
Tile load_column(const Options& o, const Ref& column, const RefIndex& rows) {
    const Tile values = column.at(rows).load({.other = 0});
    return o.tile_rows == 1 ? values : expand_dims(values, 1);
}
void store_column(const Options& o, const Ref& column, const RefIndex& rows, const Tile& values) {
    column.at(rows).store(o.tile_rows == 1 ? values : reshape(values, {o.tile_rows}));
}

// ---- Forward.

struct ForwardRefs {
    Ref x, weight, bias, residual, y, inverse, mean, sum;

    ForwardRefs(const Options& o, std::span<const Ref> refs)
        : x(refs[0]),
          weight(refs[1]),
          bias(refs[2]),
          residual(refs[3]),
          y(refs[4]),
          inverse(refs[5]),
          mean(o.layer ? refs[6] : Ref()),
          sum(o.residual ? refs.back() : x) {}
};

void store_normalised(const Options& o, const ForwardRefs& f, const RefIndex& r, const Slice& part,
                      const Tile& value, const Tile& mean, const Tile& inverse) {
    Tile result = (o.layer ? value - mean : value) * inverse;
    if (o.weight) result *= widened(f.weight.at(part)).to(result.dtype());
    if (o.bias) result += widened(f.bias.at(part)).to(result.dtype());
    f.y.at(r, part).store(result.to(f.y.dtype()));
}

/// x + residual as it is stored, in x's dtype; just x without a residual.
Tile row_value(const Options& o, const Ref& x, const Ref& residual, const Ref& sum,
               const RefIndex& r, const Slice& part) {
    if (!o.residual) return widened(x.at(r, part));
    const Tile total = (widened(x.at(r, part)) + widened(residual.at(r, part))).to(x.dtype());
    sum.at(r, part).store(total);
    return total.to(accumulator(x.dtype()));
}

void forward_program(const Options& o, std::span<const Ref> refs) {
    const ForwardRefs f(o, refs);
    const auto count = static_cast<double>(o.n);
    const std::vector<Slice> parts = tiles_of(o);
    const Tile first = program_id(0) * o.rows_per_program;
    const auto iteration = [&](const Tile& r) {
        const RefIndex rows = rows_from(o, r);
        std::vector<Tile> values;
        for (const Slice& part : parts)
            values.push_back(row_value(o, f.x, f.residual, f.sum, rows, part));
        Tile mean;
        if (o.layer) mean = row_sum(o, values, [](const Tile& x) { return x; }) / count;
        const Tile squares =
            row_sum(o, values, [&](const Tile& x) { return square(o.layer ? x - mean : x); });
        const Tile inverse = rsqrt(squares / count + o.eps);
        for (std::size_t i = 0; i < parts.size(); ++i)
            store_normalised(o, f, rows, parts[i], values[i], mean, inverse);
        store_column(o, f.inverse, rows, inverse);
        if (o.layer) store_column(o, f.mean, rows, mean);
    };
    // Without a loop nothing is prefetched, and no second copy of the loads is needed.
    if (o.num_warps > 0 && o.tile_rows > 1 && o.rows_per_program == o.tile_rows)
        return iteration(first);
    for_loop(first, minimum(first + o.rows_per_program, f.x.extent(0)), o.tile_rows, iteration);
}

/// The number of elements of each piece that belong to the row.
Tile piece_counts(const Options& o, DType dtype) {
    return minimum(o.n - iota(pieces(o), i64) * kPiece, kPiece).to(dtype);
}

/// For one piece of a row: the sum (LayerNorm only) and the sum of squared distances from the
/// piece's mean.
void statistics_program(const Options& o, std::span<const Ref> refs) {
    const Ref x = refs[0], residual = refs[1], squares = refs[2];
    const Ref sums = o.layer ? refs[3] : Ref();
    const Tile r = program_id(0), c = program_id(1);
    Tile value = row_value(o, x, residual, refs.back(), r, piece(c));
    if (o.layer) {
        const Tile total = sum(value);
        sums.at(r, c).store(total);
        value -= total / minimum(o.n - c * kPiece, kPiece).to(value.dtype());
        if (o.n % kPiece != 0) {
            value =
                where(c * kPiece + iota(kPiece, i64) < o.n, value, zeros({kPiece}, value.dtype()));
        }
    }
    squares.at(r, c).store(sum(square(value)));
}

void forward_long_program(const Options& o, std::span<const Ref> refs) {
    const Ref squares_ref = refs[4], sums_ref = refs[5];
    std::vector<Ref> usual(refs.begin(), refs.begin() + 4);
    usual.insert(usual.end(), refs.begin() + 6, refs.end());
    const ForwardRefs f(o, usual);
    const auto count = static_cast<double>(o.n);
    const Tile r = program_id(0), c = program_id(1);
    const Slice all_parts = ds(0, pieces(o));
    Tile squares = squares_ref.at(r, all_parts).load(), mean;
    if (o.layer) {
        const Tile sums = sums_ref.at(r, all_parts).load();
        const Tile counts = piece_counts(o, sums.dtype());
        mean = sum(sums) / count;
        squares += counts * square(sums / counts - mean);
    }
    const Tile inverse = rsqrt(sum(squares) / count + o.eps);
    store_normalised(o, f, r, piece(c), widened(f.x.at(r, piece(c))), mean, inverse);
    when(c == 0, [&] {
        f.inverse.at(r).store(inverse);
        if (o.layer) f.mean.at(r).store(mean);
    });
}

// ---- Backward.

/// One tile of a row in the backward pass.
struct Gradient {
    Slice part;
    Tile x, dy;          ///< as loaded
    Tile mean, inverse;  ///< of the row

    /// `alone`: the tile is the whole row or piece of the program. Otherwise values are computed
    /// after all loads, so that they stay in registers for a short time.
    Gradient(const Options& o, std::span<const Ref> refs, const RefIndex& r, const Slice& at,
             bool alone)
        : part(at), x(widened(refs[0].at(r, at))), inverse(load_column(o, refs[2], r)) {
        if (o.layer) mean = load_column(o, refs[3], r);
        if (alone) normal_ = normal(o);
        dy = widened(refs[1].at(r, at)).to(x.dtype());
        if (alone) scaled_ = scaled(o, refs);
    }

    /// (x - mean) * inverse
    Tile normal(const Options& o) const {
        return normal_ ? *normal_ : (o.layer ? x - mean : x) * inverse;
    }
    /// dy * weight
    Tile scaled(const Options& o, std::span<const Ref> refs) const {
        if (scaled_) return *scaled_;
        return o.weight ? dy * widened(refs[4].at(part)).to(x.dtype()) : dy;
    }

    /// Stores dx, given the means over the whole row.
    void store_dx(const Options& o, std::span<const Ref> refs, const Ref& dx, const RefIndex& r,
                  const Tile& mean_product, const Tile& mean_scaled) const {
        Tile result = scaled(o, refs) - normal(o) * mean_product;
        if (o.layer) result -= mean_scaled;
        result *= inverse;
        if (o.residual) result += widened(refs[5].at(r, part));
        dx.at(r, part).store(result.to(dx.dtype()));
    }

  private:
    std::optional<Tile> normal_, scaled_;
};

/// A sum over rows in scratch, stored in pieces of 16 bytes. On a GPU the pieces of one thread are
/// far apart, so that those of adjacent threads are contiguous.
struct SumInScratch {
    static constexpr std::int64_t kPiece = 4;
    Ref ref;
    std::int64_t length, vector;

    static TensorType type(std::int64_t length, std::int64_t vector) {
        return {f32, {vector / kPiece, length / vector, kPiece}};
    }
    Tile load() const { return reshape(transpose(ref.load(), {1, 0, 2}), {length}); }
    void store(const Tile& sum) const {
        const Tile pieces = reshape(sum, {length / vector, vector / kPiece, kPiece});
        ref.store(transpose(pieces, {1, 0, 2}));
    }
};

/// The number of gradients that are summed over rows.
std::size_t num_sums(const Options& o) {
    return (o.weight ? 1 : 0) + (o.bias ? 1 : 0);
}

/// A program's sums over rows while it loops over them, of the gradients of weight and bias for
/// each tile of a row: tiles that the loop carries, or scratch.
struct RowSums {
    std::vector<Tile> carried;
    std::vector<SumInScratch> kept;

    template <typename F>
    void update(std::size_t i, F f) {
        if (kept.empty())
            carried[i] = f(carried[i]);
        else
            kept[i].store(f(kept[i].load()));
    }
    /// Adds the contribution of tile `i` of a row.
    void add(const Options& o, std::size_t i, const Gradient& g) {
        const std::size_t first = i * num_sums(o);
        if (o.weight) update(first, [&](const Tile& s) { return fma(g.dy, g.normal(o), s); });
        if (o.bias) update(first + 1, [&](const Tile& s) { return s + g.dy; });
    }
};

/// Runs iterations over the rows [first, last) and stores the sums of `parts` of a row, all of the
/// same length. `scratch` holds sums that are not carried by the loop.
void sum_over_rows(const Options& o, const Tile& first, const Tile& last,
                   const std::vector<Slice>& parts, std::int64_t length, DType dtype,
                   std::span<const Ref> gradients, std::span<const Ref> scratch,
                   const std::function<void(const RefIndex&, RowSums&)>& iteration) {
    const bool one = o.tile_rows == 1;
    const Tile none = one ? zeros({length}, dtype) : zeros({o.tile_rows, length}, dtype);
    std::vector<Tile> totals(num_sums(o) * parts.size(), none);
    RowSums sums;
    if (o.scratch_vector > 0) {
        for (std::size_t i = 0; i < totals.size(); ++i) {
            sums.kept.push_back({scratch[i], length, o.scratch_vector});
            sums.kept[i].store(none);
        }
    }
    if (totals.empty() || !sums.kept.empty()) {
        for_loop(first, last, o.tile_rows, [&](Tile r) { iteration(rows_from(o, r), sums); });
        for (std::size_t i = 0; i < totals.size(); ++i) totals[i] = sums.kept[i].load();
    } else {
        totals = for_loop(first, last, o.tile_rows, totals,
                          [&](const Tile& r, const std::vector<Tile>& carried) {
                              sums.carried = carried;
                              iteration(rows_from(o, r), sums);
                              return sums.carried;
                          });
    }
    for (std::size_t i = 0; i < totals.size(); ++i) {
        const Ref& gradient = gradients[i % num_sums(o)];
        const Tile total = one ? totals[i] : sum(totals[i], 0);
        gradient.at(parts[i / num_sums(o)]).store(total.to(gradient.dtype()));
    }
}

void backward_program(const Options& o, std::span<const Ref> refs) {
    const DType sums = accumulator(refs[0].dtype());
    const auto count = static_cast<double>(o.n);
    const std::vector<Slice> parts = tiles_of(o);
    const Tile rows = refs[0].extent(0), iterations = cdiv(rows, o.tile_rows),
               per_program = cdiv(iterations, num_programs(0)) * o.tile_rows;
    const Tile first = program_id(0) * per_program;
    const auto iteration = [&](const RefIndex& r, RowSums& totals) {
        std::vector<Gradient> tiles;
        for (const Slice& part : parts) tiles.emplace_back(o, refs, r, part, parts.size() == 1);
        // Both sums together, so that threads wait for each other only once.
        Tile sum_scaled;
        if (o.layer)
            sum_scaled = row_sum(o, tiles, [&](const Gradient& g) { return g.scaled(o, refs); });
        const Tile mean_product =
            row_sum(o, tiles, [&](const Gradient& g) { return g.scaled(o, refs) * g.normal(o); }) /
            count;
        const Tile mean_scaled = o.layer ? sum_scaled / count : Tile();
        for (std::size_t i = 0; i < tiles.size(); ++i) {
            tiles[i].store_dx(o, refs, refs[6], r, mean_product, mean_scaled);
            totals.add(o, i, tiles[i]);
        }
    };
    sum_over_rows(o, first, minimum(first + per_program, rows), parts, o.tile > 0 ? o.tile : o.n,
                  sums, refs.subspan(7, num_sums(o)), refs.subspan(7 + num_sums(o)), iteration);
}

/// Sums over one piece of a row of dy * weight * normal and, for LayerNorm, of dy * weight.
void products_program(const Options& o, std::span<const Ref> refs) {
    const Tile r = program_id(0), c = program_id(1);
    const Gradient g(o, refs, r, piece(c), true);
    refs[5].at(r, c).store(sum(g.scaled(o, refs) * g.normal(o)));
    if (o.layer) refs[6].at(r, c).store(sum(g.scaled(o, refs)));
}

void backward_long_program(const Options& o, std::span<const Ref> refs) {
    const DType sums = accumulator(refs[0].dtype());
    const auto count = static_cast<double>(o.n);
    const Slice part = piece(program_id(0)), all_parts = ds(0, pieces(o));
    const Tile rows = refs[0].extent(0), per_program = cdiv(rows, num_programs(1));
    const Tile first = program_id(1) * per_program;
    const auto iteration = [&](const RefIndex& r, RowSums& totals) {
        const Gradient g(o, refs, r, part, true);
        const auto mean = [&](const Ref& of_pieces) {
            return sum(of_pieces.at(r, all_parts).load()) / count;
        };
        g.store_dx(o, refs, refs[8], r, mean(refs[6]), o.layer ? mean(refs[7]) : Tile());
        totals.add(o, 0, g);
    };
    sum_over_rows(o, first, minimum(first + per_program, rows), {part}, kPiece, sums,
                  refs.subspan(9), {}, iteration);
}

BlockSpec given(bool present) {
    return present ? BlockSpec() : BlockSpec::absent();
}

/// The number of means over a row that a pass needs: of squares or products, and for LayerNorm also
/// of x or dy.
std::size_t num_means(const Options& o) {
    return o.layer ? 2 : 1;
}

/// The outputs of the forward pass: y, a statistic per mean and, with `sum`, x + residual.
std::size_t num_outputs(const Options& o, bool sum) {
    return 1 + num_means(o) + (sum ? 1 : 0);
}

/// A call of one of the programs above. The number of rows of these inputs and of all outputs may
/// change without a new trace.
CallOptions options_of(const Options& o, const std::vector<bool>& given_inputs,
                       const std::vector<int>& row_inputs, std::size_t num_outputs) {
    CallOptions result;
    for (const bool present : given_inputs) result.in.push_back(given(present));
    for (const int input : row_inputs) {
        if (given_inputs[input]) result.dynamic[input] = {0};
    }
    for (std::size_t output = 0; output < num_outputs; ++output) {
        result.dynamic[static_cast<int>(given_inputs.size() + output)] = {0};
    }
    result.interpret = o.interpret;
    result.num_warps = o.num_warps;
    result.num_stages = o.num_stages;
    return result;
}

/// One program per piece of a row.
Grid grid_of_pieces(const Options& o) {
    return [o](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{in[0].dim(0), pieces(o)};
    };
}

std::string name_of(const Options& o, const char* suffix) {
    return std::string(o.layer ? "layer_norm" : "rms_norm") + suffix;
}

/// The types of the forward's outputs.
std::vector<TensorType> forward_types(const Options& o, const Tensor& x, bool sum) {
    const TensorType row{accumulator(x.dtype()), {x.dim(0)}};
    std::vector<TensorType> types{{o.output, x.shape()}, row};
    if (o.layer) types.push_back(row);
    if (sum) types.push_back({x.dtype(), x.shape()});
    return types;
}

/// For the backward programs: dx, and parts of the gradients of weight and bias, one per program
/// along the grid's last axis.
CallOptions backward_options(const Options& o, CallOptions options, const BlockSpec& part) {
    options.out = {BlockSpec()};
    if (o.weight) options.out.push_back(part);
    if (o.bias) options.out.push_back(part);
    options.out_type = [o](std::span<const Tensor> in) {
        const TensorType parts{accumulator(in[0].dtype()), {std::min(o.parts, in[0].dim(0)), o.n}};
        std::vector<TensorType> types{{in[0].dtype(), in[0].shape()}};
        if (o.weight) types.push_back(parts);
        if (o.bias) types.push_back(parts);
        return types;
    };
    return options;
}

}  // namespace

std::int64_t pieces(const Options& o) {
    return ceil_div(o.n, kPiece);
}

Call forward(const Options& o) {
    CallOptions options =
        options_of(o, {true, o.weight, o.bias, o.residual}, {0, 3}, num_outputs(o, o.residual));
    options.grid = [o](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{ceil_div(in[0].dim(0), o.rows_per_program)};
    };
    options.out_type = [o](std::span<const Tensor> in) {
        return forward_types(o, in[0], o.residual);
    };
    return call(
        kernel(name_of(o, ""), [o](std::span<const Ref> refs) { forward_program(o, refs); }),
        options);
}

Call row_statistics(const Options& o) {
    CallOptions options =
        options_of(o, {true, o.residual}, {0, 1}, num_means(o) + (o.residual ? 1 : 0));
    options.grid = grid_of_pieces(o);
    options.out_type = [o](std::span<const Tensor> in) {
        const TensorType parts{accumulator(in[0].dtype()), {in[0].dim(0), pieces(o)}};
        std::vector<TensorType> types(num_means(o), parts);
        if (o.residual) types.push_back({in[0].dtype(), in[0].shape()});
        return types;
    };
    return call(kernel(name_of(o, "_statistics"),
                       [o](std::span<const Ref> refs) { statistics_program(o, refs); }),
                options);
}

Call forward_long(const Options& all) {
    Options o = all;
    o.residual = false;  // x already is the sum
    CallOptions options = options_of(o, {true, o.weight, o.bias, false, true, o.layer}, {0, 4, 5},
                                     num_outputs(o, false));
    options.grid = grid_of_pieces(o);
    options.out_type = [o](std::span<const Tensor> in) { return forward_types(o, in[0], false); };
    return call(kernel(name_of(o, "_long"),
                       [o](std::span<const Ref> refs) { forward_long_program(o, refs); }),
                options);
}

Call backward(const Options& o) {
    CallOptions options = options_of(o, {true, true, true, o.layer, o.weight, o.residual},
                                     {0, 1, 2, 3, 5}, 1 + num_sums(o));
    options.grid = [o](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{std::min(o.parts, in[0].dim(0))};
    };
    const BlockSpec part({squeezed, all}, [](auto i) { return block(i, 0); });
    if (o.scratch_vector > 0) {
        const std::int64_t length = o.tile > 0 ? o.tile : o.n;
        options.scratch.assign(num_sums(o) * static_cast<std::size_t>(o.n / length),
                               SumInScratch::type(length, o.scratch_vector));
    }
    return call(kernel(name_of(o, "_backward"),
                       [o](std::span<const Ref> refs) { backward_program(o, refs); }),
                backward_options(o, options, part));
}

Call row_products(const Options& o) {
    CallOptions options =
        options_of(o, {true, true, true, o.layer, o.weight}, {0, 1, 2, 3}, num_means(o));
    options.grid = grid_of_pieces(o);
    options.out_type = [o](std::span<const Tensor> in) {
        const TensorType parts{accumulator(in[0].dtype()), {in[0].dim(0), pieces(o)}};
        return std::vector<TensorType>(num_means(o), parts);
    };
    return call(kernel(name_of(o, "_products"),
                       [o](std::span<const Ref> refs) { products_program(o, refs); }),
                options);
}

Call backward_long(const Options& o) {
    CallOptions options =
        options_of(o, {true, true, true, o.layer, o.weight, o.residual, true, o.layer},
                   {0, 1, 2, 3, 5, 6, 7}, 1 + num_sums(o));
    options.grid = [o](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{pieces(o), std::min(o.parts, in[0].dim(0))};
    };
    const BlockSpec part({squeezed, all}, [](auto, auto i) { return block(i, 0); });
    return call(kernel(name_of(o, "_backward_long"),
                       [o](std::span<const Ref> refs) { backward_long_program(o, refs); }),
                backward_options(o, options, part));
}

Call sum_parts(DType dtype, bool interpret) {
    constexpr std::int64_t kBlock = 64, kRows = 32;
    CallOptions call_options;
    call_options.grid = [](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{ceil_div(in[0].dim(1), kBlock)};
    };
    call_options.in = {BlockSpec({all, kBlock}, [](auto i) { return block(0, i); })};
    call_options.out = {BlockSpec({kBlock}, [](auto i) { return block(i); })};
    call_options.out_type = [dtype](std::span<const Tensor> in) {
        return std::vector<TensorType>{{dtype, {in[0].dim(1)}}};
    };
    call_options.dynamic = {{0, {0}}};
    call_options.interpret = interpret;
    return call(kernel("norm_sum_parts", {"parts", "gradient"},
                       [](Ref parts, Ref gradient) {
                           const Tile rows = for_loop(
                               0, cdiv(parts.extent(0), kRows),
                               zeros({kRows, kBlock}, parts.dtype()), [&](Tile i, Tile sum) {
                                   return sum + parts.at(ds(i * kRows, kRows)).load({.other = 0});
                               });
                           gradient.store(sum(rows, 0).to(gradient.dtype()));
                       }),
                call_options);
}

}  // namespace tilewright::norm
