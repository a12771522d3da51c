// TMA: bulk copies and bulk tensor copies, sm_90.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace twd::ptx {

/// PTX ISA, createpolicy: the data of this copy is read again soon.
TW_DEVICE u64 l2_evict_last() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
    return policy;
}

/// PTX ISA, createpolicy: the data of this copy is not read again.
TW_DEVICE u64 l2_evict_first() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    return policy;
}

/// PTX ISA, prefetch.tensormap.
TW_DEVICE void prefetch_tensor_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// PTX ISA, cp.async.bulk, global to shared: `bytes` a multiple of 16, both ends aligned to
/// 16; completes on `barrier`.
TW_DEVICE void bulk_load(u32 target, const void* source, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(target),
        "l"(source), "r"(bytes), "r"(barrier)
        : "memory");
}

/// PTX ISA, cp.async.bulk, shared to global; completes with the thread's bulk group.
TW_DEVICE void bulk_store(void* target, u32 source, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target),
                 "r"(source), "r"(bytes)
                 : "memory");
}

/// PTX ISA, cp.reduce.async.bulk: adds f32 elements of shared memory to global memory.
TW_DEVICE void bulk_add_f32(void* target, u32 source, u32 bytes) {
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(target),
        "r"(source), "r"(bytes)
        : "memory");
}

/// PTX ISA, cp.async.bulk.commit_group.
TW_DEVICE void bulk_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// PTX ISA, cp.async.bulk.wait_group: at most kPending of the thread's groups unfinished.
template <int kPending>
TW_DEVICE void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

/// The same, but waits only until shared memory has been read: the source may be overwritten.
template <int kPending>
TW_DEVICE void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Tensor copies move one box of a tensor map; c0 counts elements of the innermost dimension.
// Elements outside the tensor load as zero and are not stored.

/// PTX ISA, cp.async.bulk.tensor.1d, global to shared; completes on `barrier`.
TW_DEVICE void tensor_load(u32 target, const TensorMap* map, u32 barrier, u64 policy, int c0) {
    asm volatile(
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%4}], [%2], %3;" ::"r"(target),
        "l"(map), "r"(barrier), "l"(policy), "r"(c0)
        : "memory");
}

/// PTX ISA, cp.async.bulk.tensor.2d, global to shared; completes on `barrier`.
TW_DEVICE void tensor_load(u32 target, const TensorMap* map, u32 barrier, u64 policy, int c0,
                           int c1) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(target),
        "l"(map), "r"(barrier), "l"(policy), "r"(c0), "r"(c1)
        : "memory");
}

/// PTX ISA, cp.async.bulk.tensor.3d, global to shared; completes on `barrier`.
TW_DEVICE void tensor_load(u32 target, const TensorMap* map, u32 barrier, u64 policy, int c0,
                           int c1, int c2) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(target),
        "l"(map), "r"(barrier), "l"(policy), "r"(c0), "r"(c1), "r"(c2)
        : "memory");
}

/// PTX ISA, cp.async.bulk.tensor.4d, global to shared; completes on `barrier`.
TW_DEVICE void tensor_load(u32 target, const TensorMap* map, u32 barrier, u64 policy, int c0,
                           int c1, int c2, int c3) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(target),
        "l"(map), "r"(barrier), "l"(policy), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}

/// PTX ISA, cp.async.bulk.tensor.5d, global to shared; completes on `barrier`.
TW_DEVICE void tensor_load(u32 target, const TensorMap* map, u32 barrier, u64 policy, int c0,
                           int c1, int c2, int c3, int c4) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(target),
        "l"(map), "r"(barrier), "l"(policy), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
        : "memory");
}

// The same without a policy.

/// PTX ISA, cp.async.bulk.tensor.1d, global to shared; completes on `barrier`.
TW_DEVICE void tensor_load(u32 target, const TensorMap* map, u32 barrier, int c0) {
    asm volatile(
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3}], [%2];" ::"r"(target),
        "l"(map), "r"(barrier), "r"(c0)
        : "memory");
}

/// PTX ISA, cp.async.bulk.tensor.2d, global to shared; completes on `barrier`.
TW_DEVICE void tensor_load(u32 target, const TensorMap* map, u32 barrier, int c0, int c1) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4}], [%2];" ::"r"(target),
        "l"(map), "r"(barrier), "r"(c0), "r"(c1)
        : "memory");
}

/// PTX ISA, cp.async.bulk.tensor.3d, global to shared; completes on `barrier`.
TW_DEVICE void tensor_load(u32 target, const TensorMap* map, u32 barrier, int c0, int c1, int c2) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(target),
        "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
        : "memory");
}

/// PTX ISA, cp.async.bulk.tensor.4d, global to shared; completes on `barrier`.
TW_DEVICE void tensor_load(u32 target, const TensorMap* map, u32 barrier, int c0, int c1, int c2,
                           int c3) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(target),
        "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}

