// Attributes of users' CUDA kernels: checks values, makes bytes or template arguments of them.
#pragma once

#include <string>

#include "run/cuda_plan.h"
#include "tilewright/cuda_kernel.h"

namespace tilewright::run {

/// UserError of `op` for a type that no kernel can take.
void check_attribute_type(const std::string& op, const KernelAttribute& attribute);

/// The parameter that passes a value; UserError of `op` if the value is not of the type.
PlannedAttribute planned_attribute(const std::string& op, const KernelAttribute& attribute,
                                   const AttributeValue& value);

/// The dtype that a value of a dtype attribute names.
DType dtype_value(const std::string& op, const KernelAttribute& attribute,
                  const AttributeValue& value);

/// A value as a template argument in CUDA C++; UserError if it cannot be one.
std::string template_number(const std::string& op, const KernelAttribute& attribute,
                            const AttributeValue& value);

/// For messages: "3", "'relu'".
std::string to_string(const AttributeValue& value);

}  // namespace tilewright::run
