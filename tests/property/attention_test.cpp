// Attention under random mods, masks, shapes and types against the dense reference.
#include "tilewright/attention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "attention/reference.h"
#include "tests/support/accuracy.h"
#include "tests/support/seeds.h"
#include "tilewright/masks.h"
#include "tilewright/scores.h"

namespace tilewright::attn {
namespace {

using testing::random_tensor;

/// Everything about one call, chosen by its seed.
class RandomCall {
  public:
    explicit RandomCall(std::uint64_t seed) : generator_(seed), seed_(static_cast<unsigned>(seed)) {
        constexpr DType kTypes[] = {f32, f32, f32, f64, f16, bf16};
        dtype = kTypes[pick(6)];
        batch = 1 + pick(2);
        kv_heads = 1 + pick(2);
        heads = kv_heads * (1 + pick(3));
        length = 1 + pick(pick(3) == 0 ? 150 : 70);
        kv_length = pick(3) == 0 ? length : 1 + pick(pick(3) == 0 ? 200 : 70);
        head_dim = 1 + pick(20);
        value_dim = pick(2) == 0 ? head_dim : 1 + pick(20);
        if (pick(4) == 0) options.causal = true;
        if (pick(4) == 0) options.window = {pick(40) - 1, pick(40) - 1};
        if (pick(2) == 0) options.mask = mask(2);
        if (pick(4) == 0) {
            options.block_mask = create_block_mask(mask(2), pick(2) == 0 ? 1 : batch,
                                                   pick(2) == 0 ? 1 : heads, length, kv_length);
        }
        if (pick(3) != 0) options.score_mod = score();
        if (pick(4) == 0) options.sinks = random_tensor(f32, {heads}, seed_ + 1);
        if (pick(6) == 0) {
            options.dropout = 0.25;
            options.seed = seed;
        }
        if (pick(5) == 0) options.scale = 0.1 * pick(10) - 0.4;
        if (pick(5) == 0) {
            const std::int64_t kinds = 1 + pick(4);
            options.segment_ids = segments(length, kinds);
            options.kv_segment_ids = segments(kv_length, kinds);
        }
        form = static_cast<Form>(pick(4));
        if (form == Form::bshd) options.layout = Layout::bshd;
    }

    /// How the arrays lie in memory.
    enum class Form { bhsd, padded_rows, bshd, views_of_bshd };

    /// An array (B, H, L, E) as the call gets it.
    Tensor given(const Tensor& x) const {
        if (form == Form::bhsd) return x;
        if (form == Form::padded_rows) {
            Tensor::Dims shape = x.shape();
            shape.back() += 3;
            const Tensor wide = Tensor::full(dtype, shape, std::nan(""));
            const Tensor view = wide.slice(3, 2, x.dim(3));
            view.copy_from(x);
            return view;
        }
        const Tensor turned = x.transpose({0, 2, 1, 3}).contiguous();
        return form == Form::bshd ? turned : turned.transpose({0, 2, 1, 3});
    }
    /// A result of the call as (B, H, L, E).
    Tensor plain(const Tensor& result) const {
        return form == Form::bshd ? result.transpose({0, 2, 1, 3}) : result;
    }

    Tensor input(std::int64_t own_heads, std::int64_t own_length, std::int64_t depth,
                 unsigned number) const {
        return random_tensor(dtype, {batch, own_heads, own_length, depth}, seed_ * 8 + number);
    }

    std::string describe() const {
        return fmt::format(
            "{} B{} H{}/{} L{} S{} E{} Ev{} form {}{}{}{}{}{}{}{} scale {} score\n{}", name(dtype),
            batch, heads, kv_heads, length, kv_length, head_dim, value_dim, static_cast<int>(form),
            options.causal ? " causal" : "", options.segment_ids.defined() ? " segments" : "",
            options.window == Window{} ? "" : " window", options.mask.defined() ? " mask" : "",
            options.block_mask.defined() ? " block mask" : "",
            options.sinks.defined() ? " sinks" : "", options.dropout > 0 ? " dropout" : "",
            options.scale.value_or(0),
            options.score_mod.defined() ? options.score_mod.ir() : "none");
    }

    AttentionOptions options;
    DType dtype;
    std::int64_t batch, heads, kv_heads, length, kv_length, head_dim, value_dim;
    Form form;

  private:
    std::int64_t pick(std::int64_t n) {
        return static_cast<std::int64_t>(generator_() % static_cast<std::uint64_t>(n));
    }

