// The library of score mods.
#include "tilewright/scores.h"

#include <cmath>

#include "mod/library.h"
#include "mod/traced.h"
#include "support/check.h"

namespace tilewright {

Mod compose(const Mod& outer, const Mod& inner) {
    mod::expect_kind("compose", "outer", outer, Mod::Kind::score);
    mod::expect_kind("compose", "inner", inner, Mod::Kind::score);
    return Mod::make(Mod::Kind::score, {}, [outer, inner](std::span<const Tile> x) -> Operand {
        return outer(inner(x[0], x[1], x[2], x[3], x[4]), x[1], x[2], x[3], x[4]);
    });
}

namespace scores {
namespace {

template <typename F>
Mod score_mod(const char* name, F function) {
    return Mod(std::move(function)).renamed(name);
}

/// UserError unless the array has this rank and is of integers, or of floats.
void expect_array(const char* op, const char* argument, const Capture& array, int rank,
                  bool integers) {
    const Tensor& tensor = array.tensor();
    if (tensor.rank() == rank &&
        (integers ? is_integer(tensor.dtype()) : is_float(tensor.dtype()))) {
        return;
    }
    user_error(op, "expected {} of rank {} and {} but got {}", argument, rank,
               integers ? "integers" : "floats", tensor.type_name());
}

void expect_positive(const char* op, const char* argument, std::int64_t value) {
    if (value < 1) user_error(op, "expected {} of at least 1 but got {}", argument, value);
}

}  // namespace

Mod alibi(std::int64_t heads) {
    expect_positive("alibi", "heads", heads);
    const double unit = -8.0 / static_cast<double>(heads);
    return score_mod("alibi", [unit](auto s, auto, auto h, auto q, auto kv) {
        return s + exp2((h + 1) * unit) * (kv - q);
    });
}

Mod alibi(const Capture& slopes) {
    expect_array("alibi", "slopes", slopes, 1, false);
    return score_mod("alibi", [slopes](auto s, auto, auto h, auto q, auto kv) {
        return s + slopes[h] * (kv - q);
    });
}

Mod softcap(double cap, bool approx) {
    if (!(cap > 0) || !std::isfinite(cap)) {
        user_error("softcap", "expected a positive finite cap but got {}", cap);
    }
    return score_mod("softcap", [cap, approx](auto s, auto, auto, auto, auto) {
        return cap * tanh(s * (1 / cap), approx);
    });
}

Mod relative_position() {
    return score_mod("relative_position",
                     [](auto s, auto, auto, auto q, auto kv) { return s + (q - kv); });
}

Mod bias(const Capture& table) {
    const Tensor& tensor = table.tensor();
    const int rank = tensor.rank();
    if (rank < 2 || rank > 4 || !is_float(tensor.dtype())) {
        user_error("bias",
                   "expected a table (q, kv), (h, q, kv) or (b, h, q, kv) of floats but got {}",
                   tensor.type_name());
    }
    return score_mod("bias", [table, rank](auto s, auto b, auto h, auto q, auto kv) {
        const Tile positions[] = {b, h, q, kv};
        std::vector<Operand> indices;
        for (int d = 0; d < rank; ++d) {
            // A dimension of one element is read for every position.
            const bool broadcast = table.tensor().dim(d) == 1;
            indices.push_back(broadcast ? Operand(0) : Operand(positions[4 - rank + d]));
        }
        return s + table.element(indices);
    });
}

Mod t5(const Capture& table, bool bidirectional, std::int64_t max_distance) {
    expect_array("t5", "table", table, 2, false);
    const std::int64_t buckets = table.tensor().dim(0) / (bidirectional ? 2 : 1);
    const std::int64_t exact = buckets / 2;
    if (exact < 1 || max_distance <= exact) {
        user_error("t5",
                   "expected a table (buckets, heads) with fewer exact buckets than max_distance, "
                   "{}, but got {}",
                   max_distance, table.tensor().type_name());
    }
    return score_mod("t5", [=](auto s, auto, auto h, auto q, auto kv) {
        const Tile distance = kv - q;
        const Tile n = bidirectional ? abs(distance) : maximum(-distance, 0);
        // Logarithmic from `exact` up to max_distance.
        const double unit =
            static_cast<double>(buckets - exact) /
            std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
        const Tile far = (log(maximum(n, 1) * (1.0 / static_cast<double>(exact))) * unit).to(i64);
        Tile bucket = where(n < exact, n, clamp(far + exact, 0, buckets - 1));
        if (bidirectional) bucket = bucket + where(distance > 0, buckets, 0);
        return s + table(bucket, h);
    });
}

Mod sandwich(std::int64_t heads, std::int64_t max_length, std::int64_t dim) {
    expect_positive("sandwich", "heads", heads);
    expect_positive("sandwich", "max_length", max_length);
    expect_positive("sandwich", "dim", dim);
    Tensor table = Tensor::empty(f32, {max_length});
    for (std::int64_t distance = 0; distance < max_length; ++distance) {
        double sum = 0;
        for (std::int64_t i = 0; i < dim / 2; ++i) {
            sum += std::cos(
                static_cast<double>(distance) *
                std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(dim)));
        }
        table.data<float>()[distance] = static_cast<float>(sum);
    }
    const Capture sums = capture(table, "sandwich", false);
    const double unit = static_cast<double>(heads) / 8;
    const std::int64_t last = max_length - 1;
    return score_mod("sandwich", [sums, unit, last](auto s, auto, auto h, auto q, auto kv) {
        return s + sums[minimum(abs(q - kv), last)] * (unit / (h + 1).to(f32));
    });
}

Mod graphormer_spatial(const Capture& bias, const Capture& distance) {
    expect_array("graphormer_spatial", "bias", bias, 2, false);
    expect_array("graphormer_spatial", "distance", distance, 3, true);
    return score_mod("graphormer_spatial", [=](auto s, auto b, auto h, auto q, auto kv) {
        return s + bias(h, distance(b, q, kv));
    });
}

Mod graphormer_edge(const Capture& edge_bias, const Capture& types, const Capture& lengths) {
    expect_array("graphormer_edge", "edge_bias", edge_bias, 3, false);
    expect_array("graphormer_edge", "types", types, 4, true);
    expect_array("graphormer_edge", "lengths", lengths, 3, true);
    const std::int64_t edges = edge_bias.tensor().dim(1);
    if (types.tensor().dim(3) != edges) {
        user_error("graphormer_edge", "expected types (b, q, kv, {}) but got {}", edges,
                   types.tensor().type_name());
    }
    return score_mod("graphormer_edge", [=](auto s, auto b, auto h, auto q, auto kv) {
        const Tile length = lengths(b, q, kv);
        Tile sum = constant(0.0, s.dtype());
        for (std::int64_t n = 0; n < edges; ++n) {
            sum = sum + where(length > n, edge_bias(h, n, types(b, q, kv, n)), 0.0);
        }
        return s + sum / maximum(length, 1);
    });
}

Mod activation(const std::string& f, double n) {
    using Function = Tile (*)(Tile);
    static const std::map<std::string, Function> kFunctions{
        {"relu", [](Tile x) { return relu(x); }},
        {"sigmoid", [](Tile x) { return sigmoid(x); }},
        {"softplus", [](Tile x) { return softplus(x); }},
        {"exp", [](Tile x) { return exp(x); }},
        {"square", [](Tile x) { return square(x); }},
    };
    const auto found = kFunctions.find(f);
    if (found == kFunctions.end()) {
        user_error("activation",
                   "expected one of relu, sigmoid, softplus, exp, square but got `{}`", f);
    }
    return score_mod("activation", [function = found->second, n](auto s, auto, auto, auto, auto) {
        return log(function(s) + n);
    });
}

Mod mla_rope(const Capture& q_rope, const Capture& k_rope, double scale) {
    expect_array("mla_rope", "q_rope", q_rope, 4, false);
    expect_array("mla_rope", "k_rope", k_rope, 4, false);
    const Tensor &q_tensor = q_rope.tensor(), &k_tensor = k_rope.tensor();
    if (k_tensor.dim(1) == 0 || q_tensor.dim(1) % k_tensor.dim(1) != 0 ||
        q_tensor.dim(3) != k_tensor.dim(3)) {
        user_error("mla_rope",
                   "expected q_rope (b, heads, q, d) and k_rope (b, kv heads, kv, d), heads a "
                   "multiple of kv heads, but got {} and {}",
                   q_tensor.type_name(), k_tensor.type_name());
    }
    const std::int64_t group = q_tensor.dim(1) / k_tensor.dim(1);
    return score_mod("mla_rope", [=](auto s, auto b, auto h, auto q, auto kv) {
        // In separate statements: gradients come in the order of use, and that of function
        // arguments is unspecified.
        const auto queries = q_rope.row(b, h, q);
        const auto keys = k_rope.row(b, h / group, kv);
        return s + dot(queries, keys) * scale;
    });
}

Mod checkerboard(double even, double odd) {
    return score_mod("checkerboard", [even, odd](auto s, auto, auto, auto q, auto kv) {
        return s * where(floormod(kv - q, 2) == 0, even, odd);
    });
}

}  // namespace scores

