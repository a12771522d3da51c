// The CUDA driver API, opened at run time: the entry points we use and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/library.h"
#include "tilewright/error.h"

namespace tilewright::cuda {

/// An address in device memory.
using DeviceAddress = std::uint64_t;
/// Handles of the driver, opaque to us; a stream is a framework's CUstream or cudaStream_t.
using ContextHandle = void*;
using StreamHandle = void*;
using EventHandle = void*;
using ModuleHandle = void*;
using FunctionHandle = void*;

/// CUtensorMap: 128 opaque bytes that describe a tile of global memory to TMA.
struct alignas(64) TensorMap {
    std::uint64_t opaque[16];
};

// Name in the library, parameter types; every entry returns CUresult.
// clang-format off
#define TW_CUDA_DRIVER_ENTRIES(X)                                                                  \
    X(cuInit, (unsigned))                                                                          \
    X(cuDriverGetVersion, (int*))                                                                  \
    X(cuGetErrorName, (int, const char**))                                                         \
    X(cuGetErrorString, (int, const char**))                                                       \
    X(cuDeviceGetCount, (int*))                                                                    \
    X(cuDeviceGet, (int*, int))                                                                    \
    X(cuDeviceGetName, (char*, int, int))                                                          \
    X(cuDeviceGetAttribute, (int*, int, int))                                                      \
    X(cuDeviceTotalMem_v2, (std::size_t*, int))                                                    \
    X(cuDevicePrimaryCtxRetain, (ContextHandle*, int))                                             \
    X(cuCtxPushCurrent_v2, (ContextHandle))                                                        \
    X(cuCtxPopCurrent_v2, (ContextHandle*))                                                        \
    X(cuCtxGetDevice, (int*))                                                                      \
    X(cuCtxSynchronize, ())                                                                        \
    X(cuPointerGetAttribute, (void*, int, DeviceAddress))                                          \
    X(cuMemAlloc_v2, (DeviceAddress*, std::size_t))                                                \
    X(cuMemFree_v2, (DeviceAddress))                                                               \
    X(cuMemcpyHtoDAsync_v2, (DeviceAddress, const void*, std::size_t, StreamHandle))               \
    X(cuMemcpyDtoHAsync_v2, (void*, DeviceAddress, std::size_t, StreamHandle))                     \
    X(cuMemcpyDtoDAsync_v2, (DeviceAddress, DeviceAddress, std::size_t, StreamHandle))             \
    X(cuMemsetD8Async, (DeviceAddress, unsigned char, std::size_t, StreamHandle))                  \
    X(cuMemsetD32Async, (DeviceAddress, unsigned, std::size_t, StreamHandle))                      \
    X(cuStreamCreate, (StreamHandle*, unsigned))                                                   \
    X(cuStreamDestroy_v2, (StreamHandle))                                                          \
    X(cuStreamSynchronize, (StreamHandle))                                                         \
    X(cuStreamWaitEvent, (StreamHandle, EventHandle, unsigned))                                    \
    X(cuStreamGetCtx, (StreamHandle, ContextHandle*))                                              \
    X(cuStreamIsCapturing, (StreamHandle, int*))                                                   \
    X(cuStreamGetCaptureInfo_v2,                                                                   \
      (StreamHandle, int*, std::uint64_t*, void**, const void**, std::size_t*))                    \
    X(cuThreadExchangeStreamCaptureMode, (int*))                                                   \
    X(cuStreamBeginCapture_v2, (StreamHandle, int))                                                \
    X(cuStreamEndCapture, (StreamHandle, void**))                                                  \
    X(cuGraphInstantiateWithFlags, (void**, void*, unsigned long long))                            \
    X(cuGraphLaunch, (void*, StreamHandle))                                                        \
    X(cuGraphExecDestroy, (void*))                                                                 \
    X(cuGraphDestroy, (void*))                                                                     \
    X(cuUserObjectCreate, (void**, void*, void (*)(void*), unsigned, unsigned))                    \
    X(cuGraphRetainUserObject, (void*, void*, unsigned, unsigned))                                 \
    X(cuEventCreate, (EventHandle*, unsigned))                                                     \
    X(cuEventDestroy_v2, (EventHandle))                                                            \
    X(cuEventRecord, (EventHandle, StreamHandle))                                                  \
    X(cuEventSynchronize, (EventHandle))                                                           \
    X(cuEventElapsedTime, (float*, EventHandle, EventHandle))                                      \
    X(cuModuleLoadData, (ModuleHandle*, const void*))                                              \
    X(cuModuleUnload, (ModuleHandle))                                                              \
    X(cuModuleGetFunction, (FunctionHandle*, ModuleHandle, const char*))                           \
    X(cuFuncSetAttribute, (FunctionHandle, int, int))                                              \
    X(cuFuncGetAttribute, (int*, int, FunctionHandle))                                             \
    X(cuLaunchKernelEx, (const void*, FunctionHandle, void**, void**))                             \
    X(cuTensorMapEncodeTiled,                                                                      \
      (TensorMap*, int, std::uint32_t, void*, const std::uint64_t*, const std::uint64_t*,          \
       const std::uint32_t*, const std::uint32_t*, int, int, int, int))
// clang-format on

/// The entry points as function pointers, all of them set.
struct Driver {
#define TW_CUDA_DRIVER_POINTER(entry, parameters) int(*entry) parameters = nullptr;
    TW_CUDA_DRIVER_ENTRIES(TW_CUDA_DRIVER_POINTER)
#undef TW_CUDA_DRIVER_POINTER
    int version = 0;  ///< 13000 = CUDA 13.0

    /// Throws CudaError naming `action` unless `status` is CUDA_SUCCESS.
    void check(int status, const char* action) const;
};

/// The driver, opened and initialised at the first call; nullptr on a machine without one.
const Driver* find_driver();

/// The driver; where there is none, throws UserError with what was tried and how to get one.
const Driver& driver();

/// How the search for the driver went.
const LibraryReport& driver_report();

}  // namespace tilewright::cuda
