// What may be written: memory that is not read-only and does not overlap what is read.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "tilewright/tensor.h"

namespace tilewright::run {

/// The bytes from the first to the last element of a tensor; none if it has no elements.
struct ByteRange {
    const std::byte *first = nullptr, *end = nullptr;
    bool meets(const ByteRange& other) const { return first < other.end && other.first < end; }
};
ByteRange byte_range(const Tensor& tensor);

/// True if an element of one may be an element of the other; undefined tensors have no elements.
bool overlap(const Tensor& a, const Tensor& b);

/// True if two indices of the tensor may share an element, as after a broadcast.
bool overlaps_itself(const Tensor& tensor);

/// UserError of `op` if the tensor, which it calls `name`, is read-only.
void check_not_read_only(std::string_view op, std::string_view name, const Tensor& tensor);

/// UserError of `op` if the tensor is read-only or several of its indices share an element.
void check_writable(std::string_view op, std::string_view name, const Tensor& tensor);

/// A tensor of the caller, with its name in messages.
struct Named {
    std::string_view name;
    Tensor tensor;
};

/// UserError of `op` unless every target can be written and shares no memory with another target or
/// a source. Undefined tensors share no memory.
void check_targets(std::string_view op, std::span<const Named> targets,
                   std::span<const Named> sources);

}  // namespace tilewright::run
