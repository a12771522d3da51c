// The Hopper engine behind the tensors of `attention`: what it serves, and its calls.
#pragma once

#include <string>

#include "attention/problem.h"

namespace tilewright::attn::sm90 {

/// Why this engine cannot run the forward or the backward pass of a problem that lies on a GPU;
/// empty when it can.
std::string why_not_forward(const Problem& problem);
std::string why_not_backward(const Problem& problem);

/// Runs on this thread's stream into out and lse, both (B, H, ...) views, and into max_scores where
/// it is defined. UserError for what the engine cannot serve.
void run_forward(const Problem& problem, const AttentionOutput& result);

/// dq, dk, dv, written to the tensors of `gradients`, and its sinks and captured, which are set;
/// from out, dout (B, H, Lq, Dv), lse and, where defined, dlse (B, H, Lq).
void run_backward(const Problem& problem, const AttentionOutput& forward, const Tensor& dout,
                  const Tensor& dlse, AttentionGradients& gradients);

}  // namespace tilewright::attn::sm90
