// Finds and opens the CUDA libraries at run time; nothing of CUDA is linked.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tilewright::cuda {

/// The search for one library: what `doctor` prints and error messages quote.
struct LibraryReport {
    std::string name;                ///< "CUDA driver" or "NVRTC"
    std::string path;                ///< the file that was opened; empty when none was
    std::string version;             ///< "13.0"; empty when none was opened
    std::vector<std::string> tried;  ///< places searched, in order, with the reason of each failure
    std::string advice;              ///< how to get it; empty when it was found

    bool found() const { return !path.empty(); }
};

/// A library opened with dlopen. Never closed: kernels may run until the process ends.
class Library {
  public:
    /// Tries the candidates (file names for the system's loader, or paths) in order and keeps the
    /// first that opens. `report` receives the path and every failed attempt.
    static Library open(const std::vector<std::string>& candidates, LibraryReport& report);

    explicit operator bool() const { return handle_ != nullptr; }

    /// Opens the libraries in the folder of `path` whose file names start with `prefix`, so that
    /// the loader knows them by name: libraries from PyPI do not search their own folder.
    static void open_beside(const std::string& path, std::string_view prefix);

    /// Address of a symbol; nullptr where the library lacks it.
    void* symbol(const char* name) const;

  private:
    void* handle_ = nullptr;
};

/// Candidates for NVRTC in the documented order (docs/reference/env.md):
/// 1. TILEWRIGHT_NVRTC (a file or a folder) alone, when it is set;
/// 2. a copy that this process has already loaded (PyTorch's or JAX's);
/// 3. the system's loader (LD_LIBRARY_PATH, ld.so.cache);
/// 4. toolkits: $CUDA_HOME, $CUDA_PATH, /usr/local/cuda, /usr/local/cuda-*, newest first;
/// 5. PyPI's nvidia packages: beside this library's own site-packages, in $VIRTUAL_ENV, on
///    $PYTHONPATH, and in the user's site-packages.
std::vector<std::string> nvrtc_candidates();

}  // namespace tilewright::cuda
