// Compact kernels: a text that defines TW_COMPACT compiles in a third of the time and runs
// 10 to 25 times slower, with the same results. Loops are not unrolled, those over registers keep
// them in memory, and functions exist once. A product takes its registers from memory and puts
// them back, so it ends with its statement, and waits outside of it have nothing to wait for. A
// product of what loops that are unrolled make constant is rounded as that constant is, not fused
// with a sum.
#pragma once

#ifdef TW_COMPACT
#define TW_IS_COMPACT true
#define TW_UNROLL _Pragma("unroll 1")
#define TW_LOOP _Pragma("unroll 1")
#define TW_ALIGNED alignas(16)
#define TW_DEVICE_ONCE __device__ __noinline__
#define TW_UNROLLED_PRODUCT(a, b) __fmul_rn(a, b)
#define TW_WGMMA_BEGIN "wgmma.fence.sync.aligned;\n"
#define TW_WGMMA_END "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
#else
#define TW_IS_COMPACT false
#define TW_UNROLL _Pragma("unroll")
#define TW_LOOP
#define TW_ALIGNED
#define TW_DEVICE_ONCE TW_DEVICE
#define TW_UNROLLED_PRODUCT(a, b) ((a) * (b))
#define TW_WGMMA_BEGIN
#define TW_WGMMA_END
#endif
