// Runs the preparation steps in order, before an engine is chosen.
#include "attention/prepare.h"

namespace tilewright::attn {

AttentionCall prepare(const Tensor& query, const Tensor& key, const Tensor& value,
                      const AttentionOptions& options) {
    AttentionCall call = check_arguments(query, key, value, options);
    check_captures(options, call.spec);
    const bool evaluates_mask = build_mask(options, call);
    trace_mods(options, evaluates_mask, call);
    place_captures(options, call);
    return call;
}

}  // namespace tilewright::attn
