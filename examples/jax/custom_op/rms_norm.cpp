// RMSNorm over the last axis as three tile programs, printed as IR text for given shapes.
#include <tilewright/run.h>

#include <cstdint>
#include <string>

namespace tw = tilewright;

namespace {

constexpr std::int64_t kRows = 8, kColumns = 64;
constexpr double kEps = 1e-5;

const tw::BlockSpec kRowsOfMatrix(std::int64_t columns) {
    return tw::BlockSpec{{kRows, columns}, [](auto i) { return tw::block(i, 0); }};
}
const tw::BlockSpec kRowsOfVector{{kRows}, [](auto i) { return tw::block(i); }};

/// y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps), a few rows at a time.
void forward(tw::Ref x, tw::Ref weight, tw::Ref y, tw::Ref rstd) {
    const tw::Tile rows = x.load();
    const double columns = static_cast<double>(rows.shape()[1]);
    const tw::Tile deviation = tw::rsqrt(tw::sum(rows * rows, 1) / columns + kEps);
    rstd.store(deviation);
    y.store(rows * tw::expand_dims(deviation, 1) * weight.load());
}

/// dx = rstd * (dy * weight - x * rstd^2 * mean(x * dy * weight))
void backward(tw::Ref x, tw::Ref weight, tw::Ref rstd, tw::Ref dy, tw::Ref dx) {
    const tw::Tile rows = x.load();
    const double columns = static_cast<double>(rows.shape()[1]);
    const tw::Tile deviation = tw::expand_dims(rstd.load(), 1);
    const tw::Tile g = dy.load() * weight.load();
    const tw::Tile mean = tw::sum(rows * g, 1, true) / columns;
    dx.store(deviation * (g - rows * deviation * deviation * mean));
}

/// dweight = sum over the rows of dy * x * rstd: each program loops over the rows of its columns.
void backward_weight(tw::Ref x, tw::Ref rstd, tw::Ref dy, tw::Ref dweight) {
    const std::int64_t rows = x.shape()[0];
    dweight.store(tw::for_loop(
        0, (rows + kRows - 1) / kRows, tw::zeros({kColumns}, tw::f32), [&](auto i, auto total) {
            const tw::Slice block = tw::ds(i * kRows, kRows);
            const tw::Tile deviation = tw::expand_dims(rstd.at(block).load(), 1);
            return total + tw::sum(dy.at(block).load() * x.at(block).load() * deviation, 0);
        }));
}

tw::Tensor like(std::vector<std::int64_t> shape) {
    return tw::Tensor::empty(tw::f32, std::move(shape));  // only its type is used
}

const char* kept(std::string text) {
    thread_local std::string result;
    result = std::move(text);
    return result.c_str();
}

}  // namespace

// Called from Python: the text is valid until the next call on this thread.

extern "C" const char* rms_norm_forward(std::int64_t rows, std::int64_t columns) {
    const tw::BlockSpec matrix = kRowsOfMatrix(columns);
    const auto call = tw::call(tw::kernel("rms_norm", {"x", "weight", "y", "rstd"}, forward),
                               {.grid = {(rows + kRows - 1) / kRows},
                                .in = {matrix, {}},
                                .out = {matrix, kRowsOfVector},
                                .out_type = {{tw::f32, {rows, columns}}, {tw::f32, {rows}}}});
    return kept(call.ir({like({rows, columns}), like({columns})}));
}

extern "C" const char* rms_norm_backward(std::int64_t rows, std::int64_t columns) {
    const tw::BlockSpec matrix = kRowsOfMatrix(columns);
    const auto call =
        tw::call(tw::kernel("rms_norm_backward", {"x", "weight", "rstd", "dy", "dx"}, backward),
                 {.grid = {(rows + kRows - 1) / kRows},
                  .in = {matrix, {}, kRowsOfVector, matrix},
                  .out = {matrix},
                  .out_type = {{tw::f32, {rows, columns}}}});
    return kept(
        call.ir({like({rows, columns}), like({columns}), like({rows}), like({rows, columns})}));
}

extern "C" const char* rms_norm_backward_weight(std::int64_t rows, std::int64_t columns) {
    const tw::BlockSpec matrix{{tw::all, kColumns}, [](auto j) { return tw::block(0, j); }};
    const auto call = tw::call(
        tw::kernel("rms_norm_backward_weight", {"x", "rstd", "dy", "dweight"}, backward_weight),
        {.grid = {(columns + kColumns - 1) / kColumns},
         .in = {matrix, {}, matrix},
         .out = {tw::BlockSpec{{kColumns}, [](auto j) { return tw::block(j); }}},
         .out_type = {{tw::f32, {columns}}}});
    return kept(call.ir({like({rows, columns}), like({rows}), like({rows, columns})}));
}
