// Bounded reads of files that may be damaged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <istream>
#include <span>
#include <string>
#include <vector>

#include "tilewright/tensor.h"

namespace tilewright::run {

/// UserError "[op] ..." unless it is a regular file that exists and can be opened.
std::ifstream open_file(const char* op, const std::string& path);

/// Bytes of a tensor of this type and shape. UserError, with the file's name, if an extent is
/// negative or the size exceeds 2^63 - 1, counting zero extents as one (for strides).
std::uint64_t checked_bytes(const std::string& file, DType dtype,
                            const std::vector<std::int64_t>& shape);

/// The elements of a row-major tensor as bytes.
inline std::span<std::byte> bytes_of(const Tensor& tensor) {
    return {static_cast<std::byte*>(tensor.raw()), static_cast<std::size_t>(tensor.nbytes())};
}

/// Reads bytes at given offsets of a file or, in tests, of a string; messages contain `name`.
class ByteReader {
  public:
    /// `stream` must be seekable and outlive the reader.
    ByteReader(std::istream& stream, std::string name);

    const std::string& name() const { return name_; }
    std::uint64_t size() const { return size_; }
    /// Fills `out` from `offset` on. UserError if the file is too short.
    void read(std::uint64_t offset, std::span<std::byte> out);
    /// The same as text.
    std::string read_text(std::uint64_t offset, std::uint64_t count);
    /// Little-endian integer of `count` bytes.
    std::uint64_t read_integer(std::uint64_t offset, int count);

  private:
    void check_range(std::uint64_t offset, std::uint64_t count) const;

    std::istream& stream_;
    std::string name_;
    std::uint64_t size_ = 0;
};

}  // namespace tilewright::run
