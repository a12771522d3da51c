// Attention under random mods, masks, shapes and types against the dense reference.
#include "tilewright/attention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "attention/reference.h"
#include "tests/attention/reference_options.h"
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
        starts = {0, length};
        kv_starts = {0, kv_length};
        if (pick(4) == 0 && !options.segment_ids.defined()) pack();
        if (pick(3) == 0) options.kv_lengths = key_lengths();
        poisoned = pick(2) == 0;
    }

    bool packed() const { return options.cu_seqlens.defined(); }

    /// The memory layouts of the arrays.
    enum class Form { bhsd, padded_rows, bshd, views_of_bshd };

    /// An array (B, H, L, E) in the layout of the call.
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

    /// An input of the query's or the key's length.
    Tensor input(std::int64_t own_heads, const std::vector<std::int64_t>& own_starts,
                 std::int64_t depth, unsigned number) const {
        return random_tensor(dtype, {packed() ? 1 : batch, own_heads, own_starts.back(), depth},
                             seed_ * 8 + number);
    }

    std::string describe() const {
        return fmt::format(
            "{} B{} H{}/{} L{} S{} E{} Ev{} form {}{}{}{}{}{}{}{}{}{}{} scale {} score\n{}",
            name(dtype), batch, heads, kv_heads, length, kv_length, head_dim, value_dim,
            static_cast<int>(form),
            packed()
                ? fmt::format(" packed {} {}", fmt::join(starts, ","), fmt::join(kv_starts, ","))
                : "",
            options.causal ? " causal" : "", options.segment_ids.defined() ? " segments" : "",
            options.window == Window{} ? "" : " window", options.mask.defined() ? " mask" : "",
            options.block_mask.defined() ? " block mask" : "",
            options.kv_lengths.defined() ? " lengths" : "", poisoned ? " poisoned" : "",
            options.sinks.defined() ? " sinks" : "", options.dropout > 0 ? " dropout" : "",
            options.scale.value_or(0),
            options.score_mod.defined() ? options.score_mod.ir() : "none");
    }

    AttentionOptions options;
    DType dtype;
    std::int64_t batch, heads, kv_heads, length, kv_length, head_dim, value_dim;
    Form form;
    bool poisoned;  ///< keys that no query may attend to hold NaN
    /// Starts of the sequences (packed ones, or one per batch), followed by the end.
    std::vector<std::int64_t> starts, kv_starts;

  private:
    /// Chooses sequences that fill the lengths; some are empty.
    void pack() {
        const std::int64_t count = 1 + pick(4);
        starts = kv_starts = {0};
        for (std::int64_t n = 0; n < count; ++n) {
            starts.push_back(starts.back() + pick(length + 1));
            kv_starts.push_back(kv_starts.back() + pick(kv_length + 1));
        }
        if (pick(3) == 0) {
            kv_length = std::max(length, kv_length);
            kv_starts = starts;
        } else {
            options.kv_cu_seqlens = Tensor::from_vector(kv_starts, {count + 1});
        }
        options.cu_seqlens = Tensor::from_vector(starts, {count + 1});
        if (options.block_mask.defined()) {
            options.block_mask = create_block_mask(mask(1), 1, pick(2) == 0 ? 1 : heads,
                                                   starts.back(), kv_starts.back());
        }
    }

    /// A length for every batch or packed sequence.
    Tensor key_lengths() {
        std::vector<std::int32_t> lengths;
        const std::int64_t count =
            packed() ? static_cast<std::int64_t>(kv_starts.size()) - 1 : batch;
        for (std::size_t n = 0; n < static_cast<std::size_t>(count); ++n) {
            const std::int64_t keys = packed() ? kv_starts[n + 1] - kv_starts[n] : kv_length;
            lengths.push_back(static_cast<std::int32_t>(pick(keys + 1)));
        }
        return Tensor::from_vector(lengths, {count});
    }

    std::int64_t pick(std::int64_t n) {
        return static_cast<std::int64_t>(generator_() % static_cast<std::uint64_t>(n));
    }

    /// Small floats, so that scores stay in the range that the tolerance of lse allows for.
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

