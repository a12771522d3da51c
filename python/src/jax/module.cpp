// The extension module tilewright.jax._ffi: XLA FFI handlers, without linking jaxlib.
#include "jax/ffi.h"

NB_MODULE(_ffi, module) {
    using namespace tilewright::jax;
    module.doc() = "XLA FFI handlers. Users import tilewright.jax, not this module.";
    module.attr("jaxlib_version") = TW_JAXLIB_VERSION;  // whose headers this was built with
    module.attr("api_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
    module.def("targets", [] {
        nb::list targets;
        add_attention_targets(targets);
        add_cuda_kernel_targets(targets);
        add_norm_targets(targets);
        add_program_targets(targets);
        return targets;
    });
    // The texts are C++'s; InternalError becomes a RuntimeError.
    nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
        try {
            std::rethrow_exception(pointer);
        } catch (const tilewright::UserError& error) {
            PyErr_SetString(PyExc_ValueError, error.what());
        } catch (const tilewright::OutOfMemory& error) {
            PyErr_SetString(PyExc_MemoryError, error.what());
        }
    });
    bind_program(module);
}