/// PTX ISA, cp.async.bulk.tensor.5d, global to shared; completes on `barrier`.
TW_DEVICE void tensor_load(u32 target, const TensorMap* map, u32 barrier, int c0, int c1, int c2,
                           int c3, int c4) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(target),
        "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
        : "memory");
}

// The same to the blocks of a cluster whose bits are set in `blocks`: to the same place in the
// shared memory of each, completing on the mbarrier there.

/// PTX ISA, cp.async.bulk.tensor.2d .multicast::cluster.
TW_DEVICE void tensor_load_multicast(u32 target, const TensorMap* map, u32 barrier, u16 blocks,
                                     int c0, int c1) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(target),
        "l"(map), "r"(barrier), "h"(blocks), "r"(c0), "r"(c1)
        : "memory");
}

/// PTX ISA, cp.async.bulk.tensor.3d .multicast::cluster.
TW_DEVICE void tensor_load_multicast(u32 target, const TensorMap* map, u32 barrier, u16 blocks,
                                     int c0, int c1, int c2) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(target),
        "l"(map), "r"(barrier), "h"(blocks), "r"(c0), "r"(c1), "r"(c2)
        : "memory");
}

/// PTX ISA, cp.async.bulk.tensor.4d .multicast::cluster.
TW_DEVICE void tensor_load_multicast(u32 target, const TensorMap* map, u32 barrier, u16 blocks,
                                     int c0, int c1, int c2, int c3) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(target),
        "l"(map), "r"(barrier), "h"(blocks), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}

/// PTX ISA, cp.async.bulk.tensor.5d .multicast::cluster.
TW_DEVICE void tensor_load_multicast(u32 target, const TensorMap* map, u32 barrier, u16 blocks,
                                     int c0, int c1, int c2, int c3, int c4) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(target),
        "l"(map), "r"(barrier), "h"(blocks), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
        : "memory");
}

/// PTX ISA, cp.async.bulk.tensor.1d, shared to global; completes with the bulk group.
TW_DEVICE void tensor_store(const TensorMap* map, u32 source, int c0) {
    asm volatile(
        "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%0, {%2}], [%1];" ::"l"(map),
        "r"(source), "r"(c0)
        : "memory");
}

/// PTX ISA, cp.async.bulk.tensor.2d, shared to global; completes with the bulk group.
TW_DEVICE void tensor_store(const TensorMap* map, u32 source, int c0, int c1) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
        "r"(source), "r"(c0), "r"(c1)
        : "memory");
}

/// PTX ISA, cp.async.bulk.tensor.3d, shared to global; completes with the bulk group.
TW_DEVICE void tensor_store(const TensorMap* map, u32 source, int c0, int c1, int c2) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
            map),
        "r"(source), "r"(c0), "r"(c1), "r"(c2)
        : "memory");
}

/// PTX ISA, cp.async.bulk.tensor.4d, shared to global; completes with the bulk group.
TW_DEVICE void tensor_store(const TensorMap* map, u32 source, int c0, int c1, int c2, int c3) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
            map),
        "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}

/// PTX ISA, cp.async.bulk.tensor.5d, shared to global; completes with the bulk group.
TW_DEVICE void tensor_store(const TensorMap* map, u32 source, int c0, int c1, int c2, int c3,
                            int c4) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::
            "l"(map),
        "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
        : "memory");
}

/// PTX ISA, cp.reduce.async.bulk.tensor.1d, adds shared to global; completes with the bulk group.
TW_DEVICE void tensor_add(const TensorMap* map, u32 source, int c0) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group [%0, {%2}], [%1];" ::"l"(
            map),
        "r"(source), "r"(c0)
        : "memory");
}

/// PTX ISA, cp.reduce.async.bulk.tensor.2d, adds shared to global; completes with the bulk group.
TW_DEVICE void tensor_add(const TensorMap* map, u32 source, int c0, int c1) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%2, %3}], [%1];" ::
            "l"(map),
        "r"(source), "r"(c0), "r"(c1)
        : "memory");
}

/// PTX ISA, cp.reduce.async.bulk.tensor.3d, adds shared to global; completes with the bulk group.
TW_DEVICE void tensor_add(const TensorMap* map, u32 source, int c0, int c1, int c2) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4}], "
        "[%1];" ::"l"(map),
        "r"(source), "r"(c0), "r"(c1), "r"(c2)
        : "memory");
}

/// PTX ISA, cp.reduce.async.bulk.tensor.4d, adds shared to global; completes with the bulk group.
TW_DEVICE void tensor_add(const TensorMap* map, u32 source, int c0, int c1, int c2, int c3) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4, %5}], "
        "[%1];" ::"l"(map),
        "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}

/// PTX ISA, cp.reduce.async.bulk.tensor.5d, adds shared to global; completes with the bulk group.
TW_DEVICE void tensor_add(const TensorMap* map, u32 source, int c0, int c1, int c2, int c3,
                          int c4) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4, %5, "
        "%6}], [%1];" ::"l"(map),
        "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
        : "memory");
}

}  // namespace twd::ptx
