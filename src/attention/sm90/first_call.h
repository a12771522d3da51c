// First calls of a variant: they may run kernels that compile in a third of the time, until the
// kernels that all other calls run have been compiled in the background.
#pragma once

#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "attention/sm90/backward.h"
#include "attention/sm90/forward.h"

namespace tilewright::attn::sm90 {

/// A call that may be the first of its variant.
struct FirstCall {
    const AttentionSpec* spec = nullptr;  ///< null: it waits for the full kernels
    cuda::StreamHandle stream = nullptr;
};

/// The units with their compact variants, which give the same results, compile sooner and run
/// slower. Units of kernels for rows compile fast as they are.
std::vector<cuda::CompileRequest> compact(std::vector<cuda::CompileRequest> units);

/// Starts to compile the compact units of a variant if a later first call may run them.
bool compile_compact(const FirstCall& call, const std::vector<cuda::CompileRequest>& units);

/// Starts to compile units in the background, in this order: the front end of NVRTC 13 works on one
/// text of a process at a time, so the unit that a call waits for longest comes first.
void compile_ahead(const std::vector<cuda::CompileRequest>& units);

/// May this call load compact kernels in place of those of `units`? Only the first that asks, for
/// each variant and device; others wait in `await_compact` until the promise is destroyed.
std::optional<std::promise<void>> begins_compact(const FirstCall& call, const std::string& variant,
                                                 int device,
                                                 const std::vector<cuda::CompileRequest>& units);

/// Waits for the call that loads the compact kernels of a variant, if one does and this call may
/// run them.
void await_compact(const FirstCall& call, const std::string& variant, int device);

/// The call that has loaded compact kernels runs them now.
void runs_compact(const FirstCall& call, int device,
                  const std::vector<cuda::CompileRequest>& units);

/// May a further call run them, because full kernels, those of `units`, are still being compiled?
/// Not if the GPU may still be busy with compact kernels of earlier calls for long.
bool stays_compact(const FirstCall& call, int device,
                   const std::vector<cuda::CompileRequest>& units);

/// As the functions of this name in forward.h and backward.h; calls of a variant may get compact
/// kernels until the full ones are compiled.
ForwardKernels load_forward(const ForwardDesc& desc, const ForwardConfig& config, int device,
                            const FirstCall& call, const std::function<void()>& before);
BackwardKernels load_backward(const BackwardDesc& desc, const BackwardConfig& config, int device,
                              const FirstCall& call);

}  // namespace tilewright::attn::sm90
