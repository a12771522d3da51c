// Tensors in files: which format a file has, and reading and writing by specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tilewright/mod.h"
#include "tilewright/tensor.h"

namespace tilewright::cli {

/// Reads the tensor that `spec` names: `FILE.npy`, `FILE.safetensors` or `FILE.safetensors:NAME`,
/// where NAME defaults to `default_name`. The result is row-major. UserError when there is no such
/// file or tensor, or when the file is not what it claims to be.
Tensor load_tensor(const std::string& spec, const std::string& default_name);

/// One tensor on its way to a file; `spec` and `default_name` as in load_tensor.
struct OutputTensor {
    std::string spec;
    std::string default_name;
    Tensor tensor;  ///< of any strides, on the CPU
};

/// Writes tensors, those that share a .safetensors file into one. Every file appears whole under
/// its name or not at all. UserError when a file cannot be written, when two tensors claim one
/// place, or when the format cannot hold the dtype.
void save_tensors(const std::vector<OutputTensor>& outputs);

/// The arrays of options --bind NAME=FILE. UserError "[op] ..." for other forms and for a name
/// given twice.
Bindings load_bindings(const char* op, const std::vector<std::string>& texts);
/// UserError "[op] ..." for an array that none of the mods, where defined, reads.
void expect_bindings_read(const char* op, const Bindings& arrays, const std::vector<Mod>& mods);

/// A specification taken apart; `name` is empty for .npy.
struct TensorSpec {
    enum class Format : std::uint8_t { npy, safetensors };
    Format format = Format::npy;
    std::string path;
    std::string name;
};
TensorSpec parse_tensor_spec(const std::string& spec, const std::string& default_name);

/// Bytes of a tensor of this type and shape. UserError, with the file's name, when an extent is
/// negative or the size passes 2^63 - 1 even with zero extents counted as one (strides of such a
/// tensor would overflow).
std::uint64_t checked_bytes(const std::string& file, DType dtype,
                            const std::vector<std::int64_t>& shape);

/// The elements of a row-major tensor as bytes.
inline std::span<std::byte> bytes_of(const Tensor& tensor) {
    return {static_cast<std::byte*>(tensor.raw()), static_cast<std::size_t>(tensor.nbytes())};
}

/// Bytes at known offsets of a file or, in tests, of a string; `name` goes into messages.
class ByteReader {
  public:
    /// `stream` must be seekable and outlive the reader.
    ByteReader(std::istream& stream, std::string name);

    const std::string& name() const { return name_; }
    std::uint64_t size() const { return size_; }
    /// Fills `out` from `offset` on. UserError when the file ends before.
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

}  // namespace tilewright::cli
