// Which kernels run a problem: the Hopper engine or tile programs.
#pragma once

#include "attention/problem.h"

namespace tilewright::attn {

enum class Pass : std::uint8_t { forward, backward };

/// True when the Hopper engine (attention/sm90) runs this pass, false when tile programs do: what
/// the caller asked for, else the engine wherever it can serve. UserError when it was asked for and
/// cannot serve, or for an engine that does not exist. The debug log says why.
bool uses_sm90(const Problem& problem, Pass pass);

}  // namespace tilewright::attn
