// The C interface: tensors as DLPack views, statuses instead of exceptions. For other languages.
//
// Inputs are borrowed `const DLTensor*`; null stands for an argument left out. They lie in CPU
// memory or on one CUDA GPU, at addresses that are multiples of the element's size. Results are
// `DLManagedTensor*` that the caller releases by their deleter (tw_release calls it); a null place
// asks for no such result. A call that fails writes no result. All functions may be called from any
// thread. docs/reference/c_api.md is an introduction.
#pragma once

#include "tilewright/dlpack.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/// How a call ended.
typedef enum {
    TW_OK = 0,
    /// The caller's: tw_error() names the argument, what was expected, what came.
    TW_BAD_INPUT = 1,
    TW_FAILED = 2,         ///< ours, or the machine's: a driver that is missing or fails
    TW_OUT_OF_MEMORY = 3,  ///< of the host or of a GPU; nothing is wrong with the arguments
} tw_status;

/// The text of this thread's last failure; valid until its next call.
const char* tw_error(void);

/// "major.minor.patch" of the library.
const char* tw_version(void);

/// Threads that calls on the CPU use; 0 restores the default, all cores.
tw_status tw_set_num_threads(int threads);

/// Puts every call into the checked mode (bounds, NaN poison, races) or back.
tw_status tw_set_checked(int on);

/// The CUDA stream (a CUstream or cudaStream_t; null: the legacy default stream) of this thread's
/// calls on GPU arrays. They do not wait for their results.
tw_status tw_set_cuda_stream(void* stream);

/// Lines for people about the machine and what will be used; valid until this thread's next call.
const char* tw_doctor(void);

/// Releases a result; null does nothing.
void tw_release(DLManagedTensor* tensor);

// ---- Mods.

/// A score mod or a mask mod, with the arrays that it reads.
typedef struct tw_mod tw_mod;

typedef enum {
    TW_MOD_ANY = 0,  ///< what the text gives
    TW_MOD_SCORE = 1,
    TW_MOD_MASK = 2,
} tw_mod_kind;

/// A mod from text (docs/reference/attention.md), with `count` arrays by the names under which it
/// reads them. Their memory must outlive the mod.
tw_status tw_parse_mod(const char* text, tw_mod_kind kind, const char* const* names,
                       const DLTensor* const* arrays, int count, tw_mod** result);
/// Null does nothing.
void tw_mod_release(tw_mod* mod);
/// The tile IR of a mod; valid until this thread's next call. Null after a failure.
const char* tw_mod_ir(const tw_mod* mod);

// ---- Norms (tilewright/norm.h has shapes and dtypes).

/// x / sqrt(mean(x^2) + eps) * weight; of x + residual where one is given. Without a residual
/// `sum` is x itself: a view of the caller's memory.
tw_status tw_rms_norm(const DLTensor* x, const DLTensor* weight, double eps,
                      const DLTensor* residual, DLManagedTensor** y, DLManagedTensor** sum,
                      DLManagedTensor** inverse_deviation);

/// `sum` and `inverse_deviation` are those of the forward pass. `dsum`: gradient of its sum.
tw_status tw_rms_norm_backward(const DLTensor* sum, const DLTensor* inverse_deviation,
                               const DLTensor* weight, double eps, const DLTensor* dy,
                               const DLTensor* dsum, DLManagedTensor** dx,
                               DLManagedTensor** dweight);

/// (x - mean) / sqrt(variance + eps) * weight + bias.
tw_status tw_layer_norm(const DLTensor* x, const DLTensor* weight, const DLTensor* bias, double eps,
                        const DLTensor* residual, DLManagedTensor** y, DLManagedTensor** sum,
                        DLManagedTensor** mean, DLManagedTensor** inverse_deviation);

tw_status tw_layer_norm_backward(const DLTensor* sum, const DLTensor* mean,
                                 const DLTensor* inverse_deviation, const DLTensor* weight,
                                 const DLTensor* bias, double eps, const DLTensor* dy,
                                 const DLTensor* dsum, DLManagedTensor** dx,
                                 DLManagedTensor** dweight, DLManagedTensor** dbias);