    /// Small floats: scores stay of the size that the rounding of lse allows for.
    Capture table(Tensor::Dims shape) {
        const Tensor values =
            random_tensor(f64, std::move(shape), static_cast<unsigned>(pick(1 << 20)));
        for (std::int64_t i = 0; i < values.size(); ++i) values.data<double>()[i] *= 0.2;
        return capture(values.to(pick(4) == 0 ? f16 : f32));
    }
    Capture ids(std::int64_t size, std::int64_t kinds) {
        std::vector<std::int32_t> values;
        for (std::int64_t i = 0; i < size; ++i) {
            values.push_back(static_cast<std::int32_t>(i * kinds / size));
        }
        return capture(Tensor::from_vector(values, {size}));
    }

    Tensor segments(std::int64_t size, std::int64_t kinds) {
        std::vector<std::int32_t> values;
        for (std::int64_t i = 0; i < batch * size; ++i)
            values.push_back(static_cast<std::int32_t>(pick(kinds)));
        return Tensor::from_vector(values, {batch, size});
    }

    Mod mask(int depth) {
        if (depth > 0 && pick(2) == 0) {
            const Mod a = mask(depth - 1), b = mask(depth - 1);
            return pick(3) == 0 ? a & b : pick(2) == 0 ? a | b : ~a;
        }
        const std::int64_t n = 1 + pick(30);
        switch (pick(7)) {
            case 0:
                return masks::causal();
            case 1:
                return masks::sliding_window(n);
            case 2:
                return masks::prefix_lm(n);
            case 3:
                return masks::document(ids(std::max(length, kv_length), 1 + pick(5)));
            case 4:
                return [n](auto b, auto h, auto q, auto kv) { return (q + b + h) % n != kv % n; };
            case 5:
                return [n](auto, auto, auto q, auto kv) { return abs(q - kv) < n; };
            default:
                return [n](auto b, auto, auto q, auto) { return q + b >= n; };
        }
    }

    Mod score() {
        const std::int64_t last = std::max(length, kv_length) - 1;
        Mod result = [](auto s, auto, auto, auto, auto) { return s; };
        for (std::int64_t step = 0; step < 1 + pick(3); ++step) result = compose(one(last), result);
        return result;
    }

    Mod one(std::int64_t last) {
        switch (pick(10)) {
            case 0:
                return scores::softcap(1 + 0.5 * static_cast<double>(pick(6)));
            case 1: {
                const Capture by_head = table({heads});
                return [by_head](auto s, auto, auto h, auto q, auto kv) {
                    return s + by_head[h] * tanh((kv - q) * 0.1);
                };
            }
            case 2: {
                const Capture full = table({batch, heads, length, kv_length});
                return scores::bias(full);
            }
            case 3: {
                const Capture relative = table({heads, 2 * last + 1});
                return [relative, last](auto s, auto, auto h, auto q, auto kv) {
                    return s + relative(h, q - kv + last);
                };
            }
            case 4: {
                const Capture rows = table({heads, length}), columns = table({kv_length});
                return [=](auto s, auto, auto h, auto q, auto kv) {
                    return s * (1.0 + rows(h, q)) + columns[kv];
                };
            }
            case 5: {
                const Capture kinds = ids(last + 1, 4), pairs = table({4, 4});
                return [=](auto s, auto, auto, auto q, auto kv) {
                    return s + pairs(kinds[q], kinds[kv]);
                };
            }
            case 6:
                return [](auto s, auto, auto, auto q, auto kv) {
                    return where((q + kv) % 3 == 0, s * 0.5, s + 0.25);
                };
            case 7:
                return [](auto s, auto, auto, auto, auto) {
                    return cond(
                        s > 0.5, [&] { return log(s + 1.0); }, [&] { return s * 0.8; });
                };
            case 8:
                return [](auto s, auto, auto, auto q, auto kv) {
                    return where(q >= kv - 5, s, -std::numeric_limits<double>::infinity());
                };
            default: {
                const Capture few = table({3});
                return [few](auto s, auto, auto, auto q, auto kv) { return s + few[q - kv]; };
            }
        }
    }

