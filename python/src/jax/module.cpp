// The extension module tilewright.jax._ffi: XLA FFI handlers, without linking jaxlib.
#include "jax/ffi.h"

NB_MODULE(_ffi, module) {
    using namespace tilewright::jax;
    module.doc() = "XLA FFI handlers. Users import tilewright.jax, not this module.";
    module.def("targets", [] {
        nb::dict targets;
        add_attention_targets(targets);
        add_norm_targets(targets);
        return targets;
    });
}
