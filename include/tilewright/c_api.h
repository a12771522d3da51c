// The C interface, for other languages: tensors as DLPack views, statuses instead of exceptions.
//
// Inputs are borrowed `const DLTensor*`; null stands for an argument left out. They are in CPU
// memory or on one CUDA GPU, at addresses that are multiples of the element size. Results are
// `DLManagedTensor*` that the caller releases through their deleter (tw_release calls it); a null
// pointer for a result means that it is not wanted. A call that fails writes no result. All
// functions may be called from any thread. docs/reference/c_api.md is an introduction.
#pragma once

#include "tilewright/dlpack.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/// How a call ended.
typedef enum {
    TW_OK = 0,
    /// Bad arguments: tw_error() names the argument, what was expected and what it got.
    TW_BAD_INPUT = 1,
    TW_FAILED = 2,         ///< an internal error, or a driver that is missing or fails
    TW_OUT_OF_MEMORY = 3,  ///< of the host or of a GPU; nothing is wrong with the arguments
} tw_status;

/// The text of this thread's last failure; valid until the thread's next call.
const char* tw_error(void);

/// "major.minor.patch" of the library.
const char* tw_version(void);

/// Threads that calls on the CPU use; 0 restores the default, all cores.
tw_status tw_set_num_threads(int threads);

/// Turns the checked mode (bounds, NaN poison, races) on or off for every call.
tw_status tw_set_checked(int on);

/// Sets the CUDA stream (a CUstream or cudaStream_t; null: the legacy default stream) on which this
/// thread's calls run on GPU arrays. They do not wait for their results.
tw_status tw_set_cuda_stream(void* stream);

/// A report on the machine and what will be used; valid until this thread's next call.
const char* tw_doctor(void);

/// Releases a result; null does nothing.
void tw_release(DLManagedTensor* tensor);

// ---- Mods.

/// A score mod or a mask mod with the arrays that it reads.
typedef struct tw_mod tw_mod;

typedef enum {
    TW_MOD_ANY = 0,  ///< whichever the text is
    TW_MOD_SCORE = 1,
    TW_MOD_MASK = 2,
} tw_mod_kind;

/// A mod from text (docs/reference/attention.md), which reads `count` arrays by these names. Their
/// memory must outlive the mod. `kind` is a tw_mod_kind; other numbers are TW_BAD_INPUT.
tw_status tw_parse_mod(const char* text, int kind, const char* const* names,
                       const DLTensor* const* arrays, int count, tw_mod** result);
/// Releases a mod; null does nothing.
void tw_mod_release(tw_mod* mod);
/// The tile IR of a mod; valid until this thread's next call. Null after a failure.
const char* tw_mod_ir(const tw_mod* mod);

// ---- Norms (tilewright/norm.h has shapes and dtypes).

/// y = s / sqrt(mean(s^2) + eps) * weight with s = x + residual, or x without one. `sum` is s:
/// without a residual a view of the caller's x.
tw_status tw_rms_norm(const DLTensor* x, const DLTensor* weight, double eps,
                      const DLTensor* residual, DLManagedTensor** y, DLManagedTensor** sum,
                      DLManagedTensor** inverse_deviation);

/// `sum` and `inverse_deviation` are those of the forward pass; `dsum` is the gradient of its sum.
tw_status tw_rms_norm_backward(const DLTensor* sum, const DLTensor* inverse_deviation,
                               const DLTensor* weight, double eps, const DLTensor* dy,
                               const DLTensor* dsum, DLManagedTensor** dx,
                               DLManagedTensor** dweight);

/// y = (s - mean) / sqrt(variance + eps) * weight + bias, with s and `sum` as in tw_rms_norm.
tw_status tw_layer_norm(const DLTensor* x, const DLTensor* weight, const DLTensor* bias, double eps,
                        const DLTensor* residual, DLManagedTensor** y, DLManagedTensor** sum,
                        DLManagedTensor** mean, DLManagedTensor** inverse_deviation);

tw_status tw_layer_norm_backward(const DLTensor* sum, const DLTensor* mean,
                                 const DLTensor* inverse_deviation, const DLTensor* weight,
                                 const DLTensor* bias, double eps, const DLTensor* dy,
                                 const DLTensor* dsum, DLManagedTensor** dx,
                                 DLManagedTensor** dweight, DLManagedTensor** dbias);

// ---- Programs: kernels as IR text (docs/reference/ir.md) from `tilewright dump`, C++ or Python.

typedef struct tw_program tw_program;

/// Compiles a program for arrays on `device`; `checked` runs it in the checked mode (CPU only).
tw_status tw_program_create(const char* ir, DLDevice device, int checked, tw_program** result);
/// Releases a program; null does nothing.
void tw_program_release(tw_program* program);
/// Describes one array of tw_program_run. `name` and `shape` (extents of -1 are taken from the run)
/// are valid as long as the program; `written` is 1 where the program stores to the array. Any of
/// the result pointers may be null.
tw_status tw_program_array(const tw_program* program, int index, const char** name,
                           DLDataType* dtype, int* rank, const int64_t** shape, int* written);
