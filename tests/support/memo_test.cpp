// Bounded caches.
#include "support/memo.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tilewright {
namespace {

TEST(Memo, MakesEachValueOnce) {
    Memo<std::string, int> memo(4);
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
    Memo<int, std::shared_ptr<int>> memo(3);
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
    Memo<int, std::shared_ptr<int>> memo(8);
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

}  // namespace
}  // namespace tilewright
