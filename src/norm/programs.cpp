// Tile programs of RMSNorm and LayerNorm.
#include "norm/programs.h"

#include <algorithm>
#include <functional>

namespace tilewright::norm {
namespace {

constexpr std::int64_t kPiece = 4096;  ///< a long row is split into pieces of this length

DType accumulator(DType dtype) {
    return dtype == f64 ? f64 : f32;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}

/// Piece `c` of a long row; the last one may reach behind the row's end.
Slice piece(const Tile& c) {
    return ds(c * kPiece, kPiece);
}

/// Elements of a row as they take part in sums. Lanes behind the row's end are 0.
Tile widened(const Ref& view) {
    return view.load({.other = 0}).to(accumulator(view.dtype()));
}

/// The rows of one turn of a loop: `r` alone, or as many short ones as make a tile.
RefIndex rows_from(const Options& o, const Tile& r) {
    return o.tile_rows == 1 ? RefIndex(r) : RefIndex(ds(r, o.tile_rows));
}

/// Sum over each row, in a shape that broadcasts against the rows.
Tile row_sum(const Options& o, const Tile& x) {
    return o.tile_rows == 1 ? sum(x) : sum(x, 1, true);
}

/// One number a row, as row_sum gives it, from and to an array of them.
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

/// x + residual as it is kept, in x's dtype; x itself without a residual.
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
    const Slice all_of_it = ds(0, o.n);
    const Tile first = program_id(0) * o.rows_per_program;
    const Tile last = minimum(first + o.rows_per_program, f.x.extent(0));
    for_loop(first, last, o.tile_rows, [&](Tile r) {
        const RefIndex rows = rows_from(o, r);
        const Tile value = row_value(o, f.x, f.residual, f.sum, rows, all_of_it);
        Tile mean;
        if (o.layer) mean = row_sum(o, value) / count;
        const Tile squares = row_sum(o, square(o.layer ? value - mean : value));
        const Tile inverse = rsqrt(squares / count + o.eps);
        store_normalised(o, f, rows, all_of_it, value, mean, inverse);
        store_column(o, f.inverse, rows, inverse);
        if (o.layer) store_column(o, f.mean, rows, mean);
    });
}

/// Elements of each piece of a long row that belong to it.
Tile piece_counts(const Options& o, DType dtype) {
    return minimum(o.n - iota(pieces(o), i64) * kPiece, kPiece).to(dtype);
}

/// Of one piece of a row: the sum, for LayerNorm, and the sum of squared distances from its mean.
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

/// One piece of a row in the backward pass.
struct Gradient {
    Tile dy;      ///< as it came
    Tile scaled;  ///< dy * weight
    Tile normal;  ///< (x - mean) * inverse

    Tile inverse;

    Gradient(const Options& o, std::span<const Ref> refs, const RefIndex& r, const Slice& part) {
        const Ref x = refs[0], mean = refs[3], weight = refs[4];
        const Tile value = widened(x.at(r, part));
        inverse = load_column(o, refs[2], r);
        normal = (o.layer ? value - load_column(o, mean, r) : value) * inverse;
        dy = widened(refs[1].at(r, part)).to(value.dtype());
        scaled = o.weight ? dy * widened(weight.at(part)).to(value.dtype()) : dy;
    }

    /// Stores dx; the means are taken over the whole row.
    void store_dx(const Options& o, std::span<const Ref> refs, const Ref& dx, const RefIndex& r,
                  const Slice& part, const Tile& mean_product, const Tile& mean_scaled) const {
        Tile result = scaled - normal * mean_product;
        if (o.layer) result -= mean_scaled;
        result *= inverse;
        if (o.residual) result += widened(refs[5].at(r, part));
        dx.at(r, part).store(result.to(dx.dtype()));
    }

