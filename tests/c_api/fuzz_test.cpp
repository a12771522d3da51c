// Invalid structs at every entry point of the C interface: each call returns a status and a text,
// writes all results or none, and never reads out of bounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tilewright/c_api.h"

namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr int kRounds = 10000;

/// Random choices, repeatable for a seed.
class Random {
  public:
    explicit Random(unsigned seed) : engine_(seed) {}
    std::size_t below(std::size_t n) { return engine_() % n; }
    bool one_in(std::size_t n) { return below(n) == 0; }
    template <typename T>
    T of(std::initializer_list<T> values) {
        return values.begin()[below(values.size())];
    }

  private:
    std::mt19937 engine_;
};

/// A view with memory for all shapes and strides that can be addressed, and up to two wrong fields.
class View {
  public:
    View(Random& random, std::initializer_list<std::int64_t> shape, bool integers = false) {
        view_.data = memory_.data();
        view_.device = {kDLCPU, 0};
        view_.ndim = static_cast<std::int32_t>(shape.size());
        view_.dtype = integers            ? DLDataType{kDLInt, 32, 1}
                      : random.one_in(16) ? DLDataType{kDLBfloat, 16, 1}
                                          : DLDataType{kDLFloat, 32, 1};
        shape_.fill(1);
        std::copy(shape.begin(), shape.end(), shape_.begin());
        strides_.fill(0);
        view_.shape = shape_.data();
        std::int64_t stride = 1;
        for (std::size_t d = shape.size(); d-- > 0; stride *= shape_[d]) strides_[d] = stride;
        view_.strides = random.one_in(2) ? strides_.data() : nullptr;
        if (random.one_in(8)) lie(random);
        if (random.one_in(16)) lie(random);
        absent_ = random.one_in(40);
    }
    operator const DLTensor*() const { return absent_ ? nullptr : &view_; }

  private:
    void lie(Random& random) {
        const std::size_t d = random.below(4);
        switch (random.below(10)) {
            case 0:
                view_.ndim = random.of<std::int32_t>({-1, 0, 1, 9, 65, 1000, 1 << 30, INT32_MIN});
                break;
            case 1:
                view_.shape = nullptr;
                break;
            case 2:
                view_.data = nullptr;
                view_.byte_offset = random.of<std::uint64_t>({0, 4, 1 << 20});
                break;
            case 3:
                view_.byte_offset = random.of<std::uint64_t>({~std::uint64_t{0}, 1, 64});
                break;
            case 4:
                view_.strides = strides_.data();
                strides_[d] = random.of<std::int64_t>({kMin, kMax, 0});
                break;
            case 5:
                shape_[d] = random.of<std::int64_t>({-1, kMin, kMax, 0, 3});
                break;
            case 6:  // one element, repeated: fits in memory, but its results do not
                view_.strides = strides_.data();
                strides_.fill(0);
                shape_[d] = std::int64_t{1} << random.of<int>({45, 50, 57});
                break;
            case 7:
                view_.dtype = {
                    static_cast<std::uint8_t>(random.below(256)),
                    static_cast<std::uint8_t>(random.of<int>({0, 1, 8, 16, 32, 64, 255})),
                    static_cast<std::uint16_t>(random.of<int>({1, 1, 0, 2, 65535}))};
                break;
            case 8: {
                const auto kind = random.of<std::int32_t>({0, 3, 4, 77, -1, INT32_MIN});
                std::memcpy(&view_.device.device_type, &kind, sizeof(kind));
                break;
            }
            default:
                view_.device = {kDLCUDA, random.of<std::int32_t>({-1, 1000, INT32_MAX})};
        }
    }

    alignas(64) std::array<std::byte, 1 << 16> memory_{};
    std::array<std::int64_t, 64> shape_{}, strides_{};
    DLTensor view_{};
    bool absent_ = false;
};