/// The random walk of rounding in a captured array's gradient: pairs that read one element are
/// added one after the other, and a row's rounded lse scales all of its probabilities.
double walk_of(const Array& gradient, const Array& lse, double keys) {
    const double rows = static_cast<double>(lse.data.size());
    const double used = static_cast<double>(
        std::count_if(gradient.data.begin(), gradient.data.end(), [](double x) { return x != 0; }));
    const double terms = rows * keys / std::max(used, 1.0);
    return std::max(std::sqrt(terms), std::sqrt(std::min(rows, terms)) * largest_of(lse));
}

/// Allows twice the bound of docs/explanation/numerics.md: with the same roundings, one sample's
/// error is sometimes more than twice another's. `walk`: f32 epsilons for sums whose roundings are
/// a random walk.
void expect_close(const char* what, const Tensor& ours, const Array& exact, const Array& plain,
                  DType dtype, double walk = 0) {
    const double error = largest_error(to_array(ours), exact);
    const double allowed = std::max(2 * allowed_error(plain, exact, dtype),
                                    walk * epsilon(f32) * std::max(1.0, largest_of(exact)));
    EXPECT_TRUE(error <= allowed) << what << ": error " << error << ", allowed " << allowed;
}

/// Positions [first, first + count) along the third axis.
Array part(const Array& x, std::int64_t first, std::int64_t count) {
    Array result = x;
    result.shape[2] = count;
    result.data.clear();
    const std::int64_t inner = x.shape.size() > 3 ? x.shape[3] : 1, length = x.shape[2];
    for (std::int64_t outer = 0; outer < x.shape[0] * x.shape[1]; ++outer) {
        const auto from = x.data.begin() + (outer * length + first) * inner;
        result.data.insert(result.data.end(), from, from + count * inner);
    }
    return result;
}
/// Writes the positions that `part` reads.
void put(Array& x, std::int64_t first, const Array& values) {
    const std::int64_t inner = x.shape.size() > 3 ? x.shape[3] : 1, length = x.shape[2],
                       count = values.shape[2];
    for (std::int64_t outer = 0; outer < x.shape[0] * x.shape[1]; ++outer) {
        std::copy_n(values.data.begin() + outer * count * inner, count * inner,
                    x.data.begin() + (outer * length + first) * inner);
    }
}
void add(Array& sum, const Array& values) {
    for (std::size_t i = 0; i < sum.data.size(); ++i) sum.data[i] += values.data[i];
}

/// The reference for a call; packed sequences are computed one by one.
class Reference {
  public:
    Reference(const RandomCall& call, const Tensor& q, const Tensor& k, const Tensor& v)
        : c_(call), q_(to_array(q)), k_(to_array(k)), v_(to_array(v)) {}

    /// Writes NaN to keys and values that no query may attend to, also in the reference's copies.
    void poison(const Tensor& key, const Tensor& value) {
        if (!c_.packed()) {
            poison_unattended(reference_attended_keys(q_, k_, options(f64, 0)), key, value);
        } else {
            for_each_sequence([&](std::size_t n, std::int64_t first, std::int64_t count,
                                  std::int64_t kv_first, std::int64_t kv_count) {
                poison_unattended(
                    reference_attended_keys(part(q_, first, count), part(k_, kv_first, kv_count),
                                            options(f64, n)),
                    key.slice(2, kv_first, kv_count), value.slice(2, kv_first, kv_count));
            });
        }
        k_ = to_array(key);
        v_ = to_array(value);
    }

    ReferenceOutput forward(DType arithmetic) const {
        if (!c_.packed()) return reference_forward(q_, k_, v_, options(arithmetic, 0));
        const std::int64_t total = c_.starts.back();
        ReferenceOutput result{Array({1, c_.heads, total, c_.value_dim}),
                               Array({1, c_.heads, total}), Array({1, c_.heads, total})};
        for_each_sequence([&](std::size_t n, std::int64_t first, std::int64_t count,
                              std::int64_t kv_first, std::int64_t kv_count) {
            const auto one =
                reference_forward(part(q_, first, count), part(k_, kv_first, kv_count),
                                  part(v_, kv_first, kv_count), options(arithmetic, n));
            put(result.out, first, one.out);
            put(result.lse, first, one.lse);
            put(result.max_scores, first, one.max_scores);
        });
        return result;
    }