    /// Adds to the sums for the weight's and the bias's gradient.
    std::vector<Tile> add_to(const Options& o, const std::vector<Tile>& totals) const {
        std::vector<Tile> next;
        if (o.weight) next.push_back(fma(dy, normal, totals[0]));
        if (o.bias) next.push_back(totals.back() + dy);
        return next;
    }
};

/// Runs body(rows, totals) -> totals and stores the totals, of the weight's and bias's gradients.
void sum_over_rows(
    const Options& o, const Tile& first, const Tile& last, std::int64_t size, DType sums,
    std::span<const Ref> gradients, const Slice& part,
    const std::function<std::vector<Tile>(RefIndex, const std::vector<Tile>&)>& body) {
    const bool one = o.tile_rows == 1;
    if (!o.weight)
        return for_loop(first, last, o.tile_rows, [&](Tile r) { body(rows_from(o, r), {}); });
    const Tile none = one ? zeros({size}, sums) : zeros({o.tile_rows, size}, sums);
    const std::vector<Tile> zero(o.bias ? 2 : 1, none);
    const std::vector<Tile> totals = for_loop(first, last, o.tile_rows, zero,
                                              [&](const Tile& r, const std::vector<Tile>& carried) {
                                                  return body(rows_from(o, r), carried);
                                              });
    for (std::size_t i = 0; i < totals.size(); ++i) {
        const Tile total = one ? totals[i] : sum(totals[i], 0);
        gradients[i].at(part).store(total.to(gradients[i].dtype()));
    }
}

void backward_program(const Options& o, std::span<const Ref> refs) {
    const DType sums = accumulator(refs[0].dtype());
    const auto count = static_cast<double>(o.n);
    const Slice part = ds(0, o.n);
    const Tile rows = refs[0].extent(0), turns = cdiv(rows, o.tile_rows),
               per_program = cdiv(turns, num_programs(0)) * o.tile_rows;
    const Tile first = program_id(0) * per_program;
    sum_over_rows(o, first, minimum(first + per_program, rows), o.n, sums, refs.subspan(7), part,
                  [&](const RefIndex& r, const std::vector<Tile>& totals) {
                      const Gradient g(o, refs, r, part);
                      Tile mean_scaled;
                      if (o.layer) mean_scaled = row_sum(o, g.scaled) / count;
                      const Tile mean_product = row_sum(o, g.scaled * g.normal) / count;
                      g.store_dx(o, refs, refs[6], r, part, mean_product, mean_scaled);
                      return g.add_to(o, totals);
                  });
}

/// Sums over one piece of a row of dy * weight * normal and, for LayerNorm, of dy * weight.
void products_program(const Options& o, std::span<const Ref> refs) {
    const Tile r = program_id(0), c = program_id(1);
    const Gradient g(o, refs, r, piece(c));
    refs[5].at(r, c).store(sum(g.scaled * g.normal));
    if (o.layer) refs[6].at(r, c).store(sum(g.scaled));
}

void backward_long_program(const Options& o, std::span<const Ref> refs) {
    const DType sums = accumulator(refs[0].dtype());
    const auto count = static_cast<double>(o.n);
    const Slice part = piece(program_id(0)), all_parts = ds(0, pieces(o));
    const Tile rows = refs[0].extent(0), per_program = cdiv(rows, num_programs(1));
    const Tile first = program_id(1) * per_program;
    sum_over_rows(o, first, minimum(first + per_program, rows), kPiece, sums, refs.subspan(9), part,
                  [&](const RefIndex& r, const std::vector<Tile>& totals) {
                      const Gradient g(o, refs, r, part);
                      const auto mean = [&](const Ref& parts) {
                          return sum(parts.at(r, all_parts).load()) / count;
                      };
                      g.store_dx(o, refs, refs[8], r, part, mean(refs[6]),
                                 o.layer ? mean(refs[7]) : Tile());
                      return g.add_to(o, totals);
                  });
}

BlockSpec given(bool present) {
    return present ? BlockSpec() : BlockSpec::absent();
}

/// A call of one of the programs above, whose inputs' rows may change without a new trace.
CallOptions options_of(const Options& o, const std::vector<bool>& given_inputs,
                       const std::vector<int>& row_inputs) {
    CallOptions result;
    for (const bool present : given_inputs) result.in.push_back(given(present));
    for (const int input : row_inputs) {
        if (given_inputs[static_cast<std::size_t>(input)]) result.dynamic[input] = {0};
    }
    result.interpret = o.interpret;
    if (o.tile_rows > 1) result.num_warps = 4;  // each holds whole rows
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

/// Outputs of the forward pass.
std::vector<TensorType> forward_types(const Options& o, const Tensor& x, bool sum) {
    const TensorType row{accumulator(x.dtype()), {x.dim(0)}};
    std::vector<TensorType> types{{o.output, x.shape()}, row};
    if (o.layer) types.push_back(row);
    if (sum) types.push_back({x.dtype(), x.shape()});
    return types;
}

/// The backward passes: dx, and parts of the gradients of weight and bias, one for each program
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
    CallOptions options = options_of(o, {true, o.weight, o.bias, o.residual}, {0, 3});
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
    CallOptions options = options_of(o, {true, o.residual}, {0, 1});
    options.grid = grid_of_pieces(o);
    options.out_type = [o](std::span<const Tensor> in) {
        const TensorType parts{accumulator(in[0].dtype()), {in[0].dim(0), pieces(o)}};
        std::vector<TensorType> types(o.layer ? 2 : 1, parts);
        if (o.residual) types.push_back({in[0].dtype(), in[0].shape()});
        return types;
    };
    return call(kernel(name_of(o, "_statistics"),
                       [o](std::span<const Ref> refs) { statistics_program(o, refs); }),
                options);
}

Call forward_long(const Options& all) {
    Options o = all;
    o.residual = false;  // x is the sum already
    CallOptions options = options_of(o, {true, o.weight, o.bias, false, true, o.layer}, {0, 4, 5});
    options.grid = grid_of_pieces(o);
    options.out_type = [o](std::span<const Tensor> in) { return forward_types(o, in[0], false); };
    return call(kernel(name_of(o, "_long"),
                       [o](std::span<const Ref> refs) { forward_long_program(o, refs); }),
                options);
}

Call backward(const Options& o) {
    CallOptions options =
        options_of(o, {true, true, true, o.layer, o.weight, o.residual}, {0, 1, 2, 3, 5});
    options.grid = [o](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{std::min(o.parts, in[0].dim(0))};
    };
    const BlockSpec part({squeezed, all}, [](auto i) { return block(i, 0); });
    return call(kernel(name_of(o, "_backward"),
                       [o](std::span<const Ref> refs) { backward_program(o, refs); }),
                backward_options(o, options, part));
}

Call row_products(const Options& o) {
    CallOptions options = options_of(o, {true, true, true, o.layer, o.weight}, {0, 1, 2, 3});
    options.grid = grid_of_pieces(o);
    options.out_type = [o](std::span<const Tensor> in) {
        const TensorType parts{accumulator(in[0].dtype()), {in[0].dim(0), pieces(o)}};
        return std::vector<TensorType>(o.layer ? 2 : 1, parts);
    };
    return call(kernel(name_of(o, "_products"),
                       [o](std::span<const Ref> refs) { products_program(o, refs); }),
                options);
}

Call backward_long(const Options& o) {
    CallOptions options = options_of(
        o, {true, true, true, o.layer, o.weight, o.residual, true, o.layer}, {0, 1, 2, 3, 5, 6, 7});
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
