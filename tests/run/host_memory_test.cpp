// Memory of CPU tensors: which blocks are kept, for which sizes, and how many.
#include "run/host_memory.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/run/support.h"

namespace tilewright::run {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(HostMemory, IsAligned) {
    HostMemory memory(64 * kMiB);
    const auto address = [](const std::shared_ptr<void>& block) {
        return reinterpret_cast<std::uintptr_t>(block.get());
    };
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{100}, 3 * kMiB}) {
        EXPECT_EQ(address(memory.allocate(bytes)) % 64, 0U);
    }
    // Twice, so that the second one may be a kept block.
    for (int i = 0; i < 2; ++i) EXPECT_EQ(address(memory.allocate(5 * kMiB)) % (2 * kMiB), 0U);
}

TEST(HostMemory, GivesBlocksToTensorsOfTheirSize) {
    HostMemory memory(64 * kMiB);
    std::shared_ptr<void> first = memory.allocate(10 * kMiB);
    const std::shared_ptr<void> second = memory.allocate(10 * kMiB);
    void* const at = first.get();
    EXPECT_NE(at, second.get());
    first.reset();
    EXPECT_EQ(memory.kept(), 10 * kMiB);
    // It is not used for larger requests, nor for ones so small that much would be wasted.
    const std::shared_ptr<void> larger = memory.allocate(10 * kMiB + 1);
    const std::shared_ptr<void> smaller = memory.allocate(7 * kMiB);
    EXPECT_EQ(memory.kept(), 10 * kMiB);
    const std::shared_ptr<void> fits = memory.allocate(9 * kMiB);
    EXPECT_EQ(fits.get(), at);
    EXPECT_EQ(memory.kept(), 0U);
    std::memset(fits.get(), 1, 9 * kMiB);
}

TEST(HostMemory, TakesTheClosestFit) {
    HostMemory memory(64 * kMiB);
    std::shared_ptr<void> large = memory.allocate(12 * kMiB), close = memory.allocate(11 * kMiB);
    void* const at = close.get();
    close.reset();
    large.reset();
    EXPECT_EQ(memory.allocate(10 * kMiB).get(), at);
}

TEST(HostMemory, KeepsNoMoreThanItsLimit) {
    HostMemory memory(8 * kMiB);
    std::shared_ptr<void> a = memory.allocate(4 * kMiB), b = memory.allocate(3 * kMiB),
                          c = memory.allocate(2 * kMiB), d = memory.allocate(9 * kMiB),
                          e = memory.allocate(kMiB / 2);
    a.reset();
    b.reset();
    EXPECT_EQ(memory.kept(), 7 * kMiB);
    c.reset();  // the oldest is freed
    EXPECT_EQ(memory.kept(), 5 * kMiB);
    d.reset();  // above the limit
    e.reset();  // small
    EXPECT_EQ(memory.kept(), 5 * kMiB);
    memory.release();
    EXPECT_EQ(memory.kept(), 0U);
}

TEST(HostMemory, KeepsFewBlocks) {
    HostMemory memory(1024 * kMiB);
    std::vector<std::shared_ptr<void>> blocks;
    for (int i = 0; i < 70; ++i) blocks.push_back(memory.allocate(kMiB));
    blocks.clear();
    EXPECT_EQ(memory.kept(), 64 * kMiB);
}

TEST(HostMemory, ThreadsAllocateAtOnce) {
    HostMemory memory(16 * kMiB);
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            for (int i = 0; i < 50; ++i) {
                const std::size_t bytes = kMiB + static_cast<std::size_t>(i % 5) * kMiB / 2;
                const std::shared_ptr<void> block = memory.allocate(bytes);
                std::memset(block.get(), thread, bytes);
                const auto* const values = static_cast<const char*>(block.get());
                for (std::size_t at = 0; at < bytes; at += 4096) wrong += values[at] != thread;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_LE(memory.kept(), 16 * kMiB);
}

TEST(HostMemory, TensorsTakeFreedMemory) {
    if (host_memory().most_kept() == 0)
        GTEST_SKIP() << "with the address sanitizer nothing is kept";
    host_memory().release();
    const void* const at = Tensor::empty(f32, {1024, 1024}).raw();
    EXPECT_EQ(host_memory().kept(), 4 * kMiB);
    EXPECT_EQ(Tensor::empty(i32, {1024, 1024}).raw(), at);
}

}  // namespace
}  // namespace tilewright::run
