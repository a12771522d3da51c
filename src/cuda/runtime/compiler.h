// CUDA C++ to cubin through NVRTC, with a cache in memory and on disk.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/runtime/library.h"

namespace tilewright::cuda {

/// A text that sources may `#include` by this name; NVRTC reads no files.
struct Header {
    std::string name;
    std::string text;
};

/// One translation unit and how to compile it.
struct CompileRequest {
    std::string name;  ///< its file name in messages: "attention_forward.cu"
    std::string source;
    std::vector<Header> headers;  ///< beside the embedded device headers
    std::string arch;             ///< "sm_80", "sm_90a", ...
    std::vector<std::string> options;
    /// Set for our own kernels: spilling more bytes than this breaks the limit, and so does a
    /// warning that wgmma is serialised or setmaxnreg ignored. An error in `compile`, which tests
    /// and builds call; kernels compiled for a call run all the same, and the debug log names them.
    std::optional<int> spill_limit_bytes;
    /// Kernels with mangled names, as C++ writes them: "f<float, 3>". They are instantiated.
    std::vector<std::string> kernels = {};
    /// The operation that a user's source belongs to: failures are then its UserErrors.
    std::string users = {};
};

/// The result of a compilation.
struct Compiled {
    std::string cubin;
    std::string ptx;
    std::string log;                        ///< the whole output of NVRTC and ptxas
    int registers = 0;                      ///< per thread, the maximum over kernels
    int spill_bytes = 0;                    ///< stores and loads, summed over kernels
    std::string serious_warning = {};       ///< that wgmma is serialised or setmaxnreg ignored
    std::vector<std::string> symbols = {};  ///< of the request's `kernels`
};

/// How the search for NVRTC went.
const LibraryReport& nvrtc_report();

/// Compiles, ignoring every cache. Throws UserError without NVRTC. A source that does not compile
/// or breaks its limits throws InternalError with the whole log and the path of the kept source; a
/// user's source throws UserError with the log.
Compiled compile(const CompileRequest& request);

/// The cubin of a request: from memory, from the library's kernels (kernel_pack.h), from disk, or
/// compiled (once, however many threads ask). Only the last two open NVRTC.
std::shared_ptr<const std::string> cubin_of(const CompileRequest& request);

/// The symbol of a kernel in that cubin: `kernel` itself, unless it is one of `request.kernels`.
std::string symbol_of(const CompileRequest& request, const std::string& kernel);

/// Compiles a request on a thread of its own, which `cubin_of` and the end of the process wait for.
/// Failures are reported by the call that needs the cubin.
void compile_in_background(CompileRequest request);

/// Forgets a cubin that the driver refused, wherever it came from, so that it is compiled again.
void forget_cubin(const CompileRequest& request);

/// Identifies a request: hashes of source and headers, options, arch.
std::string source_key(const CompileRequest& request);

/// Identifies the cubin of a request on this machine: its source key and NVRTC's version.
std::string cache_key(const CompileRequest& request);

/// Where cubins are kept.
std::filesystem::path kernel_cache_folder();

/// Where sources that did not compile are kept.
std::filesystem::path failed_sources_folder();

/// The device headers built into this library (cuda/device/**), by the names sources include.
const std::vector<Header>& embedded_headers();

}  // namespace tilewright::cuda
