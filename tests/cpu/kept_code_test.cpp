// Machine code that is kept: once, and within its limits.
#include "cpu/kept_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tilewright/system.h"

namespace tilewright::cpu {
namespace {

/// `mov eax, value; ret`, in so many bytes.
std::vector<std::uint8_t> returns(std::uint8_t value, std::size_t bytes = 6) {
    std::vector<std::uint8_t> code = {0xB8, value, 0, 0, 0, 0xC3};
    code.resize(bytes, 0xCC);
    return code;
}

bool has_code() {
    return wants_machine_code() && ExecutableCode(returns(1)).data() != nullptr;
}

constexpr std::size_t kPage = 4096;

TEST(KeptCode, EqualCodeIsKeptOnce) {
    if (!has_code()) GTEST_SKIP() << "no code at run time";
    KeptCode kept("kept code of a test", 10, 10 * kPage);
    std::byte* const first = kept.keep(returns(1));
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(kept.keep(returns(1)), first);
    EXPECT_NE(kept.keep(returns(2)), first);
    EXPECT_EQ(reinterpret_cast<int (*)()>(first)(), 1);
}

TEST(KeptCode, ThereAreNoMoreFunctionsThanItsLimit) {
    if (!has_code()) GTEST_SKIP() << "no code at run time";
    KeptCode kept("kept code of a test", 2, 10 * kPage);
    EXPECT_NE(kept.keep(returns(1)), nullptr);
    EXPECT_NE(kept.keep(returns(2)), nullptr);
    EXPECT_EQ(kept.keep(returns(3)), nullptr);
    EXPECT_NE(kept.keep(returns(2)), nullptr);
}

TEST(KeptCode, ThereIsNoMoreMemoryThanItsLimit) {
    if (!has_code()) GTEST_SKIP() << "no code at run time";
    KeptCode kept("kept code of a test", 10, 3 * kPage);
    EXPECT_EQ(kept.keep(returns(1, 3 * kPage + 1)), nullptr);
    EXPECT_NE(kept.keep(returns(2, kPage + 1)), nullptr);  // two pages
    EXPECT_EQ(kept.keep(returns(3, kPage + 1)), nullptr);
    EXPECT_NE(kept.keep(returns(4)), nullptr);
    EXPECT_EQ(kept.keep(returns(5)), nullptr);
    EXPECT_NE(kept.keep(returns(2, kPage + 1)), nullptr);
    const auto counts = cache_counts();
    const auto count = std::find_if(counts.begin(), counts.end(), [](const CacheCount& each) {
        return each.name == "kept code of a test";
    });
    ASSERT_NE(count, counts.end());
    EXPECT_EQ(count->entries, 2U);
    EXPECT_EQ(count->bytes, 3 * kPage);
}

}  // namespace
}  // namespace tilewright::cpu
