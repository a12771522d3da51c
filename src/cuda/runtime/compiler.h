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

/// A text that sources may `#include` by this name; NVRTC reads no file.
struct Header {
    std::string name;
    std::string text;
};

/// One translation unit and how to compile it.
struct CompileRequest {
    std::string name;  ///< what messages call it, as a file name: "attention_forward.cu"
    std::string source;
    std::vector<Header> headers;  ///< beside the embedded device headers
    std::string arch;             ///< "sm_80", "sm_90a", ...
    std::vector<std::string> options;
    /// Set for our own kernels: more spilled bytes than this, or a warning that wgmma is serialised
    /// or setmaxnreg ignored, is an error.
    std::optional<int> spill_limit_bytes;
    /// Kernels whose names are mangled, as C++ names them: "f<float, 3>". They are instantiated.
    std::vector<std::string> kernels = {};
    /// What operation the source of a user belongs to: failures are then UserErrors of it.
    std::string users = {};
};

/// What a compilation gave.
struct Compiled {
    std::string cubin;
    std::string ptx;
    std::string log;                        ///< NVRTC's and ptxas's whole output
    int registers = 0;                      ///< the most any kernel takes
    int spill_bytes = 0;                    ///< stores and loads, summed over kernels
    std::vector<std::string> symbols = {};  ///< of the request's `kernels`
};

/// How the search for NVRTC went.
const LibraryReport& nvrtc_report();

/// Compiles, ignoring every cache. Throws UserError without NVRTC, InternalError with the whole log
/// and the path of the kept source when the source does not compile or breaks its limits, UserError
/// with the log where it is a user's.
Compiled compile(const CompileRequest& request);

/// The cubin of a request, from memory, from the library's kernels (kernel_pack.h), from disk, or
/// compiled (once, whichever threads ask). NVRTC is opened for the latter two alone.
std::shared_ptr<const std::string> cubin_of(const CompileRequest& request);

/// The symbol in that cubin of a kernel of the request: itself, unless it is one of `kernels`.
std::string symbol_of(const CompileRequest& request, const std::string& kernel);

/// Lets a thread of its own compile a request, which `cubin_of` waits for; the process ends after
/// it. A failure is for the call that needs the cubin to meet.
void compile_in_background(CompileRequest request);

/// Forgets a cubin that the driver refused, wherever it came from, so that it is compiled again.
void forget_cubin(const CompileRequest& request);

/// Identifies a request: hashes of source and headers, options, arch.
std::string source_key(const CompileRequest& request);

/// Identifies what this machine makes of a request: its source key and NVRTC's version.
std::string cache_key(const CompileRequest& request);

/// Where cubins are kept.
std::filesystem::path kernel_cache_folder();

/// Where sources that did not compile are kept.
std::filesystem::path failed_sources_folder();

/// The device headers built into this library (cuda/device/**), by the names sources include.
const std::vector<Header>& embedded_headers();

}  // namespace tilewright::cuda
