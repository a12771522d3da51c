// The cases of the FlexAttention notebook.
#include "cli/bench/flex_cases.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "mask/block_mask.h"
#include "support/check.h"
#include "tilewright/masks.h"
#include "tilewright/scores.h"

namespace tilewright::cli {
namespace {

/// Width of the image whose pixels are the positions: a divisor of the length.
std::int64_t picture_width(std::int64_t length, std::int64_t wanted) {
    std::int64_t width = std::min(wanted, length);
    while (length % width != 0) --width;
    return width;
}

Mod natten(std::int64_t length) {
    const std::int64_t width = picture_width(length, 128), height = length / width;
    const std::int64_t half = 3;  // half width of the 7 x 7 kernel
    // The kernel is shifted to stay inside the image, or covers an image smaller than itself.
    const auto near = [half](Tile q, Tile kv, std::int64_t size) {
        const std::int64_t low = std::min(half, size - 1), high = std::max(size - 1 - half, low);
        return abs(clamp(q, low, high) - kv) <= half;
    };
    return [=](auto, auto, auto q, auto kv) {
        return near(q / width, kv / width, height) & near(q % width, kv % width, width);
    };
}

Mod sasa(std::int64_t length) {
    const std::int64_t width = picture_width(length, 128);
    return [=](auto, auto, auto q, auto kv) {
        return (abs(q / width - kv / width) <= 8) & (abs(q % width - kv % width) <= 8);
    };
}

/// Ids of documents that have fixed fractions of the length.
Capture document_ids(std::int64_t length) {
    std::vector<std::int32_t> ids(length);
    for (std::int64_t i = 0; i < length; ++i) {
        // Eighths: 1, 1, 2, 2, 2.
        static constexpr std::int32_t kDocument[] = {0, 1, 2, 2, 3, 3, 4, 4};
        ids[i] = kDocument[i * 8 / length];
    }
    return capture(Tensor::from_vector(ids, {length}), "document");
}

/// ALiBi with the notebook's sign: q - kv.
Mod alibi(std::int64_t heads, bool table, Device device = {}) {
    const double unit = -8.0 / static_cast<double>(heads);
    if (!table) {
        return [unit](auto s, auto, auto h, auto q, auto kv) {
            return s + (q - kv) * exp2((h + 1) * unit);
        };
    }
    std::vector<float> values;
    for (std::int64_t h = 0; h < heads; ++h) {
        values.push_back(std::exp2(static_cast<float>(h + 1) * static_cast<float>(unit)));
    }
    const Capture slopes = capture(Tensor::from_vector(values, {heads}).to(device), "slopes");
    return [slopes](auto s, auto, auto h, auto q, auto kv) { return s + (q - kv) * slopes[h]; };
}

Tensor random_starts(std::int64_t longest) {
    std::mt19937 generator(1);
    std::vector<std::int32_t> starts{0};
    for (int n = 0; n < 16; ++n) {
        starts.push_back(
            starts.back() + 1 +
            static_cast<std::int32_t>(generator() % static_cast<std::uint32_t>(longest)));
    }
    return Tensor::from_vector(starts, {17});
}

using Make = std::function<void(const FlexSizes&, FlexCase&)>;

const std::vector<std::pair<std::string, Make>>& cases() {
    static const std::vector<std::pair<std::string, Make>> kCases{
        {"noop", [](const FlexSizes&, FlexCase&) {}},
        {"checkerboard",
         [](const FlexSizes&, FlexCase& c) {
             c.options.score_mod = [](auto s, auto, auto, auto q, auto kv) {
                 const Tile distance = abs(kv - q);
                 const Tile halved = where(distance % 1 == 0, s * 0.5, s);
                 return where(distance % 2 == 0, halved * 2, halved);
             };
         }},
        {"causal_score",
         [](const FlexSizes&, FlexCase& c) {
             c.options.score_mod = [](auto s, auto, auto, auto q, auto kv) {
                 return where(q >= kv, s, -__builtin_inf());
             };
         }},
        {"causal", [](const FlexSizes&, FlexCase& c) { c.options.mask = masks::causal(); }},
        {"sliding_window",
         [](const FlexSizes&, FlexCase& c) {
             c.options.mask = masks::sliding_window(1024);
             c.check_length = 1152;
         }},
        {"prefix_lm",
         [](const FlexSizes&, FlexCase& c) {
             c.options.mask = [](auto, auto, auto q, auto kv) { return kv <= 2048 || q >= kv; };
             c.check_length = 2176;
         }},
        {"document",
         [](const FlexSizes& s, FlexCase& c) {
             c.options.mask = masks::causal() & masks::document(document_ids(s.length));
         }},
        {"sasa", [](const FlexSizes& s, FlexCase& c) { c.options.mask = sasa(s.length); }},
        {"natten", [](const FlexSizes& s, FlexCase& c) { c.options.mask = natten(s.length); }},
        {"alibi_table",
         [](const FlexSizes& s, FlexCase& c) {
             c.options.causal = true;
             c.options.score_mod = alibi(s.heads, true, s.device);
         }},
        {"alibi_computed",
         [](const FlexSizes& s, FlexCase& c) {
             c.options.causal = true;
             c.options.score_mod = alibi(s.heads, false);
         }},
        {"soft_cap",
         [](const FlexSizes&, FlexCase& c) {
             c.options.causal = true;
             c.options.score_mod = scores::softcap(2);
         }},
        {"soft_cap_approx",
         [](const FlexSizes&, FlexCase& c) {
             c.options.causal = true;
             c.options.score_mod = scores::softcap(2, true);
         }},
        {"jagged",
         [](const FlexSizes& s, FlexCase& c) {
             c.options.causal = true;
             c.options.layout = Layout::bshd;  // views of (total, heads, head dimension)
             c.options.cu_seqlens = random_starts(std::min<std::int64_t>(s.length, 1024));
             c.q_len = c.kv_len = c.options.cu_seqlens.get_int({16});
         }},
        {"vision",
         [](const FlexSizes&, FlexCase& c) {
             c.q_len = 12;
             c.kv_len = 9;
             const Capture intervals =
                 capture(Tensor::from_vector(std::vector<std::int32_t>{0, 7, 1, 7, 7, 12}, {3, 2}),
                         "intervals");
             c.options.mask = [intervals](auto, auto, auto q, auto kv) {
                 const Tile image = kv / 3;
                 return intervals(image, 0) <= q && q < intervals(image, 1);
             };
         }},
    };
    return kCases;
}

}  // namespace

std::vector<std::string> flex_case_names() {
    std::vector<std::string> names;
    for (const auto& [name, make] : cases()) names.push_back(name);
    return names;
}

FlexCase flex_case(const std::string& name, const FlexSizes& sizes) {
    FlexCase result{name, sizes.length, sizes.length, {}};
    for (const auto& [known, make] : cases()) {
        if (known != name) continue;
        make(sizes, result);
        return result;
    }
    user_error("bench", "expected a case of {} but got `{}`", fmt::join(flex_case_names(), ", "),
               name);
}

FlexCase text_case(const std::string& mask, const std::string& score, const FlexSizes& sizes) {
    FlexCase result{mask.empty() || score.empty() ? mask + score : mask + "; " + score,
                    sizes.length,
                    sizes.kv_length,
                    {}};
    if (!mask.empty()) result.options.mask = parse_mod(mask, {}, Mod::Kind::mask);
    if (!score.empty()) result.options.score_mod = parse_mod(score, {}, Mod::Kind::score);
    return result;
}

Mod mask_of(const AttentionOptions& options) {
    if (options.mask.defined()) return options.mask;
    if (options.cu_seqlens.defined())
        return masks::jagged(masks::causal(), capture(options.cu_seqlens, "offsets"));
    if (options.causal) return masks::causal();
    if (options.score_mod.defined()) return options.score_mod;
    return [](auto, auto, auto, auto kv) { return kv >= 0; };
}

Density density(const BlockMask& mask) {
    Density result;
    const mask::MaskData& data = *mask.state()->data;
    for (std::int64_t row = 0; row < data.batch * data.heads * data.rows(); ++row) {
        const auto height = static_cast<double>(data.row_size(row % data.rows()));
        for (const mask::Run& run : data.row(row)) {
            for (std::int32_t i = 0; i < run.count; ++i) {
                if (run.full()) {
                    result.pairs += height * static_cast<double>(data.column_size(run.first + i));
                    continue;
                }
                const auto id = data.ids[run.atoms + i];
                for (std::uint64_t word : data.atoms[id]) result.pairs += std::popcount(word);
            }
        }
    }
    result.blocks = static_cast<double>(data.q_len) * static_cast<double>(data.kv_len) *
                    (1 - mask.sparsity() / 100);
    result.pairs /= static_cast<double>(data.batch * data.heads);
    return result;
}

Density packed_density(const Tensor& starts) {
    Density result;
    for (std::int64_t n = 0; n + 1 < starts.dim(0); ++n) {
        const auto length = static_cast<double>(starts.get_int({n + 1}) - starts.get_int({n}));
        result.pairs += length * (length + 1) / 2;
        const double blocks = std::ceil(length / 128);
        result.blocks += blocks * (blocks + 1) / 2 * 128 * 128;
    }
    return result;
}

AttentionInputs attention_inputs(const MakeRandom& random, const FlexSizes& sizes, Layout layout) {
    const auto make = [&](std::int64_t heads, std::int64_t length, std::uint32_t seed) {
        return layout == Layout::bhsd ? random({sizes.batch, heads, length, sizes.head_dim}, seed)
                                      : random({sizes.batch, length, heads, sizes.head_dim}, seed);
    };
    return {make(sizes.heads, sizes.length, 1), make(sizes.kv_heads, sizes.kv_length, 2),
            make(sizes.kv_heads, sizes.kv_length, 3), make(sizes.heads, sizes.length, 4)};
}

AttentionInputs attention_inputs(const MakeRandom& random, const FlexCase& flex_case,
                                 FlexSizes sizes) {
    sizes.length = flex_case.q_len;
    sizes.kv_length = flex_case.kv_len;
    return attention_inputs(random, sizes, flex_case.options.layout);
}

void describe_case(const FlexCase& flex_case, const FlexSizes& sizes, nlohmann::json& job) {
    job.update({{"case", flex_case.name},
                {"batch", sizes.batch},
                {"heads", sizes.heads},
                {"kv_heads", sizes.kv_heads},
                {"head_dim", sizes.head_dim},
                {"causal", flex_case.options.causal},
                {"q_len", flex_case.q_len},
                {"kv_len", flex_case.kv_len}});
    const Tensor& starts = flex_case.options.cu_seqlens;
    if (starts.defined()) job["starts"] = starts.to_vector<std::int32_t>();
}

}  // namespace tilewright::cli
