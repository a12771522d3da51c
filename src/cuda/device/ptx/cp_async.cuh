// cp.async: copies from global to shared memory that bypass registers, sm_80.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd::ptx {

/// PTX ISA, cp.async.cg, 16 bytes through L2 only. `valid` bytes are read, the rest is zero; with 0
/// the source is not accessed.
TW_DEVICE void cp_async_16(u32 target, const void* source, u32 valid = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
                 "r"(valid)
                 : "memory");
}

/// PTX ISA, cp.async.ca, 8 bytes.
TW_DEVICE void cp_async_8(u32 target, const void* source, u32 valid = 8) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(target), "l"(source),
                 "r"(valid)
                 : "memory");
}

/// PTX ISA, cp.async.ca, 4 bytes.
TW_DEVICE void cp_async_4(u32 target, const void* source, u32 valid = 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source),
                 "r"(valid)
                 : "memory");
}

/// PTX ISA, cp.async.commit_group.
TW_DEVICE void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/// PTX ISA, cp.async.wait_group: at most kPending of the thread's groups unfinished.
template <int kPending>
TW_DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// PTX ISA, cp.async.mbarrier.arrive.noinc: arrives when the thread's copies are complete.
TW_DEVICE void cp_async_arrive(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace twd::ptx
