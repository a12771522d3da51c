// What may be written: memory that is not lent for reading, apart from what is read.
#pragma once

#include <span>
#include <string_view>

#include "tilewright/tensor.h"

namespace tilewright::run {

/// True when an element of one may be an element of the other; undefined tensors have none.
bool overlap(const Tensor& a, const Tensor& b);

/// True when two indices of the tensor may be one element, as of a broadcast.
bool overlaps_itself(const Tensor& tensor);

/// UserError of `op` where the tensor, which it calls `name`, is read-only.
void check_not_read_only(std::string_view op, std::string_view name, const Tensor& tensor);

/// UserError of `op` where the tensor is read-only or has one element for several indices.
void check_writable(std::string_view op, std::string_view name, const Tensor& tensor);

/// A tensor of the caller, as messages call it.
struct Named {
    std::string_view name;
    Tensor tensor;
};

/// UserError of `op` unless each target can be written and shares no memory with another target or
/// a source. Undefined tensors share none.
void check_targets(std::string_view op, std::span<const Named> targets,
                   std::span<const Named> sources);

}  // namespace tilewright::run