/// Memory for results, which a failed call must not write.
class Places {
  public:
    ~Places() {
        for (DLManagedTensor* each : places_) tw_release(each);
    }
    DLManagedTensor** operator[](std::size_t i) { return &places_[i]; }
    bool untouched() const {
        return std::all_of(places_.begin(), places_.end(), [](auto* each) { return !each; });
    }

  private:
    std::array<DLManagedTensor*, 6> places_{};
};

/// Counts statuses of calls, and fails for those that must not occur.
class Ends {
  public:
    void add(tw_status status, const Places& places, unsigned seed) {
        ASSERT_TRUE(status >= TW_OK && status <= TW_OUT_OF_MEMORY) << seed;
        ASSERT_NE(status, TW_FAILED) << seed << ": " << tw_error();
        ++counts_[status];
        if (status == TW_OK) return;
        ASSERT_TRUE(places.untouched()) << seed;
        ASSERT_EQ(tw_error()[0], '[') << seed << ": " << tw_error();
    }
    /// Both successes and failures must occur, or the test proves nothing.
    void expect_both(int least = 100) const {
        EXPECT_GT(counts_[TW_OK], least);
        EXPECT_GT(counts_[TW_BAD_INPUT], least);
    }
    int count(tw_status status) const { return counts_[status]; }

  private:
    std::array<int, 4> counts_{};
};

TEST(CApiFuzz, Norms) {
    Ends ends;
    for (unsigned seed = 0; seed < kRounds; ++seed) {
        Random random(seed);
        View x(random, {2, 3, 8}), weight(random, {8}), bias(random, {8}),
            residual(random, {2, 3, 8}), dy(random, {2, 3, 8}), rows(random, {2, 3});
        Places places;
        const double eps = random.of({1e-5, 0.0, -1.0, std::nan(""), HUGE_VAL});
        const DLTensor* const none = nullptr;
        switch (random.below(4)) {
            case 0:
                ends.add(tw_rms_norm(x, weight, eps, random.one_in(2) ? none : residual, places[0],
                                     places[1], places[2]),
                         places, seed);
                break;
            case 1:
                ends.add(tw_layer_norm(x, weight, bias, eps, random.one_in(2) ? none : residual,
                                       places[0], places[1], places[2], places[3]),
                         places, seed);
                break;
            case 2:
                ends.add(
                    tw_rms_norm_backward(x, rows, weight, eps, dy, nullptr, places[0], places[1]),
                    places, seed);
                break;
            default:
                ends.add(tw_layer_norm_backward(x, rows, rows, weight, bias, eps, dy, nullptr,
                                                places[0], places[1], places[2]),
                         places, seed);
        }
    }
    ends.expect_both();
    EXPECT_GT(ends.count(TW_OUT_OF_MEMORY), 0);
}

tw_attention_options hostile_options(Random& random) {
    tw_attention_options options;
    tw_attention_options_init(&options);
    const auto edge = [&] {
        return random.one_in(4) ? random.of<std::int64_t>({0, 3, kMax, -2, kMin}) : -1;
    };
    options.window_left = edge();
    options.window_right = edge();
    options.causal = random.of({0, 1, -1, 77});
    options.deterministic = random.of({0, 1, 77});
    options.checked = random.one_in(10) ? 1 : 0;
    if (random.one_in(4)) options.scale = random.of({0.0, -1.0, HUGE_VAL, 1e308});
    if (random.one_in(4)) options.dropout = random.of({0.5, 1.0, -1.0, 2.0, std::nan("")});
    if (random.one_in(8)) options.engine = random.of({"", "tiles", "sm90", "\xff%n{}"});
    if (random.one_in(8)) options.size = random.of<std::uint64_t>({0, 1, 16, 24, 4096, ~0ULL});
    return options;
}

