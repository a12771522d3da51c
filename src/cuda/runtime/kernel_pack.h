// Kernels that were compiled with the library: a file beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace tilewright::cuda {

/// A file of compressed cubins by the keys of their requests (`source_key`), which `tilewright
/// precompile` writes. The file is trusted as the library beside it is.
class KernelPack {
  public:
    /// Reads the file's index. UserError where it is no such pack; without a name the pack is
    /// empty.
    explicit KernelPack(std::filesystem::path file);

    /// The cubin of a request; nothing without one, or where the bytes are damaged.
    std::optional<std::string> find(std::string_view source_key) const;

    /// Is there one?
    bool contains(std::string_view source_key) const;

    const std::string& compiler() const { return compiler_; }  ///< the NVRTC that made them: "13.0"
    std::size_t size() const { return places_.size(); }
    const std::filesystem::path& path() const { return file_; }

    /// Writes a pack of cubins by source key. UserError with the system's reason where it cannot.
    static void write(const std::filesystem::path& file, std::string_view compiler,
                      const std::map<std::string, std::string>& cubins);

  private:
    struct Place {
        std::uint64_t offset = 0;
        std::uint32_t packed_bytes = 0, bytes = 0;
    };

    std::filesystem::path file_;
    std::string compiler_;
    std::map<std::string, Place, std::less<>> places_;  ///< by the key's hash
};

/// The pack of TILEWRIGHT_KERNELS (a file; `none` for an empty pack), else the one beside this
/// library or program. One that cannot be read is reported by TILEWRIGHT_DEBUG and empty.
const KernelPack& installed_kernel_pack();

/// The name of a pack beside the library.
inline constexpr const char* kKernelPackName = "tilewright-kernels.pack";

}  // namespace tilewright::cuda
