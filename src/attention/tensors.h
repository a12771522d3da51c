// The tensors among attention's arguments: checks, layouts and parts.
#pragma once

#include "tilewright/attention.h"
#include "tilewright/tensor.h"

namespace tilewright::attn {

/// UserError unless the argument has this type and is on this device. Returns a BHSD view with unit
/// stride in the last dimension.
Tensor check_input(const char* argument, const Tensor& tensor, DType dtype, Layout layout,
                   Device device);
/// UserError unless the tensor, if defined, is on this device, which is the query's.
void expect_device(const char* argument, const Tensor& tensor, Device device);
void expect_shape(const char* argument, const Tensor& tensor, const Tensor::Dims& expected);
/// UserError unless the tensor has a float dtype.
void expect_floats(const char* argument, const Tensor& tensor);

/// UserError unless a caller's tensor can take a result of this BHSD shape. Returns its BHSD view.
Tensor check_output(const char* argument, const Tensor& tensor, DType dtype,
                    const Tensor::Dims& shape, Layout layout, Device device);
/// The same for contiguous tensors with one number per row.
void check_rows(const char* argument, const Tensor& tensor, DType dtype, const Tensor::Dims& shape,
                Device device);

Tensor to_bhsd(const Tensor& x, Layout layout);
/// A new tensor of BHSD shape `shape` whose memory is in `layout`, as a BHSD view.
Tensor empty_like(DType dtype, const Tensor::Dims& shape, Layout layout, Device device);

/// Parts of tensors (batch, heads, ...) and (batch, heads, length, ...); undefined ones stay
/// undefined.
Tensor batches_of(const Tensor& x, std::int64_t b, std::int64_t count);
Tensor heads_of(const Tensor& x, std::int64_t h, std::int64_t count);
Tensor rows_of(const Tensor& x, std::int64_t first, std::int64_t count);

/// The first `kv_length` rows of an array shaped like the caller's keys; the other rows are set to
/// 0.
Tensor attended_part(const Tensor& given, std::int64_t kv_length);

}  // namespace tilewright::attn