TEST(CApiFuzz, Attention) {
    Ends ends;
    tw_mod *score = nullptr, *causal = nullptr;
    tw_mask* mask = nullptr;
    ASSERT_EQ(tw_parse_mod("score * 2", TW_MOD_SCORE, nullptr, nullptr, 0, &score), TW_OK);
    ASSERT_EQ(tw_parse_mod("causal", TW_MOD_MASK, nullptr, nullptr, 0, &causal), TW_OK);
    ASSERT_EQ(tw_create_block_mask(causal, 1, 1, 5, 5, 4, 4, &mask), TW_OK);
    for (unsigned seed = 0; seed < kRounds; ++seed) {
        Random random(seed);
        View q(random, {1, 2, 5, 4}), k(random, {1, 2, 5, 4}), v(random, {1, 2, 5, 4}),
            ids(random, {1, 5}, true), starts(random, {2}, true), lengths(random, {1}, true),
            sinks(random, {2}), out(random, {1, 2, 5, 4}), lse(random, {1, 2, 5}),
            dout(random, {1, 2, 5, 4});
        tw_attention_options options = hostile_options(random);
        if (random.one_in(4)) options.segment_ids = ids;
        if (random.one_in(8)) options.cu_seqlens = starts;
        if (random.one_in(4)) options.kv_lengths = lengths;
        if (random.one_in(4)) options.sinks = sinks;
        // Mods in each other's place are bad input, too.
        if (random.one_in(3)) options.score_mod = random.of({score, score, causal});
        if (random.one_in(3)) options.mask_mod = random.of({causal, causal, score});
        if (random.one_in(3)) options.block_mask = mask;
        Places places;
        if (random.one_in(2)) {
            ends.add(tw_attention(q, k, v, &options, places[0], places[1], places[2]), places,
                     seed);
        } else {
            ends.add(tw_attention_backward(q, k, v, out, lse, dout, nullptr, &options, places[0],
                                           places[1], places[2], places[3],
                                           random.one_in(2) ? places[4] : nullptr,
                                           random.of({0, 0, 1, -1, INT_MAX})),
                     places, seed);
        }
    }
    ends.expect_both();
    tw_mask_release(mask);
    tw_mod_release(causal);
    tw_mod_release(score);
}

TEST(CApiFuzz, ModsAndMasks) {
    Ends ends;
    const Places none;
    for (unsigned seed = 0; seed < kRounds; ++seed) {
        Random random(seed);
        const View table(random, {8});
        const DLTensor* const arrays[] = {table};
        const char* const names[] = {random.of<const char*>({"t", "t", "", nullptr, "q", "\xff"})};
        const char* const text = random.of<const char*>(
            {"causal", "q >= kv", "score + t[h]", "score + t[", "", nullptr, "\xff\xfe", "t[t[h]]",
             "sliding_window(99999999999999999999)", "q // 0 == 0", "((((((((((((((((q"});
        tw_mod* mod = nullptr;
        const int kind = random.of({0, 0, 1, 2, 3, 77, -1, INT_MAX});
        const tw_status status = tw_parse_mod(
            text, kind, random.one_in(20) ? nullptr : names, random.one_in(20) ? nullptr : arrays,
            random.of({0, 1, 1, -1, INT_MIN}), random.one_in(50) ? nullptr : &mod);
        ends.add(status, none, seed);
        ASSERT_EQ(mod != nullptr, status == TW_OK) << seed;
        if (kind < 0 || kind > 2) {
            ASSERT_EQ(status, TW_BAD_INPUT) << seed << ": kind " << kind;
        }
        if (!mod) continue;
        ASSERT_NE(tw_mod_ir(mod), nullptr);
        const auto size = [&] {
            return random.of<std::int64_t>({1, 1, 2, 100, 1000, 0, -1, kMin, kMax, kMax / 2});
        };
        tw_mask* mask = nullptr;
        const tw_status made =
            tw_create_block_mask(mod, random.of<std::int64_t>({1, 1, 2, 0, -1, kMin, kMax}),
                                 random.of<std::int64_t>({1, 1, 2, 0, -1, kMin, kMax}), size(),
                                 size(), size(), size(), random.one_in(50) ? nullptr : &mask);
        ends.add(made, none, seed);
        ASSERT_EQ(mask != nullptr, made == TW_OK) << seed;
        if (mask) {
            double sparsity = 0;
            std::int64_t nbytes = 0;
            ASSERT_EQ(tw_mask_describe(mask, random.one_in(2) ? nullptr : &sparsity,
                                       random.one_in(2) ? nullptr : &nbytes),
                      TW_OK);
        }
        tw_mask_release(mask);
        tw_mod_release(mod);
    }
    ends.expect_both();
}

