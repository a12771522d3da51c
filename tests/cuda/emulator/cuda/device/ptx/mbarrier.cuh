// mbarriers on the host: counts of arrivals and bytes, kept outside of the emulated memory.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace emulator {

struct Mbarrier {
    long count = 0, left = 0, bytes = 0;
    unsigned phase = 0;
};
inline std::map<unsigned, Mbarrier> mbarriers;

inline Mbarrier& mbarrier(unsigned address) {
    const auto found = mbarriers.find(address);
    if (found == mbarriers.end()) fail("no mbarrier was initialised there");
    return found->second;
}
inline void settle(Mbarrier& barrier) {
    if (barrier.left < 0) fail("an mbarrier has an arrival too many");
    if (barrier.left > 0 || barrier.bytes != 0) return;
    barrier.left = barrier.count;
    ++barrier.phase;
}
inline void report_barriers() {
    for (const auto& [address, one] : mbarriers) {
        std::fprintf(stderr, "mbarrier %u: phase %u, %ld of %ld arrivals and %ld bytes missing\n",
                     address, one.phase, one.left, one.count, one.bytes);
    }
}
inline const bool kReports = (report = report_barriers, true);

}  // namespace emulator

namespace twd::ptx {

inline void mbarrier_init(u32 barrier, u32 count) {
    emulator::mbarriers[barrier] = {count, count, 0, 0};
}
inline void mbarrier_arrive(u32 barrier) {
    emulator::Mbarrier& one = emulator::mbarrier(barrier);
    --one.left;
    emulator::settle(one);
}
/// Shared memory of a block that has ended is gone.
inline void expect_running(u32 address) {
    for (int t = 0; t < emulator::block_threads; ++t) {
        const auto block = static_cast<int>(address / kSharedBytes);
        if (!emulator::fibers[block * emulator::block_threads + t].done) return;
    }
    emulator::fail("a block of the cluster is accessed after its end");
}
inline void mbarrier_arrive_cluster(u32 barrier) {
    expect_running(barrier);
    mbarrier_arrive(barrier);
}
inline void mbarrier_arrive_expect(u32 barrier, u32 bytes) {
    emulator::mbarrier(barrier).bytes += bytes;
    mbarrier_arrive(barrier);
}
inline void mbarrier_wait(u32 barrier, u32 parity) {
    emulator::wait_until([&] { return (emulator::mbarrier(barrier).phase & 1) != parity; });
}

}  // namespace twd::ptx
