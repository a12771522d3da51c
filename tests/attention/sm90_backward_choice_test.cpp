// How the Hopper backward kernels are configured, without a GPU.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "attention/sm90/backward.h"
#include "attention/sm90/plain_kernels.h"
#include "tests/attention/sm90_backward_support.h"

namespace tilewright::attn::sm90 {
namespace {

TEST(Sm90BackwardChoice, FewTilesOfAGroupAreShared) {
    const auto splits = [](const Problem& p) {
        return choose_backward(check_backward(backward_inputs_of(p))).splits;
    };
    const auto causal = [](std::int64_t heads, std::int64_t kv_heads, std::int64_t length) {
        return Problem{.heads = heads,
                       .kv_heads = kv_heads,
                       .q_len = length,
                       .kv_len = length,
                       .causal = true};
    };
    EXPECT_EQ(splits(causal(64, 8, 8192)), 2);
    EXPECT_EQ(splits(causal(64, 8, 16384)), 1);
    EXPECT_EQ(splits(causal(16, 16, 8192)), 1);
    EXPECT_EQ(splits(causal(64, 8, 2048)), 4);
    EXPECT_EQ(splits(causal(6, 1, 512)), 6);
    EXPECT_EQ(splits(causal(12, 2, 128)), 6);
    EXPECT_EQ(splits(causal(4, 4, 128)), 1);
    // Most of many causal tiles have no query.
    EXPECT_EQ(splits({.heads = 8, .kv_len = 1 << 20, .causal = true}), 1);
    EXPECT_EQ(splits({.heads = 8, .q_len = 0, .kv_len = 100}), 1);
}

TEST(Sm90BackwardChoice, ShortCausalProblemsHaveSmallerBlocks) {
    const auto rows = [](std::int64_t length, bool deterministic, std::int64_t heads = 1) {
        const Problem p{.heads = heads, .q_len = length, .kv_len = length, .causal = true};
        return choose_backward(check_backward(backward_inputs_of(p, deterministic))).block_m;
    };
    EXPECT_EQ(rows(512, false), 64);
    EXPECT_EQ(rows(4096, false), 64);
    EXPECT_EQ(rows(8192, false), 80);
    EXPECT_EQ(rows(2048, true), 64);
    EXPECT_EQ(rows(4096, true), 80);
    EXPECT_EQ(rows(2048, true, 4), 64);
    EXPECT_EQ(rows(2048, false, 4), 64);
    EXPECT_EQ(rows(4096, false, 4), 64);
    EXPECT_EQ(rows(4096, true, 4), 80);
    const Problem full{.q_len = 1024, .kv_len = 1024};
    EXPECT_EQ(choose_backward(check_backward(backward_inputs_of(full))).block_m, 80);
}

TEST(Sm90BackwardChoice, KernelsOfGroupsAndOfMoreKeysComeWithTheLibrary) {
    std::set<std::string> known;
    for (const cuda::CompileRequest& unit : plain_kernels({64, 128}, {DType::bf16})) {
        known.insert(cuda::source_key(unit));
    }
    const auto causal = [](std::int64_t dim, std::int64_t heads, std::int64_t kv_len) {
        return Problem{.batch = 4,
                       .heads = heads,
                       .kv_heads = 8,
                       .q_len = 4096,
                       .kv_len = kv_len,
                       .dim = dim,
                       .value_dim = dim,
                       .causal = true};
    };
    for (const std::int64_t dim : {64, 128}) {
        for (const Problem& p :
             {causal(dim, 8, 4096), causal(dim, 64, 4096), causal(dim, 8, 5000)}) {
            for (const bool deterministic : {true, false}) {
                const BackwardDesc desc = check_backward(backward_inputs_of(p, deterministic));
                for (const cuda::CompileRequest& unit :
                     generate_backward(desc, choose_backward(desc))) {
                    EXPECT_TRUE(known.contains(cuda::source_key(unit)))
                        << unit.name << " of " << dim << " columns, " << p.heads << " heads, "
                        << p.kv_len << " keys, deterministic " << deterministic;
                }
            }
        }
    }
}

/// What makes another problem of one for which something is chosen, and whether it still is.
struct Change {
    const char* what;
    std::function<void(Problem&)> apply;
    bool is_chosen;
};

void expect_chosen(const Problem& problem, const std::function<bool(const Problem&)>& is_chosen,
                   const std::vector<Change>& changes, bool is_first = true) {
    EXPECT_EQ(is_chosen(problem), is_first);
    for (const Change& change : changes) {
        Problem changed = problem;
        change.apply(changed);
        EXPECT_EQ(is_chosen(changed), change.is_chosen) << change.what;
    }
}

void set_dims(Problem& p, std::int64_t dim) {
    p.dim = p.value_dim = dim;
}

Problem& set_lengths(Problem& p, std::int64_t length) {
    p.q_len = p.kv_len = length;
    return p;
}

TEST(Sm90BackwardChoice, LastTilesStoreQueryGradients) {
    const auto config_of = [](const Problem& p, bool deterministic) {
        return choose_backward(check_backward(backward_inputs_of(p, deterministic)));
    };
    const auto is_fused = [&](const Problem& p) { return config_of(p, true).fused; };
    const Problem problem{.heads = 2, .kv_heads = 2, .q_len = 300, .kv_len = 300, .causal = true};
    EXPECT_FALSE(config_of(problem, /*deterministic=*/false).fused);
    const auto set_narrow = [](Problem& p) { set_dims(p, 64); };
    expect_chosen(
        problem, is_fused,
        {{"queries past the last key", [](Problem& p) { p.q_len = 385; }, false},
         {"64 columns", set_narrow, true},
         {"64 columns and many rows", [&](Problem& p) { set_narrow(set_lengths(p, 2049)); }, false},
         {"64 columns and one kv head",
          [&](Problem& p) {
              set_narrow(p);
              p.kv_heads = 1;
          },
          false},
         {"64 columns and no mask",
          [&](Problem& p) {
              set_narrow(p);
              p.causal = false;
          },
          false},
         {"many rows", [](Problem& p) { set_lengths(p, 32768); }, true},
         {"below the diagonal", [](Problem& p) { p.diagonal = -1; }, false},
         {"above the diagonal", [](Problem& p) { p.diagonal = 1; }, false},
         {"a tile above the diagonal", [](Problem& p) { p.diagonal = 128; }, false},
         {"window", [](Problem& p) { p.window = 100; }, false},
         {"one kv head", [](Problem& p) { p.kv_heads = 1; }, true},
         {"one kv head and no mask",
          [](Problem& p) {
              p.kv_heads = 1;
              p.causal = false;
          },
          false},
         {"96 columns", [](Problem& p) { set_dims(p, 96); }, true},
         {"72 columns and many rows", [](Problem& p) { set_dims(set_lengths(p, 32768), 72); },
          true},
         {"96 columns and one kv head",
          [](Problem& p) {
              set_dims(p, 96);
              p.kv_heads = 1;
          },
          true},
         {"96 columns and no mask",
          [](Problem& p) {
              set_dims(p, 96);
              p.causal = false;
          },
          false},
         {"no mask", [](Problem& p) { p.causal = false; }, true},
         {"no mask, few queries and many keys",
          [](Problem& p) {
              p.causal = false;
              p.kv_len = 32768;
          },
          true},
         {"no mask and many queries",
          [](Problem& p) {
              p.causal = false;
              p.q_len = 4097;
          },
          false},
         {"values of 192 columns", [](Problem& p) { p.value_dim = 192; }, false}});
}

TEST(Sm90BackwardChoice, CausalTilesGoUpward) {
    const auto config_of = [](const Problem& p) {
        return choose_backward(check_backward(backward_inputs_of(p, /*deterministic=*/true)));
    };
    Problem problem{.batch = 8, .heads = 16, .kv_heads = 16, .causal = true};
    set_lengths(problem, 4096);
    EXPECT_EQ(config_of(problem).block_m, 80);
    expect_chosen(problem, [&](const Problem& p) { return config_of(p).upward; },
                  {{"4 kv heads", [](Problem& p) { p.kv_heads = 4; }, false},
                   {"no mask", [](Problem& p) { p.causal = false; }, false},
                   {"72 columns", [](Problem& p) { set_dims(p, 72); }, true},
                   {"192 columns", [](Problem& p) { set_dims(p, 192); }, false},
                   {"64 columns", [](Problem& p) { set_dims(p, 64); }, false},
                   {"64 columns and 2,048 rows",
                    [](Problem& p) { set_dims(set_lengths(p, 2048), 64); }, true},
                   {"window", [](Problem& p) { p.window = 100; }, false}});
    expect_chosen(
        problem, [&](const Problem& p) { return config_of(p).ahead; },
        {{"64 columns", [](Problem& p) { set_dims(p, 64); }, true},
         {"64 columns and no mask",
          [](Problem& p) {
              set_dims(p, 64);
              p.causal = false;
          },
          false},
         {"64 columns and a window",
          [](Problem& p) {
              set_dims(p, 64);
              p.window = 100;
          },
          false}},
        /*is_first=*/false);
}

TEST(Sm90BackwardChoice, SumsOfManyShortSequencesAreOrdered) {
    const auto is_sum_ordered = [](const Problem& p) {
        const BackwardDesc desc = check_backward(backward_inputs_of(p, /*deterministic=*/false));
        return is_ordered(desc, choose_backward(desc));
    };
    Problem problem{.batch = 32, .heads = 16, .kv_heads = 16, .causal = true};
    set_lengths(problem, 1024);
    expect_chosen(
        problem, is_sum_ordered,
        {{"64 columns", [](Problem& p) { set_dims(p, 64); }, true},
         {"192 columns", [](Problem& p) { p.dim = 192; }, false},
         {"2,048 rows", [](Problem& p) { set_lengths(p, 2048); }, true},
         {"64 columns and 2,048 rows", [](Problem& p) { set_dims(set_lengths(p, 2048), 64); },
          true},
         {"64 columns and 4,096 rows", [](Problem& p) { set_dims(set_lengths(p, 4096), 64); },
          false},
         {"72 columns and 4,096 rows", [](Problem& p) { set_dims(set_lengths(p, 4096), 72); },
          false},
         {"96 columns and 8,192 rows", [](Problem& p) { set_dims(set_lengths(p, 8192), 96); },
          true},
         {"8,193 rows", [](Problem& p) { set_lengths(p, 8193); }, false},
         {"few tiles: each would wait for the one before it", [](Problem& p) { p.batch = 2; },
          false},
         {"8 kv heads", [](Problem& p) { p.kv_heads = 8; }, false},
         {"8 kv heads and 4,096 rows", [](Problem& p) { set_lengths(p, 4096).kv_heads = 8; }, true},
         {"8 kv heads, 4,096 rows and 112 columns",
          [](Problem& p) {
              set_dims(p, 112);
              set_lengths(p, 4096).kv_heads = 8;
          },
          true},
         {"8 kv heads, 4,096 rows and 96 columns",
          [](Problem& p) {
              set_dims(p, 96);
              set_lengths(p, 4096).kv_heads = 8;
          },
          false},
         {"8 kv heads, 4,096 rows and 64 columns",
          [](Problem& p) {
              set_dims(p, 64);
              set_lengths(p, 4096).kv_heads = 8;
          },
          false},
         {"window", [](Problem& p) { p.window = 100; }, false},
         {"no mask", [](Problem& p) { p.causal = false; }, true},
         {"no mask and 64 columns",
          [](Problem& p) {
              set_dims(p, 64);
              p.causal = false;
          },
          false},
         {"no mask and 8,192 rows", [](Problem& p) { set_lengths(p, 8192).causal = false; },
          false}});
}

// An incomplete last wave of tiles is cut where that takes less time.
TEST(Sm90BackwardChoice, TilesOfTheLastWaveAreCut) {
    Problem problem{.batch = 4, .heads = 16, .kv_heads = 16};
    set_lengths(problem, 8192);
    const auto chosen = [](const Problem& p, bool deterministic) {
        return choose_backward(check_backward(backward_inputs_of(p, deterministic)));
    };
    for (const bool deterministic : {false, true}) {
        const BackwardConfig config = chosen(problem, deterministic);
        EXPECT_EQ(config.cut_tiles, 4096 % 132);
        EXPECT_GT(config.pieces, 16);
        EXPECT_LE(config.cut_tiles * config.pieces, 2 * 132);
    }
    expect_chosen(
        problem, [&](const Problem& p) { return chosen(p, false).pieces > 1; },
        {{"causal", [](Problem& p) { p.causal = true; }, false},
         {"window", [](Problem& p) { p.causal = true, p.window = 1024; }, false},
         {"64 columns", [](Problem& p) { set_dims(p, 64); }, true},
         {"192 columns", [](Problem& p) { set_dims(p, 192); }, false},
         {"one wave",
          [](Problem& p) { p.batch = 1, p.heads = p.kv_heads = 33, set_lengths(p, 512); }, false},
         {"little to do", [](Problem& p) { p.batch = 1, set_lengths(p, 256); }, false},
         {"few tiles", [](Problem& p) { p.batch = p.heads = p.kv_heads = 1; }, true}});
}

// A kernel of another form under the same key would run in its place.
TEST(Sm90BackwardChoice, EachFormHasAKeyAndAText) {
    Problem problem{.batch = 8, .heads = 16, .kv_heads = 16, .causal = true};
    set_dims(set_lengths(problem, 1024), 64);
    const BackwardDesc desc = check_backward(backward_inputs_of(problem, /*deterministic=*/true));
    const BackwardConfig chosen = choose_backward(desc);
    ASSERT_TRUE(chosen.ahead && chosen.upward && chosen.fused);
    const auto text_of = [&](const BackwardConfig& config) {
        return cuda::source_key(generate_backward(desc, config).front());
    };
    const std::pair<const char*, std::function<void(BackwardConfig&)>> changes[] = {
        {"ahead", [](BackwardConfig& c) { c.ahead = false; }},
        {"upward", [](BackwardConfig& c) { c.upward = false; }},
        {"fused", [](BackwardConfig& c) { c.fused = false; }},
        {"rows of a block", [](BackwardConfig& c) { c.block_m = 64; }},
    };
    for (const auto& [what, change] : changes) {
        BackwardConfig changed = chosen;
        change(changed);
        EXPECT_NE(backward_key(desc, changed), backward_key(desc, chosen)) << what;
        EXPECT_NE(text_of(changed), text_of(chosen)) << what;
    }
    BackwardConfig one_buffer = chosen;
    one_buffer.ahead = false;
    EXPECT_EQ(backward_shared_bytes(desc, chosen) - backward_shared_bytes(desc, one_buffer),
              chosen.block_n() * 64 * 2);  // K's second buffer, of 16-bit elements
}

}  // namespace
}  // namespace tilewright::attn::sm90
