// mbarrier: barriers in shared memory that threads and TMA arrive at (sm_80; most need sm_90).
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd::ptx {

/// PTX ISA, mbarrier.init. A phase ends after `count` arrivals and all announced bytes.
TW_DEVICE void mbarrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

/// PTX ISA, mbarrier.inval. The memory may then be used for something else.
TW_DEVICE void mbarrier_invalidate(u32 barrier) {
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// PTX ISA, mbarrier.arrive (release, this CTA).
TW_DEVICE void mbarrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// PTX ISA, mbarrier.arrive.expect_tx: one arrival that announces bytes of bulk copies.
TW_DEVICE void mbarrier_arrive_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/// PTX ISA, mbarrier.arrive on the barrier at the same offset of another CTA of the
/// cluster; `barrier` comes from `cluster_map`. Releases to this CTA only, which suffices after
/// products that were waited for: `.release.cluster` is a fence of the whole GPU, 1,500 clocks.
TW_DEVICE void mbarrier_arrive_cluster(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// PTX ISA, mbarrier.test_wait.parity: has the phase of this parity ended?
TW_DEVICE bool mbarrier_test(u32 barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}

/// PTX ISA, mbarrier.try_wait.parity, until the phase ends. The loop is inside the asm, so that
/// ptxas sees no divergent branch among the wgmma around it.
TW_DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "WAIT:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@p bra DONE;\n"
        "bra WAIT;\n"
        "DONE:\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

}  // namespace twd::ptx
