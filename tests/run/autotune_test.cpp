// The autotuner: measuring, choosing, remembering.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "run/tuning.h"
#include "support/disk_cache.h"
#include "tests/run/support.h"
#include "tilewright/system.h"

namespace tilewright {
namespace {

namespace tw = tilewright;
using testing::HasSubstr;

/// Each test has its own cache folder.
class Autotune : public testing::Test {
  protected:
    void SetUp() override {
        folder_ = std::filesystem::temp_directory_path() /
                  ("tilewright_autotune_test_" + std::to_string(::getpid()));
        std::filesystem::remove_all(folder_);
        ::setenv("TILEWRIGHT_CACHE_DIR", folder_.c_str(), 1);
    }
    void TearDown() override {
        ::unsetenv("TILEWRIGHT_CACHE_DIR");
        std::filesystem::remove_all(folder_);
    }

    /// Sums in blocks; the number of blocks decides how long a run takes.
    Tuned tuned() const {
        return tw::autotune({{{"block", 1}}, {{"block", 64}}, {{"block", 7}}},
                            "sum")([](const tw::Config& config) {
            const std::int64_t block = config["block"];
            if (block == 7) throw UserError("[test] a candidate that does not fit");
            auto sum = tw::kernel("sum", [block](Ref x, Ref z) {
                z.store(tw::for_loop(0, x.shape()[0] / block, 0.0, [&](auto i, auto acc) {
                    return acc + tw::sum(x.at(tw::ds(i * block, block)).load());
                }));
            });
            return tw::call(sum, {.out_type = {{f32, {}}}});
        });
    }

