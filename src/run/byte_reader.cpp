// Bounded reads of files that may be damaged.
#include "run/byte_reader.h"

#include <filesystem>
#include <utility>

#include "support/check.h"

namespace tilewright::run {

std::ifstream open_file(const char* op, const std::string& path) {
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (!std::filesystem::exists(status)) {
        user_error(op, "expected a file but `{}` does not exist", path);
    }
    if (!std::filesystem::is_regular_file(status)) {
        user_error(op, "expected a regular file but `{}` is none", path);
    }
    std::ifstream stream(path, std::ios::binary);
    if (!stream) user_error(op, "expected a readable file but `{}` cannot be opened", path);
    return stream;
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
    check_range(offset, count);  // before allocating
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

}  // namespace tilewright::run
