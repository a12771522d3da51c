// Kernels that were compiled with the library, in a file beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace tilewright::cuda {

/// A file of compressed cubins by the keys of their requests (`source_key`), written by `tilewright
/// precompile`. It is trusted as much as the library beside it.
class KernelPack {
  public:
    /// Reads the file's index; UserError where it is not a pack. Without a file name the pack is
    /// empty.
    explicit KernelPack(std::filesystem::path file);

    /// The same; empty where the file is not a pack, and TILEWRIGHT_DEBUG reports why.
    static KernelPack if_readable(std::filesystem::path file);

    /// The cubin of a request; nothing where the pack has none or its bytes are damaged.
    std::optional<std::string> find(std::string_view source_key) const;

    /// True where the pack has a cubin for the request; its bytes are not checked.
    bool contains(std::string_view source_key) const;

    const std::string& compiler() const { return compiler_; }  ///< NVRTC's version: "13.0"
    std::size_t size() const { return places_.size(); }
    const std::filesystem::path& path() const { return file_; }

    /// Writes a pack of cubins by source key. UserError with the system's reason on failure.
    static void write(const std::filesystem::path& file, std::string_view compiler,
                      const std::map<std::string, std::string>& cubins);

  private:
    struct Place {
        std::uint64_t offset = 0;
        std::uint32_t packed_bytes = 0, bytes = 0;
    };

    KernelPack() = default;
    /// Reads the index of `file_`; returns why it is not a pack, else nothing.
    std::string read_index();

    std::filesystem::path file_;
    std::string compiler_;
    std::map<std::string, Place, std::less<>> places_;  ///< by the hash of the key
};

/// The pack that TILEWRIGHT_KERNELS names (`none`: an empty one), else the one beside this library
/// or program. A pack that cannot be read counts as empty, and TILEWRIGHT_DEBUG reports it.
const KernelPack& installed_kernel_pack();

/// The file name of a pack beside the library.
inline constexpr const char* kKernelPackName = "tilewright-kernels.pack";

}  // namespace tilewright::cuda
