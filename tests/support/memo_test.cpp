// Bounded caches.
#include "support/memo.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace tilewright {
namespace {

TEST(Memo, MakesEachValueOnce) {
    Memo<std::string, int> memo("test", 4);
    int made = 0;
    const auto make = [&] { return ++made; };
    EXPECT_EQ(memo.get("a", make), 1);
    EXPECT_EQ(memo.get("b", make), 2);
    EXPECT_EQ(memo.get("a", make), 1);
    EXPECT_EQ(memo.put("a", 9), 1);
    EXPECT_EQ(memo.find("c"), std::nullopt);
    memo.drop("a");
    memo.drop("a");
    EXPECT_EQ(memo.get("a", make), 3);
}

TEST(Memo, ForgetsWhatWasUsedLongestAgo) {
    Memo<int, std::shared_ptr<int>> memo("test", 3);
    std::vector<std::weak_ptr<int>> made;
    for (int key = 0; key < 3; ++key) made.push_back(memo.put(key, std::make_shared<int>(key)));
    EXPECT_TRUE(memo.find(0));
    memo.put(3, std::make_shared<int>(3));
    EXPECT_TRUE(made[1].expired());
    EXPECT_FALSE(memo.find(1));
    EXPECT_EQ(**memo.find(0), 0);
    for (int key = 10; key < 5000; ++key) memo.put(key, std::make_shared<int>(key));
    EXPECT_EQ(memo.size(), 3);
    EXPECT_TRUE(made[0].expired());
}

TEST(Memo, ThreadsAgreeOnAValue) {
    Memo<int, std::shared_ptr<int>> memo("test", 8);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&] {
            for (int i = 0; i < 20000; ++i) {
                const auto value = memo.get(i % 11, [&] { return std::make_shared<int>(i % 11); });
                ASSERT_EQ(*value, i % 11);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_LE(memo.size(), 8);
}

TEST(Memo, FindsWhatComparesLikeAKey) {
    Memo<std::string, int> memo("test", 4);
    memo.put("a", 1);
    EXPECT_EQ(memo.find(std::string_view("a")), 1);
    EXPECT_EQ(memo.find(std::string_view("b")), std::nullopt);
}

TEST(Memo, TakesOutWhatIsAskedFor) {
    Memo<int, std::string> memo("test", 8);
    for (int key = 0; key < 4; ++key) memo.put(key, std::to_string(key));
    const std::vector<std::string> taken =
        memo.take_if([](int key, const std::string& value) { return key > 1 && value != "3"; });
    EXPECT_EQ(taken, std::vector<std::string>{"2"});
    EXPECT_EQ(memo.find(2), std::nullopt);
    EXPECT_EQ(memo.find(3), "3");
    memo.put(2, "again");
    EXPECT_EQ(memo.size(), 4);
}

TEST(Memo, IdentitiesOutliveTheirObjects) {
    Memo<Identity<int>, int> memo("test", kWhileAlive);
    for (int i = 0; i < 100; ++i) {
        // Often at the address of the previous one.
        const auto object = std::make_shared<int>(i);
        EXPECT_EQ(memo.get(Identity(object), [&] { return i; }), i);
        EXPECT_EQ(memo.get(Identity(object), [&] { return -1; }), i);
        EXPECT_FALSE(Identity(object).is_gone());
    }
    EXPECT_EQ(memo.size(), 100);
    const auto is_gone = [](const Identity<int>& key, int) { return key.is_gone(); };
    EXPECT_EQ(memo.take_if(is_gone).size(), 100);
    EXPECT_EQ(memo.size(), 0);
}

/// The counts of the caches called `name`.
std::optional<CacheCount> count_of(const std::string& name) {
    for (const CacheCount& count : cache_counts()) {
        if (count.name == name) return count;
    }
    return std::nullopt;
}

TEST(Memo, IsCountedWhileItLives) {
    {
        const auto bytes = [](const std::string& value) { return value.size(); };
        Memo<int, std::string> one("counted", 2, bytes), two("counted", 3, bytes);
        one.get(1, [] { return "a"; });
        one.get(1, [] { return "a"; });
        one.get(2, [] { return "bc"; });
        one.get(3, [] { return "def"; });
        two.put(1, "ghij");
        const std::optional<CacheCount> count = count_of("counted");
        ASSERT_TRUE(count);
        EXPECT_EQ(count->entries, 3);
        EXPECT_EQ(count->most, 5);
        EXPECT_EQ(count->hits, 1);
        EXPECT_EQ(count->misses, 3);
        EXPECT_EQ(count->evictions, 1);
        EXPECT_EQ(count->bytes, 9);
    }
    EXPECT_FALSE(count_of("counted"));
}

}  // namespace
}  // namespace tilewright