/// Number of arrays that tw_program_run takes; 0 for null.
int tw_program_arrays(const tw_program* program);
/// Runs on the caller's arrays, results included, in parameter order; on a GPU, on the stream of
/// tw_set_cuda_stream.
tw_status tw_program_run(const tw_program* program, const DLTensor* const* arrays, int count);

// ---- Artifacts: operations compiled ahead of time (tilewright/artifact.h), as folders.

typedef struct tw_artifact tw_artifact;

/// Loads an artifact for arrays on `device`. `checksum` is that of the export, found in its
/// generated header; null accepts any.
tw_status tw_artifact_load(const char* folder, DLDevice device, const char* checksum,
                           tw_artifact** result);
/// Releases an artifact; null does nothing.
void tw_artifact_release(tw_artifact* artifact);
/// Like tw_program_arrays and tw_program_array; every extent is known.
int tw_artifact_arrays(const tw_artifact* artifact);
tw_status tw_artifact_array(const tw_artifact* artifact, int index, const char** name,
                            DLDataType* dtype, int* rank, const int64_t** shape, int* written);
/// Runs on the caller's row-major arrays, results included, in parameter order; on a GPU, on the
/// stream of tw_set_cuda_stream.
tw_status tw_artifact_run(const tw_artifact* artifact, const DLTensor* const* arrays, int count);

// ---- Masks as data (tilewright/mask.h).

typedef struct tw_mask tw_mask;

/// The mask of a mask mod over (batch, heads, q_len, kv_len); a batch or head count of 1 stands for
/// any number.
tw_status tw_create_block_mask(const tw_mod* mod, int64_t batch, int64_t heads, int64_t q_len,
                               int64_t kv_len, int64_t q_block, int64_t kv_block, tw_mask** result);
/// Releases a mask; null does nothing.
void tw_mask_release(tw_mask* mask);
/// The percentage of blocks in which no pair attends, and the mask's bytes. Either may be null.
tw_status tw_mask_describe(const tw_mask* mask, double* sparsity, int64_t* nbytes);

// ---- Attention (tilewright/attention.h has shapes, dtypes and the meaning of every option).

/// Options of attention. Call tw_attention_options_init, then change members; new ones come last.
typedef struct tw_attention_options {
    uint64_t size;  ///< of this struct, as the caller's compiler sees it
    double scale;   ///< NaN: 1 / sqrt(head dimension)
    int32_t causal;
    int32_t bshd;  ///< (batch, sequence, heads, dimension) instead of (batch, heads, sequence, ...)
    int64_t window_left, window_right;  ///< -1: unbounded
    double dropout;
    uint64_t seed;
    int32_t deterministic;
    int32_t checked;
    const DLTensor* segment_ids;
    const DLTensor* kv_segment_ids;
    const DLTensor* cu_seqlens;
    const DLTensor* kv_cu_seqlens;
    const DLTensor* sinks;
    const tw_mod* score_mod;
    const tw_mod* mask_mod;
    const tw_mask* block_mask;
    const char* engine;          ///< "tiles" or "sm90"; null: the fastest that supports it
    const DLTensor* kv_lengths;  ///< (B) integers: keys past them are ignored
    const char* precision;       ///< for f32 on GPUs: "ieee", "tf32" or "bf16x3"; null: "ieee"
} tw_attention_options;

void tw_attention_options_init(tw_attention_options* options);

/// softmax(mask(score_mod(scale * Q K^T))) V, computed where the arrays are: all in CPU memory or
/// all on one GPU. Null options are the defaults.
tw_status tw_attention(const DLTensor* query, const DLTensor* key, const DLTensor* value,
                       const tw_attention_options* options, DLManagedTensor** out,
                       DLManagedTensor** lse, DLManagedTensor** max_scores);

/// Gradients; `out` and `lse` are those of the forward pass with the same arguments, `dlse` may be
/// null. `dcaptured`, unless null, is an array of `captured` results, one for each floating capture
/// of the score mod in the order of first use; TW_BAD_INPUT for any other number.
tw_status tw_attention_backward(const DLTensor* query, const DLTensor* key, const DLTensor* value,
                                const DLTensor* out, const DLTensor* lse, const DLTensor* dout,
                                const DLTensor* dlse, const tw_attention_options* options,
                                DLManagedTensor** dquery, DLManagedTensor** dkey,
                                DLManagedTensor** dvalue, DLManagedTensor** dsinks,
                                DLManagedTensor** dcaptured, int captured);

#pragma GCC visibility pop

#ifdef __cplusplus
}  // extern "C"
#endif
