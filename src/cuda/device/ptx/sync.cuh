// Named barriers, cluster barriers, fences between memory proxies, warp roles.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd::ptx {

/// PTX ISA, barrier.cta.sync: `threads` (a multiple of 32) meet at one of 16 barriers.
TW_DEVICE void named_barrier_sync(u32 barrier, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// PTX ISA, barrier.cta.arrive: counts this warp without waiting.
TW_DEVICE void named_barrier_arrive(u32 barrier, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// PTX ISA, barrier.cluster.arrive (sm_90).
TW_DEVICE void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

/// PTX ISA, barrier.cluster.wait (sm_90).
TW_DEVICE void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// PTX ISA, %cluster_ctarank: this CTA's rank in its cluster (sm_90).
TW_DEVICE u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/// PTX ISA, mapa: the shared address of another CTA of the cluster (sm_90).
TW_DEVICE u32 cluster_map(u32 address, u32 rank) {
    u32 mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}

/// PTX ISA, st.shared::cluster.b64: to an address from `cluster_map` (sm_90).
TW_DEVICE void cluster_store(u32 mapped, u64 value) {
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(mapped), "l"(value) : "memory");
}

/// PTX ISA, fence.mbarrier_init: TMA and the cluster see initialised mbarriers (sm_90).
TW_DEVICE void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// PTX ISA, fence.proxy.async: orders earlier ordinary accesses to shared memory before later ones
/// by wgmma and TMA (sm_90).
TW_DEVICE void fence_async_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// PTX ISA, fence.proxy.async: the same for all state spaces.
TW_DEVICE void fence_async() {
    asm volatile("fence.proxy.async;" ::: "memory");
}

/// PTX ISA, fence.acq_rel.gpu: earlier writes of this thread become visible to the device.
TW_DEVICE void fence_device() {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/// PTX ISA, griddepcontrol.wait: waits until earlier grids of the stream are done (sm_90).
TW_DEVICE void grid_dependency_wait() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// PTX ISA, griddepcontrol.launch_dependents: the next grid may start (sm_90).
TW_DEVICE void grid_dependency_launch() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// PTX ISA, setmaxnreg.inc: the warpgroup takes registers that others released (sm_90a). Needs a
/// cap at entry: __launch_bounds__(threads, 1).
template <int kRegisters>
TW_DEVICE void registers_increase() {
#ifndef TW_COMPACT  // all warpgroups call the same functions
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

/// PTX ISA, setmaxnreg.dec: the warpgroup releases registers (sm_90a).
template <int kRegisters>
TW_DEVICE void registers_decrease() {
#ifndef TW_COMPACT  // all warpgroups call the same functions
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

/// PTX ISA, elect.sync: true in one lane of a whole warp (sm_90).
TW_DEVICE bool elect_lane() {
    u32 elected;
    asm volatile(
        "{\n.reg .pred p;\n"
        "elect.sync _|p, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(elected));
    return elected != 0;
}

/// PTX ISA, shfl.sync: the value of lane 0, which the compiler knows to be uniform. It is computed
/// here, and what derives from it is not kept from one iteration of a loop to the next.
TW_DEVICE u32 uniform_here(u32 value) {
    u32 result;
    asm volatile("shfl.sync.idx.b32 %0, %1, 0, 31, 0xffffffff;" : "=r"(result) : "r"(value));
    return result;
}

}  // namespace twd::ptx