namespace mod {

std::span<const LibraryEntry> score_library() {
    using A = const Arguments&;
    constexpr auto kScore = Mod::Kind::score;
    static const std::vector<LibraryEntry> kEntries{
        {"alibi",
         kScore,
         {"slopes_or_heads"},
         1,
         [](A a) {
             return a.is_array(0) ? scores::alibi(a.array(0)) : scores::alibi(a.integer(0));
         }},
        {"softcap",
         kScore,
         {"cap", "approx"},
         1,
         [](A a) { return scores::softcap(a.number(0), a.flag(1, false)); }},
        {"relative_position", kScore, {}, 0, [](A) { return scores::relative_position(); }},
        {"bias", kScore, {"table"}, 1, [](A a) { return scores::bias(a.array(0)); }},
        {"t5",
         kScore,
         {"table", "bidirectional", "max_distance"},
         1,
         [](A a) { return scores::t5(a.array(0), a.flag(1, true), a.integer(2, 128)); }},
        {"sandwich",
         kScore,
         {"heads", "max_length", "dim"},
         2,
         [](A a) { return scores::sandwich(a.integer(0), a.integer(1), a.integer(2, 128)); }},
        {"graphormer_spatial",
         kScore,
         {"bias", "distance"},
         2,
         [](A a) { return scores::graphormer_spatial(a.array(0), a.array(1)); }},
        {"graphormer_edge",
         kScore,
         {"edge_bias", "types", "lengths"},
         3,
         [](A a) { return scores::graphormer_edge(a.array(0), a.array(1), a.array(2)); }},
        {"activation",
         kScore,
         {"f", "n"},
         1,
         [](A a) { return scores::activation(a.function(0), a.number(1, 0)); }},
        {"mla_rope",
         kScore,
         {"q_rope", "k_rope", "scale"},
         3,
         [](A a) { return scores::mla_rope(a.array(0), a.array(1), a.number(2)); }},
        {"checkerboard",
         kScore,
         {"even", "odd"},
         0,
         [](A a) { return scores::checkerboard(a.number(0, 1), a.number(1, 0.5)); }},
    };
    return kEntries;
}

}  // namespace mod
}  // namespace tilewright
