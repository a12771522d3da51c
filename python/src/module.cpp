// The extension module tilewright._core: the C++ library on tensors, without NumPy.
#include <cstdint>

#include "bindings.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/vector.h"
#include "tilewright/error.h"
#include "tilewright/run.h"
#include "tilewright/system.h"
#include "tilewright/version.h"

NB_MODULE(_core, module) {
    using namespace tilewright;
    namespace nb = nanobind;
    module.doc() = "The C++ library on tensors. Users import tilewright, not this module.";
    // The texts are C++'s; InternalError becomes a RuntimeError.
    nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
        try {
            std::rethrow_exception(pointer);
        } catch (const UserError& error) {
            PyErr_SetString(PyExc_ValueError, error.what());
        } catch (const OutOfMemory& error) {
            PyErr_SetString(PyExc_MemoryError, error.what());
        }
    });
    nb::set_leak_warnings(false);  // objects still held by an interrupted script are not leaks
    module.attr("version") = version();
    module.def("set_num_threads", &set_num_threads, nb::arg("threads"));
    module.def("num_threads", &num_threads);
    module.def("set_checked", &set_checked, nb::arg("on"));
    module.def("checked", &checked);
    module.def("devices", &devices);
    module.def("doctor", &doctor, nb::call_guard<nb::gil_scoped_release>());
    module.def(
        "cache_counts",
        [] {
            nb::dict counts;
            for (const CacheCount& count : cache_counts()) {
                counts[count.name.c_str()] = nb::make_tuple(count.entries, count.most, count.hits,
                                                            count.misses, count.evictions);
            }
            return counts;
        },
        "{name: (entries, most, hits, misses, evictions)} of the caches in memory.");
    module.def(
        "set_cuda_stream",
        // NOLINTNEXTLINE(performance-no-int-to-ptr): Python knows streams as integers
        [](std::uintptr_t stream) { set_cuda_stream(reinterpret_cast<void*>(stream)); },
        nb::arg("stream"));
    module.def("cuda_stream", [] { return reinterpret_cast<std::uintptr_t>(cuda_stream()); });
    python::bind_tensor(module);
    python::bind_artifact(module);
    python::bind_mod(module);
    python::bind_lang(module);
    python::bind_call(module);
    python::bind_cuda_kernel(module);
    python::bind_library(module);
    python::bind_mask(module);
    python::bind_attention(module);
    python::bind_norm(module);
    python::bind_program_builder(module);
    python::bind_exchange(module);
    python::bind_torch_attention(module);
    python::bind_mod_plan(module);
    python::bind_autograd(module);
    python::bind_fused(module);
    python::bind_known_calls(module);
    python::bind_operators(module);
    python::bind_torch_norm(module);
}
