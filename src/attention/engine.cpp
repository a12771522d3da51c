// The choice of the engine.
#include "attention/engine.h"

#include "attention/sm90/serve.h"
#include "support/check.h"
#include "support/debug_log.h"

namespace tilewright::attn {

bool uses_sm90(const Problem& p, Pass pass) {
    const char* const direction = pass == Pass::forward ? "forward" : "backward";
    if (!p.engine.empty() && p.engine != "tiles" && p.engine != "sm90") {
        user_error("attention", "expected engine `tiles` or `sm90` but got `{}`", p.engine);
    }
    if (p.engine == "tiles") {
        debug_log("attention", "{}: tile programs, as asked for", direction);
        return false;
    }
    const std::string reason = !p.on_gpu()             ? "the tensors are in CPU memory"
                               : pass == Pass::forward ? sm90::why_not_forward(p)
                                                       : sm90::why_not_backward(p);
    if (reason.empty()) return true;
    if (p.engine == "sm90") {
        user_error("attention", "expected a {} pass that engine `sm90` can run but {}", direction,
                   reason);
    }
    debug_log("attention", "{}{}: tile programs, since {}", p.on_gpu() ? "slow path: " : "",
              direction, reason);
    return false;
}

}  // namespace tilewright::attn