TEST(CApiFuzz, Programs) {
    const char* const kDoubled =
        "func @doubled(%x: ref<f32[2, 3, 8]>, %y: ref<f32[2, 3, 8]>) {\n"
        "  %0 = constant 0 : i64\n"
        "  %1 = load %x[%0 : 2, %0 : 3, %0 : 8] : f32[2, 3, 8]\n"
        "  %2 = add %1, %1 : f32[2, 3, 8]\n"
        "  store %y[%0 : 2, %0 : 3, %0 : 8], %2\n"
        "  yield\n"
        "}\n";
    Ends ends;
    const Places none;
    for (unsigned seed = 0; seed < kRounds; ++seed) {
        Random random(seed);
        DLDevice device{kDLCPU, 0};
        if (random.one_in(8)) {
            const auto kind = random.of<std::int32_t>({0, 2, 3, 77, -1, INT32_MIN});
            std::memcpy(&device.device_type, &kind, sizeof(kind));
            device.device_id = random.of<std::int32_t>({-1, 1000, INT32_MIN});
        }
        const char* const text =
            random.one_in(8) ? random.of<const char*>({"", nullptr, "func @f(", "\xff", "func"})
                             : kDoubled;
        tw_program* program = nullptr;
        const tw_status made = tw_program_create(text, device, random.one_in(8) ? 77 : 0,
                                                 random.one_in(50) ? nullptr : &program);
        ends.add(made, none, seed);
        ASSERT_EQ(program != nullptr, made == TW_OK) << seed;
        if (!program) continue;
        ASSERT_EQ(tw_program_arrays(program), 2);
        const char* name = nullptr;
        int rank = 0;
        const int index = random.of({0, 1, 2, -1, INT_MAX, INT_MIN});
        const tw_status told = tw_program_array(program, index, random.one_in(2) ? nullptr : &name,
                                                nullptr, &rank, nullptr, nullptr);
        ASSERT_EQ(told, index == 0 || index == 1 ? TW_OK : TW_BAD_INPUT) << seed;
        const View x(random, {2, 3, 8}), y(random, {2, 3, 8});
        const DLTensor* const arrays[] = {x, y};
        ends.add(tw_program_run(program, random.one_in(20) ? nullptr : arrays,
                                random.of({2, 2, 2, 1, 0, -1, INT_MIN})),
                 none, seed);
        tw_program_release(program);
    }
    ends.expect_both();
    tw_program_release(nullptr);
    EXPECT_EQ(tw_program_arrays(nullptr), 0);
}

TEST(CApiFuzz, ThreadCountsAndNullPointersAreErrors) {
    for (int threads : {0, -1, INT_MIN, INT_MAX, 1}) {
        EXPECT_EQ(tw_set_num_threads(threads), threads < 0 ? TW_BAD_INPUT : TW_OK);
    }
    EXPECT_EQ(tw_set_num_threads(0), TW_OK);
    tw_attention_options_init(nullptr);
    EXPECT_EQ(tw_attention(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr),
              TW_BAD_INPUT);
    EXPECT_EQ(tw_mask_describe(nullptr, nullptr, nullptr), TW_BAD_INPUT);
    EXPECT_EQ(tw_mod_ir(nullptr), nullptr);
}

}  // namespace
