// The structs of DLPack, a format for exchanging tensors in memory (ABI of version 1.3). Also C.
#pragma once

#include <stdint.h>  // NOLINT(modernize-deprecated-headers): C includes this file

#ifdef __cplusplus
extern "C" {
#endif

/// Device kinds of DLPack that Tilewright knows.
typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3 } DLDeviceType;

typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;

typedef enum {
    kDLInt = 0,
    kDLUInt = 1,
    kDLFloat = 2,
    kDLBfloat = 4,
    kDLBool = 6,
    kDLFloat8_e4m3fn = 10,
    kDLFloat8_e5m2 = 12,
} DLDataTypeCode;

typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} DLDataType;

/// A strided view; `strides` counts elements and may be null for a contiguous tensor.
typedef struct {
    void* data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
} DLTensor;

/// A tensor with its owner; the consumer calls `deleter` once when done.
typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void* manager_ctx;
    void (*deleter)(struct DLManagedTensor* self);
} DLManagedTensor;

typedef struct {
    uint32_t major;
    uint32_t minor;
} DLPackVersion;

#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)

/// The versioned form of DLPack 1.0.
typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void* manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned* self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

/// How a framework exchanges tensors without calling Python (DLPack 1.3): its tensor class has a
/// capsule "dlpack_exchange_api" as `__dlpack_c_exchange_api__`. The functions return 0, or -1 with
/// a Python error set; Python objects are `PyObject*`.
typedef struct DLPackExchangeAPIHeader {
    DLPackVersion version;
    struct DLPackExchangeAPIHeader* prev_api;  ///< of an older major version, or null
} DLPackExchangeAPIHeader;

typedef struct DLPackExchangeAPI {
    DLPackExchangeAPIHeader header;
    /// A new tensor of the prototype's dtype, shape and device. Errors go to `set_error`.
    int (*managed_tensor_allocator)(DLTensor* prototype, DLManagedTensorVersioned** out,
                                    void* error_context,
                                    void (*set_error)(void* error_context, const char* kind,
                                                      const char* message));
    int (*managed_tensor_from_py_object_no_sync)(void* object, DLManagedTensorVersioned** out);
    int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned* tensor, void** out);
    /// A view that the object keeps alive; may be null.
    int (*dltensor_from_py_object_no_sync)(void* object, DLTensor* out);
    /// The stream on which the framework runs this thread's work.
    int (*current_work_stream)(DLDeviceType device_type, int32_t device_id, void** out);
} DLPackExchangeAPI;

#ifdef __cplusplus
}  // extern "C"
#endif
