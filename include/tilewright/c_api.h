// The C interface: tensors as DLPack views, statuses instead of exceptions. For other languages.
//
// Inputs are borrowed `const DLTensor*`; null stands for an argument left out. Results are
// `DLManagedTensor*` that the caller releases by their deleter; a null place asks for no such
// result. A call that fails writes no result. All functions may be called from any thread.
#pragma once

#include "tilewright/dlpack.h"

#ifdef __cplusplus
extern "C" {
#endif

/// How a call ended.
typedef enum {
    TW_OK = 0,
    TW_BAD_INPUT =
        1,          ///< the caller's: tw_error() names the argument, what was expected, what came
    TW_FAILED = 2,  ///< ours, or the machine's: out of memory, a driver that is missing
} tw_status;

/// The text of this thread's last failure; valid until its next call.
const char* tw_error(void);

/// "major.minor.patch" of the library.
const char* tw_version(void);

/// Threads that calls on the CPU use; 0 restores the default, all cores.
tw_status tw_set_num_threads(int threads);

/// Puts every call into the checked mode (bounds, NaN poison, races) or back.
tw_status tw_set_checked(int on);

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

/// A mod from text (docs/attention.md), with `count` arrays by the names under which it reads them.
/// Their memory must outlive the mod.
tw_status tw_parse_mod(const char* text, tw_mod_kind kind, const char* const* names,
                       const DLTensor* const* arrays, int count, tw_mod** result);
/// Null does nothing.
void tw_mod_release(tw_mod* mod);
/// The tile IR of a mod; valid until this thread's next call. Null after a failure.
const char* tw_mod_ir(const tw_mod* mod);

// ---- Norms (tilewright/norm.h has shapes and dtypes).

/// x / sqrt(mean(x^2) + eps) * weight; of x + residual where one is given.
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

#ifdef __cplusplus
}  // extern "C"
#endif
