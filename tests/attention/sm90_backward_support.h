// Backward problems of the Hopper kernels in device memory, for their tests.
#pragma once

#include "attention/sm90/backward.h"
#include "cuda/runtime/stream.h"
#include "tests/attention/sm90_support.h"

namespace tilewright::attn::sm90 {

/// Inputs with made-up addresses, for tests without a GPU.
inline BackwardInputs backward_inputs_of(const Problem& p, bool deterministic = false) {
    const ForwardInputs forward = inputs_of(p);
    BackwardInputs inputs;
    inputs.dtype = p.dtype;
    inputs.query = inputs.grad_query = forward.query;
    inputs.key = inputs.grad_key = forward.key;
    inputs.value = inputs.grad_value = forward.value;
    inputs.out = inputs.grad_out = forward.out;
    inputs.lse = forward.lse;
    inputs.workspace = forward.workspace;
    inputs.scale = forward.scale;
    inputs.lower_diagonal = forward.lower_diagonal;
    inputs.upper_diagonal = forward.upper_diagonal;
    inputs.deterministic = deterministic;
    return inputs;
}

/// A backward problem in device memory, after the forward kernel has run.
struct BackwardDevice {
    Device forward_device;
    Guarded grad_out, grad_lse, grad_query, grad_key, grad_value;
    Buffer workspace;
    BackwardInputs inputs;

    BackwardDevice(const Problem& p, const Array& q, const Array& k, const Array& v,
                   const Array& dout, const Array& dlse, bool deterministic)
        : forward_device(p, q, k, v),
          grad_out(dout.data.size() * 2),
          grad_lse(static_cast<std::size_t>(p.batch * p.heads * p.q_len) * 4),
          grad_query(q.data.size() * 2),
          grad_key(k.data.size() * 2),
          grad_value(v.data.size() * 2),
          inputs(backward_inputs_of(p, deterministic)) {
        const cuda::Stream stream(0);
        forward(forward_device.inputs, stream.handle());
        stream.synchronize();
        inputs.query.address = forward_device.inputs.query.address;
        inputs.key.address = forward_device.inputs.key.address;
        inputs.value.address = forward_device.inputs.value.address;
        inputs.out.address = forward_device.inputs.out.address;
        inputs.lse = forward_device.inputs.lse;
        Device::upload(dout, grad_out, inputs.grad_out, p.dtype);
        if (!dlse.data.empty()) {
            const std::vector<float> values(dlse.data.begin(), dlse.data.end());
            grad_lse.buffer.upload(values.data(), values.size() * 4, kGuard);
            inputs.grad_lse = grad_lse.address();
        }
        inputs.grad_query.address = grad_query.address();
        inputs.grad_key.address = grad_key.address();
        inputs.grad_value.address = grad_value.address();
        const BackwardDesc desc = check_backward(inputs);
        workspace = Buffer(0, backward_workspace_bytes(desc, choose_backward(desc)));
        workspace.fill(kPoison);
        inputs.workspace = workspace.address();
    }

    std::vector<std::uint16_t> bits(Guarded& from, const DeviceTensor& tensor) const {
        std::vector<std::uint16_t> result(static_cast<std::size_t>(
            tensor.shape[0] * tensor.shape[1] * tensor.shape[2] * tensor.shape[3]));
        from.buffer.download(result.data(), result.size() * 2, kGuard);
        return result;
    }

    bool guards_intact() const {
        return forward_device.guards_intact() && grad_out.intact() && grad_lse.intact() &&
               grad_query.intact() && grad_key.intact() && grad_value.intact();
    }
};

}  // namespace tilewright::attn::sm90
