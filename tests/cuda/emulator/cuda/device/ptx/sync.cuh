// Named barriers on the host, where fences and register counts have no effect.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace emulator {

struct Named {
    int arrived = 0;
    unsigned generation = 0;
};
inline Named named[kMostBlocks][16];
inline unsigned long named_in = 0;  ///< the block that they belong to

inline Named& named_barrier(unsigned id) {
    if (named_in != blocks_begun) {
        for (auto& block : named) {
            for (Named& one : block) one.arrived = 0;
        }
        named_in = blocks_begun;
    }
    return named[rank()][id];
}

struct ClusterBarrier {
    int arrived = 0;
    unsigned generation = 0;
    std::map<int, unsigned> seen;  ///< the generation in which a thread arrived
};
inline ClusterBarrier cluster_barrier;

}  // namespace emulator

namespace twd::ptx {

inline void cluster_arrive() {
    emulator::ClusterBarrier& one = emulator::cluster_barrier;
    one.seen[emulator::current] = one.generation;
    if (++one.arrived < static_cast<int>(emulator::fibers.size())) return;
    one.arrived = 0;
    ++one.generation;
}
inline void cluster_wait() {
    emulator::ClusterBarrier& one = emulator::cluster_barrier;
    const unsigned mine = one.seen[emulator::current];
    emulator::wait_until([&] { return one.generation != mine; });
}
inline u32 cluster_rank() {
    return emulator::rank();
}
inline u32 cluster_map(u32 address, u32 rank) {
    return address % kSharedBytes + rank * kSharedBytes;
}
inline void cluster_store(u32 mapped, u64 value) {
    std::memcpy(memory + mapped, &value, sizeof(value));
}
inline void fence_mbarrier_init() {}
inline void fence_async_shared() {
    emulator::fence_writes();
}
inline bool elect_lane() {
    return emulator::current % 32 == 0;
}
template <int>
inline void registers_increase() {}
template <int>
inline void registers_decrease() {}
inline void named_barrier_arrive(u32 id, u32 threads) {
    emulator::Named& one = emulator::named_barrier(id);
    if (++one.arrived == static_cast<int>(threads)) {
        one.arrived = 0;
        ++one.generation;
    }
}
inline void named_barrier_sync(u32 id, u32 threads) {
    emulator::Named& one = emulator::named_barrier(id);
    const unsigned mine = one.generation;
    if (++one.arrived == static_cast<int>(threads)) {
        one.arrived = 0;
        ++one.generation;
        return;
    }
    emulator::wait_until([&] { return one.generation != mine; });
}

}  // namespace twd::ptx
