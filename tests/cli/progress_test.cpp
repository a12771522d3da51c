// The progress bar.
#include "cli/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <sstream>
#include <thread>

namespace tilewright::cli {
namespace {

using testing::HasSubstr;

TEST(Progress, DrawsTheDoneShareAndWipesItself) {
    std::ostringstream out;
    {
        Progress progress("check", out, 0);
        progress.update(0.5);
        EXPECT_THAT(out.str(), HasSubstr("check [###############...............] 50%"));
    }
    EXPECT_TRUE(out.str().ends_with("\r\033[K"));
}

TEST(Progress, ShortWorkLeavesNoTrace) {
    std::ostringstream out;
    {
        Progress progress("check", out, 3600);
        progress.update(0.5);
        progress.update(1);
    }
    EXPECT_EQ(out.str(), "");
}

TEST(Progress, SharesOutsideTheRangeAreCut) {
    for (const double done : {-1.0, 2.0}) {
        std::ostringstream out;
        Progress("x", out, 0).update(done);
        EXPECT_THAT(out.str(), HasSubstr(done < 0 ? " 0%" : "##] 100%"));
    }
}

TEST(Elapsed, CountsSecondsAndWipesItself) {
    std::ostringstream out;
    {
        Elapsed elapsed("attention", out, 0.01, 0.01);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        elapsed.update(0.25);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    EXPECT_THAT(out.str(), HasSubstr("attention, 0 s\r"));
    EXPECT_THAT(out.str(), HasSubstr("attention, 0 s, 25%\r"));
    EXPECT_TRUE(out.str().ends_with("\r\033[K"));
    std::ostringstream quiet;
    { const Elapsed elapsed("attention", quiet, 3600); }
    EXPECT_EQ(quiet.str(), "");
}

}  // namespace
}  // namespace tilewright::cli