    /// `plain`: as computed in these dtypes, from the rounded results of the forward pass.
    ReferenceGradients backward(const Tensor& dout, const Tensor& dlse, bool plain) const {
        const Array da = to_array(dout), la = to_array(dlse);
        const auto options = [&](std::size_t sequence) {
            ReferenceOptions result = this->options(plain ? c_.dtype : f64, sequence);
            result.from_stored = plain;
            return result;
        };
        if (!c_.packed()) return reference_backward(q_, k_, v_, da, la, options(0));
        ReferenceGradients result{Array(q_.shape), Array(k_.shape), Array(v_.shape), {}, {}};
        bool first_one = true;
        for_each_sequence([&](std::size_t n, std::int64_t first, std::int64_t count,
                              std::int64_t kv_first, std::int64_t kv_count) {
            const auto one = reference_backward(
                part(q_, first, count), part(k_, kv_first, kv_count), part(v_, kv_first, kv_count),
                part(da, first, count), part(la, first, count), options(n));
            put(result.query, first, one.query);
            put(result.key, kv_first, one.key);
            put(result.value, kv_first, one.value);
            if (first_one) {
                result.sinks = one.sinks;
                result.captured = one.captured;
            } else {
                add(result.sinks, one.sinks);
                for (std::size_t i = 0; i < one.captured.size(); ++i)
                    add(result.captured[i], one.captured[i]);
            }
            first_one = false;
        });
        return result;
    }

  private:
    template <typename F>
    void for_each_sequence(F f) const {
        for (std::size_t n = 0; n + 1 < c_.starts.size(); ++n) {
            f(n, c_.starts[n], c_.starts[n + 1] - c_.starts[n], c_.kv_starts[n],
              c_.kv_starts[n + 1] - c_.kv_starts[n]);
        }
    }

    ReferenceOptions options(DType arithmetic, std::size_t sequence) const {
        const AttentionOptions& given = c_.options;
        ReferenceOptions result = reference_options(given);
        if (given.block_mask.defined()) {
            const Capture dense = capture(given.block_mask.elements());
            const std::int64_t row = c_.starts[sequence], column = c_.kv_starts[sequence];
            const Mod by_data = [=](auto b, auto h, auto i, auto j) {
                return dense(b, h, i + row, j + column);
            };
            result.mask = result.mask.defined() ? result.mask & by_data : by_data;
        }
        if (c_.packed() && given.kv_lengths.defined()) {
            result.kv_lengths =
                to_array(given.kv_lengths.slice(0, static_cast<std::int64_t>(sequence), 1));
        }
        result.first_batch = static_cast<std::int64_t>(sequence);
        result.arithmetic = arithmetic;
        return result;
    }

    const RandomCall& c_;
    Array q_, k_, v_;
};

TEST(RandomAttention, AgreesWithTheDenseReference) {
    const testing::Seeds seeds = testing::seeds(100);
    for (std::uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
        SCOPED_TRACE("TILEWRIGHT_TEST_SEED=" + std::to_string(seed));
        const RandomCall c(seed);
        SCOPED_TRACE(c.describe());
        const Tensor q = c.input(c.heads, c.starts, c.head_dim, 1),
                     k = c.input(c.kv_heads, c.kv_starts, c.head_dim, 2),
                     v = c.input(c.kv_heads, c.kv_starts, c.value_dim, 3),
                     dout = c.input(c.heads, c.starts, c.value_dim, 4);
        const Tensor dlse = random_tensor(f32, {q.dim(0), c.heads, q.dim(2)}, 5);
        Reference reference(c, q, k, v);
        if (c.poisoned) reference.poison(k, v);
        const auto truth = reference.forward(f64), rounded = reference.forward(c.dtype);
        const Tensor gq = c.given(q), gk = c.given(k), gv = c.given(v);
        const AttentionOutput ours = attention(gq, gk, gv, c.options);
        // If a mod computes in f32, functions have f32 errors even for f64 scores.
        const DType precision = c.dtype == f64 && c.options.score_mod.defined() ? f32 : c.dtype;
        const DType statistics = precision == f64 ? f64 : f32;
        expect_close("out", c.plain(ours.out), truth.out, rounded.out, precision);
        expect_close("lse", ours.lse, truth.lse, rounded.lse, statistics);
        expect_close("max", ours.max_scores, truth.max_scores, rounded.max_scores, statistics);
        const auto g = reference.backward(dout, dlse, false),
                   p = reference.backward(dout, dlse, true);
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
