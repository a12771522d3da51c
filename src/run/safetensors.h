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
    std::string dtype;  ///< as the file spells it; formats newer than this reader pass until read
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0;  ///< offsets from the start of the file
    std::uint64_t end = 0;
};

/// The table of contents.
struct SafetensorsIndex {
    std::map<std::string, SafetensorsEntry> tensors;  ///< by name
    std::string metadata;                             ///< JSON of the writer's; empty without any
};

/// Reads the table of contents and checks all of it: JSON, nesting, keys, extents; offsets in the
/// file, of the length that dtype and shape ask for, without overlaps or holes. UserError else.
SafetensorsIndex read_safetensors_index(ByteReader& file);

/// Reads one tensor. UserError as above, or naming the file's tensors when `name` is not there.
Tensor read_safetensors(ByteReader& file, const std::string& name);

/// A tensor under the name that it has in its file.
struct NamedTensor {
    std::string name;
    Tensor tensor;  ///< row-major
};

/// Writes the tensors in the given order. With `old`, its metadata and its tensors of other names
/// stay, byte for byte. UserError when a name repeats or is `__metadata__`, or `old` is unsound.
void write_safetensors(std::ostream& stream, const std::vector<NamedTensor>& tensors,
                       ByteReader* old = nullptr);

}  // namespace tilewright::run
