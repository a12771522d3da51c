// The checkout that the tests were built from, which installed tests may lack.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

namespace tilewright::testing {

inline bool has_sources() {
    return std::filesystem::exists(TW_SOURCE_FOLDER "/tests/cuda");
}

}  // namespace tilewright::testing

/// Skips the test where the sources are gone: it reads golden files, or compiles headers.
#define TW_REQUIRE_SOURCES()                 \
    if (!tilewright::testing::has_sources()) \
    GTEST_SKIP() << "NOT RUN: the sources that this was built from are not here"