// ---- Programs: kernels as IR text (docs/reference/ir.md), from `tilewright dump`, C++ or Python.

typedef struct tw_program tw_program;

/// Compiles a program for arrays on `device`; `checked` runs it in the checked mode (CPU only).
tw_status tw_program_create(const char* ir, DLDevice device, int checked, tw_program** result);
/// Null does nothing.
void tw_program_release(tw_program* program);
/// One array of tw_program_run. `name` and `shape` (extents of -1 come with the run) are valid as
/// long as the program; `written`: 1 where the program stores to it. A place may be null.
tw_status tw_program_array(const tw_program* program, int index, const char** name,
                           DLDataType* dtype, int* rank, const int64_t** shape, int* written);
/// Number of arrays that tw_program_run takes; 0 for null.
int tw_program_arrays(const tw_program* program);
/// Runs on arrays of the caller, results too, in parameter order; on a GPU on the stream of
/// tw_set_cuda_stream.
tw_status tw_program_run(const tw_program* program, const DLTensor* const* arrays, int count);

// ---- Artifacts: operations compiled ahead of time (tilewright/artifact.h), as folders.

typedef struct tw_artifact tw_artifact;

/// Loads an artifact for arrays on `device`. `checksum`: that of the export, which generated
/// headers give; null: any.
tw_status tw_artifact_load(const char* folder, DLDevice device, const char* checksum,
                           tw_artifact** result);
/// Null does nothing.
void tw_artifact_release(tw_artifact* artifact);
/// As tw_program_arrays and tw_program_array; every extent is known.
int tw_artifact_arrays(const tw_artifact* artifact);
tw_status tw_artifact_array(const tw_artifact* artifact, int index, const char** name,
                            DLDataType* dtype, int* rank, const int64_t** shape, int* written);
/// Runs on row-major arrays of the caller, results too, in parameter order; on a GPU on the stream
/// of tw_set_cuda_stream.
tw_status tw_artifact_run(const tw_artifact* artifact, const DLTensor* const* arrays, int count);

// ---- Masks as data (tilewright/mask.h).

typedef struct tw_mask tw_mask;

/// The mask of a mask mod over (batch, heads, q_len, kv_len); 1 batch or head stands for any
/// number.
tw_status tw_create_block_mask(const tw_mod* mod, int64_t batch, int64_t heads, int64_t q_len,
                               int64_t kv_len, int64_t q_block, int64_t kv_block, tw_mask** result);
/// Null does nothing.
void tw_mask_release(tw_mask* mask);
/// Percentage of blocks without a pair that attends; bytes of the mask. A place may be null.
tw_status tw_mask_describe(const tw_mask* mask, double* sparsity, int64_t* nbytes);

// ---- Attention (tilewright/attention.h has shapes, dtypes and the meaning of every option).

/// Options of attention. Fill by tw_attention_options_init, then change; new members come last.
typedef struct tw_attention_options {
    uint64_t size;  ///< of this struct, as the caller's compiler sees it
    double scale;   ///< NaN: 1 / sqrt(head dimension)
    int32_t causal;
    int32_t bshd;  ///< (batch, sequence, heads, dimension) instead of (batch, heads, sequence, ..)
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
    const DLTensor* kv_lengths;  ///< (B) integers: keys from there on do not exist
    const char* precision;       ///< of f32 on GPUs: "ieee", "tf32" or "bf16x3"; null: "ieee"
} tw_attention_options;

void tw_attention_options_init(tw_attention_options* options);

/// softmax(mask(score_mod(scale * Q K^T))) V, where the arrays are: all in CPU memory or all on one
/// GPU. Null options: the defaults.
tw_status tw_attention(const DLTensor* query, const DLTensor* key, const DLTensor* value,
                       const tw_attention_options* options, DLManagedTensor** out,
                       DLManagedTensor** lse, DLManagedTensor** max_scores);

/// Gradients; `out` and `lse` are those of the forward pass with the same arguments, `dlse` may be
/// null. `dcaptured` has `captured` places, one for each floating capture of the score mod in the
/// order of its first use; TW_BAD_INPUT when that is not their number, unless it is null.
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