    std::filesystem::path folder_;
};

TEST_F(Autotune, ChoosesTheFasterAndRemembers) {
    const Tensor x = Tensor::full(f32, {4096}, 1);
    const Tuned first = tuned();
    EXPECT_EQ(first(x).get({}), 4096);
    EXPECT_EQ(first.best_config({x})["block"], 64);
    EXPECT_EQ(first.num_measured(), 2);
    first(x);
    EXPECT_EQ(first.num_measured(), 2);

    const Tuned second = tuned();
    EXPECT_EQ(second(x).get({}), 4096);
    EXPECT_EQ(second.best_config({x})["block"], 64);
    EXPECT_EQ(second.num_measured(), 0);
    second(Tensor::full(f32, {128}, 1));
    EXPECT_EQ(second.num_measured(), 2);
}

TEST_F(Autotune, CallsAreKeptUpToALimit) {
    const Tuned sum = tuned();
    const Call small = sum.best({Tensor::full(f32, {128}, 1)});
    sum(Tensor::full(f32, {256}, 1));
    const std::vector<CacheCount> counts = cache_counts();
    const auto calls = std::find_if(counts.begin(), counts.end(), [](const CacheCount& count) {
        return count.name == "calls of autotuners";
    });
    ASSERT_NE(calls, counts.end());
    EXPECT_EQ(calls->entries, 2u);
    EXPECT_EQ(calls->most, 256u);
    EXPECT_EQ(small(Tensor::full(f32, {128}, 1)).get({}), 128);  // a copy, which outlives the entry
}

TEST_F(Autotune, TriesTilesOfCpusAndRemembersTheBest) {
    const Tensor twos = Tensor::full(f32, {64, 256}, 2);
    const auto tuned_tiles = [] {
        std::vector<Config> configs;
        for (const std::int64_t rows : {0, 1, 16})
            configs.push_back({{"rows", rows}, {"lanes", rows > 0 ? 64 : 0}});
        return tw::autotune(configs, "tiles")([](const tw::Config& config) {
            const auto add = tw::kernel("add", [](Ref x, Ref z) { z.store(x.load() + 1); });
            return tw::call(add, {.out_type = {{f32, {64, 256}}},
                                  .tile_rows = config["rows"],
                                  .tile_lanes = config["lanes"]});
        });
    };
    const Tuned first = tuned_tiles();
    EXPECT_EQ(first(twos).get({63, 255}), 3);
    EXPECT_EQ(first.num_measured(), 3);
    const Tuned second = tuned_tiles();
    EXPECT_EQ(second(twos).get({0, 0}), 3);
    EXPECT_EQ(second.num_measured(), 0);
    EXPECT_EQ(second.best_config({twos})["rows"], first.best_config({twos})["rows"]);
}

TEST_F(Autotune, EntriesSayWhatWasTunedFirst) {
    tuned()(Tensor::full(f32, {4096}, 1));
    const auto entries = DiskCache(folder_ / "autotune").list();
    ASSERT_EQ(entries.size(), 1u);
    EXPECT_THAT(entries[0].key, testing::StartsWith("sum cpu;f32[4096]\n"));
}

TEST_F(Autotune, TellsWhatItTriedAndRemembersTheTable) {
    std::vector<run::Tuning> heard;
    run::listen_to_tuning([&](const run::Tuning& tuning) { heard.push_back(tuning); });
    for (int i = 0; i < 2; ++i) tuned()(Tensor::full(f32, {4096}, 1));
    run::listen_to_tuning({});
    tuned()(Tensor::full(f32, {512}, 1));
    ASSERT_EQ(heard.size(), 2u);
    EXPECT_FALSE(heard[0].remembered);
    EXPECT_TRUE(heard[1].remembered);
    EXPECT_EQ(heard[0].table, heard[1].table);
    EXPECT_EQ(heard[0].what, "sum cpu;f32[4096]");
    EXPECT_EQ(heard[1].chosen, "block=64");
    EXPECT_THAT(heard[0].table, testing::StartsWith("block=64: "));
    EXPECT_THAT(heard[0].table, HasSubstr(" ms, 1.00 of the fastest\nblock=1: "));
    EXPECT_THAT(heard[0].table,
                HasSubstr("block=7: does not run: [test] a candidate that does not fit\n"));
}

TEST(TuningBar, DrawsOnceThereIsSomethingToWaitFor) {
    std::ostringstream now, later;
    {
        run::TuningBar bar("sums", 4, &now, 0), late("sums", 4, &later, 60);
        for (std::size_t i = 0; i <= 4; ++i) bar.update(i), late.update(i);
    }
    EXPECT_EQ(later.str(), "");
    EXPECT_THAT(now.str(), HasSubstr("\r\033[Ktuning sums [##############################"
                                     "] 4 of 4"));
    EXPECT_THAT(now.str(), testing::EndsWith("\r\033[K"));
}

TEST_F(Autotune, MeasuresAgainWhenTheEntryIsDamaged) {
    const Tensor x = Tensor::full(f32, {4096}, 1);
    tuned()(x);
    int damaged = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
        if (!entry.is_regular_file()) continue;
        std::ofstream(entry.path(), std::ios::trunc) << "garbage";
        ++damaged;
    }
    EXPECT_GE(damaged, 1);
    const Tuned again = tuned();
    EXPECT_EQ(again(x).get({}), 4096);
    EXPECT_EQ(again.num_measured(), 2);
}

TEST_F(Autotune, MeasuresNewCandidatesAndLeavesInputsAlone) {
    const auto add = [](std::vector<Config> configs) {
        return tw::autotune(std::move(configs), "add")([](const tw::Config& config) {
            const std::int64_t block = config["block"];
            const BlockSpec spec{{block}, [](auto i) { return tw::block(i); }};
            return tw::call(tw::kernel("add", [](Ref x, Ref z) { z.store(x.load() + 1); }),
                            {.grid = {8 / block},
                             .in = {spec},
                             .out = {spec},
                             .out_type = {{f32, {8}}},
                             .aliases = {{0, 0}}});
        });
    };
    const Tensor x = Tensor::zeros(f32, {8});
    const Tuned one = add({{{"block", 4}}});
    one(x);
    EXPECT_EQ(one.num_measured(), 1);
    // Measurements use copies: the input was updated once.
    EXPECT_EQ(x.get({0}), 1);
    const Tuned two = add({{{"block", 4}}, {{"block", 8}}});
    two(x);
    EXPECT_EQ(two.num_measured(), 2);
    EXPECT_EQ(x.get({7}), 2);
}

TEST_F(Autotune, ErrorsAreReported) {
    EXPECT_THAT(
        error_of([] {
            tw::autotune({{{"block", 1}}}, "none")([](const tw::Config&) -> tw::Call {
                throw UserError("[test] does not fit");
            })(Tensor::zeros(f32, {1}));
        }),
        HasSubstr("[autotune] expected one of 1 configs to run but none does; block=1: [test] "
                  "does not fit"));
    EXPECT_THAT(error_of([] {
                    (void)tw::Config{{"block", 1}}["warps"];
                }),
                HasSubstr("expected a name among block=1 but got `warps`"));
    EXPECT_THAT(
        error_of([] { tw::autotune({}, "empty")([](const tw::Config&) -> tw::Call { throw 0; }); }),
        HasSubstr("at least one config"));
}

}  // namespace
}  // namespace tilewright
