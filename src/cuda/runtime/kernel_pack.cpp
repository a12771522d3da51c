// The file of compiled kernels: an index of fixed-size records, then zlib streams.
#include "cuda/runtime/kernel_pack.h"

#include <dlfcn.h>
#include <zlib.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "support/check.h"
#include "support/debug_log.h"
#include "support/disk_cache.h"
#include "support/write_file.h"

namespace tilewright::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "tilewright kernels 1\n";
constexpr std::size_t kHashDigits = 32;
constexpr std::size_t kCompilerBytes = 16;  // of the compiler's version, padded with zeros

struct Record {
    char hash[kHashDigits];
    std::uint64_t offset;  ///< from the start of the file
    std::uint32_t packed_bytes, bytes;
};
static_assert(sizeof(Record) == 48);

template <typename Number>
void append(std::string& text, const Number& number) {
    text.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

/// Folders that may hold the pack, relative to the file of this library or program.
std::vector<fs::path> folders() {
    Dl_info info{};
    if (dladdr(reinterpret_cast<const void*>(&installed_kernel_pack), &info) == 0 ||
        info.dli_fname == nullptr) {
        return {};
    }
    std::error_code error;
    fs::path own = fs::weakly_canonical(info.dli_fname, error);
    if (error || !own.has_parent_path() || !fs::exists(own, error)) {
        own = fs::read_symlink("/proc/self/exe", error);  // an executable, known without a path
    }
    const fs::path folder = own.parent_path();
    return {folder, folder / TW_LIBRARIES_FROM_PROGRAMS, folder / "../lib"};
}

fs::path find_pack() {
    if (const char* const given = std::getenv("TILEWRIGHT_KERNELS");
        given != nullptr && *given != '\0') {
        return std::string_view(given) == "none" ? "" : given;
    }
    for (const fs::path& folder : folders()) {
        std::error_code error;
        if (fs::is_regular_file(folder / kKernelPackName, error)) return folder / kKernelPackName;
    }
    return "";
}

}  // namespace

KernelPack::KernelPack(fs::path file) : file_(std::move(file)) {
    const std::string refusal = read_index();
    if (!refusal.empty()) user_error("cuda", "{}", refusal);
}

KernelPack KernelPack::if_readable(fs::path file) {
    KernelPack pack;
    pack.file_ = std::move(file);
    const std::string refusal = pack.read_index();
    if (refusal.empty()) return pack;
    debug_log("cuda", "{}", refusal);
    return {};
}

std::string KernelPack::read_index() {
    if (file_.empty()) return {};
    const auto refused = [&](const char* why) {
        return fmt::format("expected a pack of kernels in {} but {}", file_.string(), why);
    };
    std::ifstream in(file_, std::ios::binary);
    std::string magic(kMagic.size(), '\0');
    std::uint32_t count = 0;
    if (!in) return refused("it cannot be read");
    in.read(magic.data(), static_cast<std::streamsize>(magic.size()));
    in.read(reinterpret_cast<char*>(&count), sizeof(count));
    std::string compiler(kCompilerBytes, '\0');
    in.read(compiler.data(), kCompilerBytes);
    if (!in || magic != kMagic) return refused("it is none of this version");
    compiler_ = compiler.c_str();
    std::error_code error;
    const std::uint64_t file_bytes = fs::file_size(file_, error);
    if (error) return refused("its size is unknown");
    if (count > file_bytes / sizeof(Record)) return refused("its index is longer than the file");
    std::vector<Record> records(count);
    in.read(reinterpret_cast<char*>(records.data()),
            static_cast<std::streamsize>(count * sizeof(Record)));
    if (!in) return refused("it ends in its index");
    for (const Record& record : records) {
        if (record.offset > file_bytes || record.packed_bytes > file_bytes - record.offset) {
            return refused("a kernel lies beyond its end");
        }
        places_[std::string(record.hash, kHashDigits)] = {record.offset, record.packed_bytes,
                                                          record.bytes};
    }
    return {};
}

std::optional<std::string> KernelPack::find(std::string_view source_key) const {
    if (places_.empty()) return std::nullopt;
    const auto found = places_.find(content_hash(source_key));
    if (found == places_.end()) return std::nullopt;
    const Place& place = found->second;
    std::ifstream in(file_, std::ios::binary);
    in.seekg(static_cast<std::streamoff>(place.offset));
    std::string packed(place.packed_bytes, '\0'), bytes(place.bytes, '\0');
    in.read(packed.data(), static_cast<std::streamsize>(packed.size()));
    uLongf size = place.bytes;
    const bool sound =
        in &&
        uncompress(reinterpret_cast<Bytef*>(bytes.data()), &size,
                   reinterpret_cast<const Bytef*>(packed.data()), place.packed_bytes) == Z_OK &&
        size == place.bytes;
    if (sound) return bytes;
    debug_log("cuda", "a kernel in {} is damaged", file_.string());
    return std::nullopt;
}

bool KernelPack::contains(std::string_view source_key) const {
    return !places_.empty() && places_.contains(content_hash(source_key));
}

void KernelPack::write(const fs::path& file, std::string_view compiler,
                       const std::map<std::string, std::string>& cubins) {
    std::string index(kMagic), streams;
    append(index, static_cast<std::uint32_t>(cubins.size()));
    std::string version(compiler.substr(0, kCompilerBytes - 1));
    version.resize(kCompilerBytes);
    index += version;
    const std::size_t first = index.size() + cubins.size() * sizeof(Record);
    for (const auto& [key, cubin] : cubins) {
        uLongf size = compressBound(static_cast<uLong>(cubin.size()));
        std::string packed(size, '\0');
        const int status = compress2(reinterpret_cast<Bytef*>(packed.data()), &size,
                                     reinterpret_cast<const Bytef*>(cubin.data()),
                                     static_cast<uLong>(cubin.size()), Z_BEST_COMPRESSION);
        TW_ASSERT(status == Z_OK);
        Record record{};
        std::memcpy(record.hash, content_hash(key).data(), kHashDigits);
        record.offset = first + streams.size();
        record.packed_bytes = static_cast<std::uint32_t>(size);
        record.bytes = static_cast<std::uint32_t>(cubin.size());
        append(index, record);
        streams.append(packed, 0, size);
    }
    replace_file("cuda", file.string(), [&](std::ostream& out) { out << index << streams; });
}

const KernelPack& installed_kernel_pack() {
    static const KernelPack* const kPack = []() -> const KernelPack* {
        // Lives as long as the process.
        const auto* const pack = new KernelPack(KernelPack::if_readable(find_pack()));
        if (pack->size() > 0) {
            debug_log("cuda", "{} compiled kernels in {}", pack->size(), pack->path().string());
        }
        return pack;
    }();
    return *kPack;
}

}  // namespace tilewright::cuda