    std::mt19937_64 generator_;
    unsigned seed_;
};

double largest_of(const Array& x) {
    double largest = 0;
    for (double value : x.data)
        if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    return largest;
}

/// The walk of a captured array's gradient. The pairs that read one element are added up one after
/// the other; and the lse of a row, rounded, scales all of the row's probabilities alike.
double walk_of(const Array& gradient, const Array& lse, double keys) {
    const double rows = static_cast<double>(lse.data.size());
    const double used = static_cast<double>(
        std::count_if(gradient.data.begin(), gradient.data.end(), [](double x) { return x != 0; }));
    const double terms = rows * keys / std::max(used, 1.0);
    return std::max(std::sqrt(terms), std::sqrt(std::min(rows, terms)) * largest_of(lse));
}

/// Twice the bound of docs/numerics.md: of two samples of the same roundings, one is now and then
/// more than twice the other. `walk`: epsilons of f32, for sums whose roundings walk at random.
void expect_close(const char* what, const Tensor& ours, const Array& exact, const Array& plain,
                  DType dtype, double walk = 0) {
    const double error = largest_error(to_array(ours), exact);
    const double allowed = std::max(2 * allowed_error(plain, exact, dtype),
                                    walk * epsilon(f32) * std::max(1.0, largest_of(exact)));
    EXPECT_TRUE(error <= allowed) << what << ": error " << error << ", allowed " << allowed;
}

TEST(RandomAttention, AgreesWithTheDenseReference) {
    const testing::Seeds seeds = testing::seeds(100);
    for (std::uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
        SCOPED_TRACE("TILEWRIGHT_TEST_SEED=" + std::to_string(seed));
        const RandomCall c(seed);
        SCOPED_TRACE(c.describe());
        const Tensor q = c.input(c.heads, c.length, c.head_dim, 1),
                     k = c.input(c.kv_heads, c.kv_length, c.head_dim, 2),
                     v = c.input(c.kv_heads, c.kv_length, c.value_dim, 3),
                     dout = c.input(c.heads, c.length, c.value_dim, 4);
        const Tensor dlse = random_tensor(f32, {c.batch, c.heads, c.length}, 5);
        ReferenceOptions exact;
        exact.scale = c.options.scale;
        exact.causal = c.options.causal;
        exact.window_left = c.options.window.left;
        exact.window_right = c.options.window.right;
        exact.score_mod = c.options.score_mod;
        exact.mask = c.options.mask;
        if (c.options.block_mask.defined()) {
            const BlockMask mask = c.options.block_mask;
            const Capture dense = capture(mask.elements());
            const Mod by_data = [=](auto b, auto h, auto i, auto j) { return dense(b, h, i, j); };
            exact.mask = exact.mask.defined() ? exact.mask & by_data : by_data;
        }
        if (c.options.segment_ids.defined()) {
            exact.segment_ids = to_array(c.options.segment_ids);
            exact.kv_segment_ids = to_array(c.options.kv_segment_ids);
        }
        exact.sinks = to_array(c.options.sinks);
        exact.dropout = c.options.dropout;
        exact.seed = c.options.seed;
        ReferenceOptions plain = exact;
        plain.arithmetic = c.dtype;
        const Array qa = to_array(q), ka = to_array(k), va = to_array(v);
        const auto truth = reference_forward(qa, ka, va, exact);
        const auto rounded = reference_forward(qa, ka, va, plain);
        const Tensor gq = c.given(q), gk = c.given(k), gv = c.given(v);
        const AttentionOutput ours = attention(gq, gk, gv, c.options);
        // Where a mod computes in f32, functions have the errors of f32, under f64 scores too.
        const DType precision = c.dtype == f64 && c.options.score_mod.defined() ? f32 : c.dtype;
        const DType statistics = precision == f64 ? f64 : f32;
        expect_close("out", c.plain(ours.out), truth.out, rounded.out, precision);
        expect_close("lse", ours.lse, truth.lse, rounded.lse, statistics);
        expect_close("max", ours.max_scores, truth.max_scores, rounded.max_scores, statistics);
        const Array da = to_array(dout), la = to_array(dlse);
        const auto g = reference_backward(qa, ka, va, da, la, exact);
        plain.from_stored = true;
        const auto p = reference_backward(qa, ka, va, da, la, plain);
        const AttentionGradients grads =
            attention_backward(gq, gk, gv, ours, c.given(dout), c.options, dlse);
        expect_close("dq", c.plain(grads.query), g.query, p.query, precision);
        expect_close("dk", c.plain(grads.key), g.key, p.key, precision);
        expect_close("dv", c.plain(grads.value), g.value, p.value, precision);
        if (c.options.sinks.defined()) {
            const DType narrow = size_of(precision) < 4 ? c.dtype : f32;
            expect_close("dsinks", grads.sinks, g.sinks, p.sinks, narrow);
        }
        ASSERT_EQ(grads.captured.size(), g.captured.size());
        for (std::size_t i = 0; i < g.captured.size(); ++i) {
            const DType own = grads.captured[i].dtype();
            expect_close("captured", grads.captured[i], g.captured[i], p.captured[i],
                         size_of(precision) < size_of(own) ? c.dtype : own,
                         walk_of(g.captured[i], truth.lse, static_cast<double>(c.kv_length)));
        }
    }
}

}  // namespace
}  // namespace tilewright::attn
