// The .safetensors format: a JSON table of contents, then the tensors' bytes.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "run/byte_reader.h"

namespace tilewright::run {

/// One row of the table of contents.
struct SafetensorsEntry {
    std::string dtype;  ///< as in the file; unknown dtypes are an error only when they are read
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0;  ///< offsets from the start of the file
    std::uint64_t end = 0;
};

/// The table of contents.
struct SafetensorsIndex {
    std::map<std::string, SafetensorsEntry> tensors;  ///< by name
    std::string metadata;                             ///< the writer's JSON; empty if there is none
};

/// Reads the table of contents and checks it: JSON, nesting, keys and extents; offsets within the
/// file, as long as dtype and shape require, without overlaps or holes. UserError otherwise.
SafetensorsIndex read_safetensors_index(ByteReader& file);

/// Reads one tensor. UserError as above; for an unknown `name` it lists the file's tensors.
Tensor read_safetensors(ByteReader& file, const std::string& name);

/// A tensor with its name in the file.
struct NamedTensor {
    std::string name;
    Tensor tensor;  ///< row-major
};

/// Writes the tensors in the given order. With `old`, its metadata and its tensors with other names
/// are kept, byte for byte. UserError if a name repeats or is `__metadata__`, or `old` is bad.
void write_safetensors(std::ostream& stream, const std::vector<NamedTensor>& tensors,
                       ByteReader* old = nullptr);

}  // namespace tilewright::run
