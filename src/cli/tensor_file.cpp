// Tensors in files: specifications, whole-file writes and bounded reads.
#include "cli/tensor_file.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "cli/npy.h"
#include "cli/safetensors.h"
#include "support/check.h"

namespace tilewright::cli {
namespace {

constexpr std::string_view kNpy = ".npy";
constexpr std::string_view kSafetensors = ".safetensors";

std::ifstream open_input(const std::string& path) {
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (!std::filesystem::exists(status)) {
        user_error("load", "expected a file but `{}` does not exist", path);
    }
    if (!std::filesystem::is_regular_file(status)) {
        user_error("load", "expected a regular file but `{}` is none", path);
    }
    std::ifstream stream(path, std::ios::binary);
    if (!stream) user_error("load", "expected a readable file but `{}` cannot be opened", path);
    return stream;
}

// A reader sees the old file or the new one: the bytes go to a temporary name first.
void write_whole(const std::string& path, const std::function<void(std::ostream&)>& write) {
    const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
    try {
        std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
        if (!stream) user_error("save", "expected a writable path but `{}` is none", path);
        write(stream);
        stream.close();
        if (!stream) user_error("save", "could not write all of `{}` (disk full?)", path);
        std::error_code error;
        std::filesystem::rename(temporary, path, error);
        if (error) user_error("save", "could not write `{}`: {}", path, error.message());
    } catch (...) {
        std::error_code ignored;
        std::filesystem::remove(temporary, ignored);
        throw;
    }
}

}  // namespace

TensorSpec parse_tensor_spec(const std::string& spec, const std::string& default_name) {
    if (spec.ends_with(kNpy)) return {TensorSpec::Format::npy, spec, ""};
    if (spec.ends_with(kSafetensors)) {
        return {TensorSpec::Format::safetensors, spec, default_name};
    }
    // The last such colon: folders may contain anything, names of tensors rarely `.safetensors:`.
    const std::string separator = std::string(kSafetensors) + ":";
    const std::size_t at = spec.rfind(separator);
    if (at == std::string::npos || at + separator.size() == spec.size()) {
        user_error("file",
                   "expected FILE.npy, FILE.safetensors or FILE.safetensors:NAME but got `{}`",
                   spec);
    }
    return {TensorSpec::Format::safetensors, spec.substr(0, at + kSafetensors.size()),
            spec.substr(at + separator.size())};
}

Tensor load_tensor(const std::string& spec, const std::string& default_name) {
    const TensorSpec from = parse_tensor_spec(spec, default_name);
    std::ifstream stream = open_input(from.path);
    ByteReader reader(stream, from.path);
    if (from.format == TensorSpec::Format::npy) return read_npy(reader);
    return read_safetensors(reader, from.name);
}

void save_tensors(const std::vector<OutputTensor>& outputs) {
    struct File {
        std::string path;
        TensorSpec::Format format;
        std::vector<NamedTensor> members;
    };
    std::map<std::string, File> files;  // by path: `./x.npy` is `x.npy`
    for (const OutputTensor& output : outputs) {
        const TensorSpec to = parse_tensor_spec(output.spec, output.default_name);
        const std::string place = std::filesystem::absolute(to.path).lexically_normal().string();
        File& file = files.try_emplace(place, File{to.path, to.format, {}}).first->second;
        for (const NamedTensor& member : file.members) {
            if (member.name == to.name) {
                user_error("save", "expected a place of its own for each tensor but two go to `{}`",
                           output.spec);
            }
        }
        if (to.format == TensorSpec::Format::npy) check_npy_dtype(to.path, output.tensor.dtype());
        file.members.push_back({to.name, output.tensor.contiguous()});
    }
    for (const auto& each : files) {
        const File& file = each.second;
        write_whole(file.path, [&](std::ostream& stream) {
            if (file.format == TensorSpec::Format::npy) {
                write_npy(stream, file.path, file.members.front().tensor);
            } else {
                write_safetensors(stream, file.members);
            }
        });
    }
}

std::uint64_t checked_bytes(const std::string& file, DType dtype,
                            const std::vector<std::int64_t>& shape) {
    std::int64_t bytes = size_of(dtype);
    bool empty = false;
    for (std::int64_t extent : shape) {
        if (extent < 0) user_error("load", "{}: expected extents >= 0 but got {}", file, extent);
        empty = empty || extent == 0;
        if (extent > 0 && __builtin_mul_overflow(bytes, extent, &bytes)) {
            user_error("load", "{}: expected a size below 2^63 bytes but the shape is [{}]", file,
                       fmt::join(shape, ", "));
        }
    }
    return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

ByteReader::ByteReader(std::istream& stream, std::string name)
    : stream_(stream), name_(std::move(name)) {
    stream_.seekg(0, std::ios::end);
    const std::streamoff end = stream_.tellg();
    if (!stream_ || end < 0) user_error("load", "{}: cannot tell the file's size", name_);
    size_ = static_cast<std::uint64_t>(end);
}

void ByteReader::check_range(std::uint64_t offset, std::uint64_t count) const {
    if (offset > size_ || count > size_ - offset) {
        user_error("load", "{}: expected {} bytes at offset {} but the file has {}", name_, count,
                   offset, size_);
    }
}

void ByteReader::read(std::uint64_t offset, std::span<std::byte> out) {
    check_range(offset, out.size());
    stream_.seekg(static_cast<std::streamoff>(offset));
    stream_.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
    if (!stream_) {
        user_error("load", "{}: could not read {} bytes at offset {}", name_, out.size(), offset);
    }
}

std::string ByteReader::read_text(std::uint64_t offset, std::uint64_t count) {
    check_range(offset, count);  // before the allocation
    std::string text(count, '\0');
    read(offset, std::as_writable_bytes(std::span(text)));
    return text;
}

std::uint64_t ByteReader::read_integer(std::uint64_t offset, int count) {
    std::byte bytes[8];
    read(offset, std::span(bytes, static_cast<std::size_t>(count)));
    std::uint64_t value = 0;
    for (int i = count - 1; i >= 0; --i)
        value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
    return value;
}

Bindings load_bindings(const char* op, const std::vector<std::string>& texts) {
    Bindings arrays;
    for (const std::string& text : texts) {
        const std::size_t equals = text.find('=');
        if (equals == 0 || equals == std::string::npos)
            user_error(op, "expected --bind name=FILE but got {}", text);
        const std::string name = text.substr(0, equals);
        if (!arrays.emplace(name, load_tensor(text.substr(equals + 1), name)).second)
            user_error(op, "expected each name of --bind once but got {} twice", name);
    }
    return arrays;
}

void expect_bindings_read(const char* op, const Bindings& arrays, const std::vector<Mod>& mods) {
    const auto reads = [](const Mod& mod, const std::string& name) {
        if (!mod.defined()) return false;
        const std::vector<Capture> captures = mod.captures();
        return std::any_of(captures.begin(), captures.end(),
                           [&](const Capture& capture) { return capture.name() == name; });
    };
    for (const auto& [name, tensor] : arrays) {
        if (std::none_of(mods.begin(), mods.end(),
                         [&](const Mod& mod) { return reads(mod, name); }))
            user_error(op, "expected a text that reads the array of --bind {} but none does", name);
    }
}

}  // namespace tilewright::cli
