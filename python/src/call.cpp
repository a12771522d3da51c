// Bindings of calls of Python kernels, and of programs from IR text, in tilewright._core.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "nanobind/ndarray.h"
#include "nanobind/stl/map.h"
#include "nanobind/stl/optional.h"
#include "nanobind/stl/pair.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/vector.h"
#include "operand.h"
#include "tensor.h"
#include "tilewright/error.h"
#include "tilewright/program.h"
#include "tilewright/run.h"
#include "tilewright/tensor.h"
#include "torch/exchange.h"

namespace tilewright::python {
namespace {

/// A Python function that C++ may call and drop on any thread.
std::shared_ptr<PyObject> shared_function(nb::handle function) {
    return {nb::borrow(function).release().ptr(), [](PyObject* p) {
                if (!Py_IsInitialized()) return;
                const nb::gil_scoped_acquire gil;
                Py_DECREF(p);
            }};
}

std::function<void(std::span<const Ref>)> body_of(nb::handle function) {
    return [shared = shared_function(function)](std::span<const Ref> refs) {
        const nb::gil_scoped_acquire gil;
        const KernelScope scope;
        nb::list list;
        for (const Ref& ref : refs) {
            if (ref.present(kNowhere)) {
                list.append(ref);
            } else {
                list.append(nb::none());
            }
        }
        nb::handle(shared.get())(*list);
    };
}

/// A BlockSpec from dimensions given as (kind, size).
BlockSpec spec_of(const std::vector<std::pair<std::string, std::int64_t>>& dims,
                  nb::handle index_map) {
    std::vector<BlockDim> shape;
    for (const auto& [kind, size] : dims) {
        shape.push_back(kind == "squeezed"  ? squeezed
                        : kind == "element" ? element(size)
                        : kind == "whole"   ? BlockDim(all)
                                            : BlockDim(size));
    }
    if (index_map.is_none()) return BlockSpec(std::move(shape), kNowhere);
    const auto map = [shared = shared_function(index_map)](std::span<const Tile> indices) {
        const nb::gil_scoped_acquire gil;
        const KernelScope scope;
        nb::list list;
        for (const Tile& index : indices) list.append(index);
        const nb::object result = nb::handle(shared.get())(*list);
        BlockIndex block;
        if (PyTuple_Check(result.ptr()) || PyList_Check(result.ptr())) {
            for (const nb::handle item : result) block.indices.push_back(expect_operand(item));
        } else {
            block.indices.push_back(expect_operand(result));
        }
        return block;
    };
    return BlockSpec(std::move(shape), map, kNowhere);
}

using Types = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

std::vector<TensorType> types_of(const Types& types) {
    std::vector<TensorType> result;
    for (const auto& [dtype, shape] : types) result.push_back({expect_dtype(dtype), shape});
    return result;
}

/// Wraps a Python function of the inputs' types.
template <typename Result>
auto of_inputs(nb::handle function) {
    return [shared = shared_function(function)](std::span<const Tensor> inputs) {
        const nb::gil_scoped_acquire gil;
        nb::list list;
        for (const Tensor& input : inputs) list.append(input);
        return nb::cast<Result>(nb::handle(shared.get())(*list));
    };
}

Grid grid_of(nb::handle grid) {
    using Extents = std::vector<std::int64_t>;
    if (!PyCallable_Check(grid.ptr())) return Grid(nb::cast<Extents>(grid));
    return Grid(of_inputs<Extents>(grid));
}

OutTypes out_types_of(nb::handle types) {
    if (!PyCallable_Check(types.ptr())) return OutTypes(types_of(nb::cast<Types>(types)));
    return OutTypes([types = of_inputs<Types>(types)](std::span<const Tensor> inputs) {
        return types_of(types(inputs));
    });
}

void refuse_in_kernel() {
    if (in_kernel()) {
        throw UserError(
            "[call] expected to be called outside of kernels; inside of one call its function, "
            "with "
            "Refs");
    }
}

/// A call and the types of its last inputs; none for an omitted input.
struct KernelCall {
    Call call;
    std::string made_at;  ///< the line of tw.call, for error texts without one
    std::optional<std::vector<std::optional<TensorType>>> last = {};

    /// Runs `body` without the GIL.
    template <typename Body>
    auto released(Body body) const {
        refuse_in_kernel();
        const nb::gil_scoped_release released;
        try {
            return body();
        } catch (const UserError& error) {
            const std::string text = error.what();
            if (made_at.empty() || text.find(" (at ") != std::string::npos) throw;
            throw UserError(text + " (in the call made at " + made_at + ")");
        }
    }

    void remember(const std::vector<Tensor>& inputs) {
        if (!last) last.emplace();
        last->resize(inputs.size());
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            std::optional<TensorType>& type = (*last)[i];
            if (inputs[i].defined()) {
                if (!type) type.emplace();
                type->dtype = inputs[i].dtype();
                type->shape = inputs[i].shape();
            } else {
                type.reset();
            }
        }
    }
    std::vector<Tensor> run(const std::vector<Tensor>& inputs) {
        std::vector<Tensor> outputs = released([&] { return call.run(inputs); });
        remember(inputs);
        return outputs;
    }
};

KernelCall make_call(const std::string& name, int arity, std::vector<std::string> names,
                     nb::handle body, const nb::dict& options) {
    CallOptions o;
    o.grid = grid_of(options["grid"]);
    o.in = nb::cast<std::vector<BlockSpec>>(options["in_specs"]);
    o.out = nb::cast<std::vector<BlockSpec>>(options["out_specs"]);
    o.out_type = out_types_of(options["out_shape"]);
    o.scratch = types_of(nb::cast<Types>(options["scratch"]));
    for (const auto& [input, output] :
         nb::cast<std::vector<std::pair<int, int>>>(options["aliases"])) {
        o.aliases.push_back({input, output});
    }
    o.sequential = nb::cast<std::vector<int>>(options["sequential"]);
    o.dynamic = nb::cast<std::map<int, std::vector<int>>>(options["dynamic"]);
    o.num_warps = nb::cast<int>(options["num_warps"]);
    o.num_stages = nb::cast<int>(options["num_stages"]);
    o.tile_rows = nb::cast<std::int64_t>(options["tile_rows"]);
    o.tile_lanes = nb::cast<std::int64_t>(options["tile_lanes"]);
    o.debug = nb::cast<bool>(options["debug"]);
    o.interpret = nb::cast<bool>(options["interpret"]);
    o.profile = nb::cast<bool>(options["profile"]);
    return {Call(Kernel(name, arity, std::move(names), body_of(body)), std::move(o)),
            nb::cast<std::string>(options["made_at"])};
}

using Values = std::map<std::string, std::int64_t>;

/// A Config with these values, which has no constructor for a number of them that is not static.
template <std::size_t count = 1>
Config config_of(const Values& values) {
    constexpr std::size_t kMost = 8;
    if constexpr (count > kMost) {
        throw UserError("[autotune] expected configs of 1 to 8 names but got one of " +
                        std::to_string(values.size()));
    } else {
        if (values.size() != count) return config_of<count + 1>(values);
        return [&]<std::size_t... i>(std::index_sequence<i...>) {
            return Config{*std::next(values.begin(), i)...};
        }
        (std::make_index_sequence<count>());
    }
}

std::vector<Config> configs_of(const std::vector<Values>& all) {
    std::vector<Config> configs;
    for (const Values& values : all) configs.push_back(config_of(values));
    return configs;
}

/// An autotuner over calls that a Python function makes.
class PythonTuned {
  public:
    /// `make` takes the index of a config and returns its KernelCall.
    PythonTuned(const std::vector<Values>& configs, std::string key, nb::handle make)
        : configs_(configs),
          tuned_(configs_of(configs), std::move(key),
                 [this, make = shared_function(make)](const Config& config) {
                     return call_for(index_of(config), make.get());
                 }) {}
    PythonTuned(const PythonTuned&) = delete;
    PythonTuned& operator=(const PythonTuned&) = delete;

    std::size_t best(const std::vector<Tensor>& inputs) const {
        refuse_in_kernel();
        const nb::gil_scoped_release released;
        const Inputs scope(inputs);
        return index_of(tuned_.best_config(inputs));
    }
    int num_measured() const { return tuned_.num_measured(); }

  private:
    /// The inputs that this thread chooses a call for, while it lives: a function that makes a call
    /// may use another autotuner.
    class Inputs {
      public:
        explicit Inputs(const std::vector<Tensor>& inputs)
            : outer_(std::exchange(current(), &inputs)) {}
        ~Inputs() { current() = outer_; }
        Inputs(const Inputs&) = delete;
        Inputs& operator=(const Inputs&) = delete;

        static const std::vector<Tensor>*& current() {
            thread_local const std::vector<Tensor>* inputs = nullptr;
            return inputs;
        }

      private:
        const std::vector<Tensor>* outer_;
    };
    std::size_t index_of(const Config& config) const {
        const auto found = std::find(configs_.begin(), configs_.end(), config.values());
        return static_cast<std::size_t>(found - configs_.begin());
    }
    /// Also traced, so that a ValueError of Python code leaves the config out as a UserError does.
    static Call call_for(std::size_t index, PyObject* make) {
        const nb::gil_scoped_acquire gil;
        try {
            const Call call = nb::cast<KernelCall&>(nb::handle(make)(index)).call;
            const nb::gil_scoped_release released;
            call.ir(*Inputs::current());
            return call;
        } catch (const nb::python_error& error) {
            if (!error.matches(PyExc_ValueError)) throw;
            throw UserError(nb::str(error.value()).c_str());
        }
    }

    std::vector<Values> configs_;
    Tuned tuned_;
};

bool is_torch(nb::handle object) {
    const torch::Torch& torch = torch::torch();
    return torch.tensor != nullptr &&
           (Py_TYPE(object.ptr()) == torch.tensor || Py_TYPE(object.ptr()) == torch.parameter);
}

/// Kernels have no derivative; a requested one must not be dropped silently.
void refuse_gradients(const KernelCall& kernel, const nb::args& arrays) {
    for (std::size_t i = 0; i < arrays.size(); ++i) {
        if (!is_torch(arrays[i]) || !nb::cast<bool>(arrays[i].attr("requires_grad"))) continue;
        static PyObject* const kEnabled =
            nb::module_::import_("torch").attr("is_grad_enabled").ptr();
        if (!nb::cast<bool>(nb::handle(kEnabled)())) return;
        const auto& names = kernel.call.kernel().parameter_names();
        throw UserError("[call] expected `" +
                        (i < names.size() ? names[i] : "argument " + std::to_string(i)) +
                        "` without gradients, since a kernel has no derivative, but it requires "
                        "them: pass x.detach(), or call inside of a torch.autograd.Function");
    }
}

/// Runs on torch's stream if the arrays are PyTorch tensors or None; else NotImplemented.
nb::object run_on_torch(KernelCall& kernel, const nb::args& arrays) {
    if (!kernel.call.options().aliases.empty()) return nb::borrow(Py_NotImplemented);
    refuse_gradients(kernel, arrays);
    torch::Arguments arguments;
    for (const nb::handle array : arrays) {
        if (array.is_none()) continue;
        if (!arguments.add(array)) return nb::borrow(Py_NotImplemented);
    }
    std::vector<Tensor> inputs;
    inputs.reserve(arrays.size());
    std::size_t next = 0;
    for (const nb::handle array : arrays) {
        inputs.push_back(array.is_none() ? Tensor() : torch::tensor_of(arguments.views()[next++]));
    }
    const torch::TorchScope scope(arguments.views().front().device);
    nb::list results;
    for (const Tensor& output : kernel.run(inputs)) {
        void* object = nullptr;
        if (torch::torch().api->managed_tensor_to_py_object_no_sync(output.to_dlpack_versioned(),
                                                                    &object) != 0) {
            nb::raise_python_error();
        }
        results.append(nb::steal(static_cast<PyObject*>(object)));
    }
    return results;
}

/// Runs on NumPy arrays only, or PyTorch tensors only; NotImplemented for anything that Python has
/// to check.
nb::object run_directly(KernelCall& kernel, const nb::args& arrays) {
    for (const nb::handle array : arrays) {
        if (is_torch(array)) return run_on_torch(kernel, arrays);
    }
    std::vector<Tensor> inputs;
    inputs.reserve(arrays.size());
    std::vector<bool> writable(arrays.size(), true);
    for (std::size_t i = 0; i < arrays.size(); ++i) {
        const nb::handle array = arrays[i];
        if (array.is_none()) {
            inputs.emplace_back();
            continue;
        }
        bool is_writable = true;
        std::optional<Tensor> tensor = tensor_of_numpy(array, is_writable);
        if (!tensor) return nb::borrow(Py_NotImplemented);
        writable[i] = is_writable;
        inputs.push_back(std::move(*tensor));
    }
    for (const Alias& alias : kernel.call.options().aliases) {
        const auto i = static_cast<std::size_t>(alias.input);
        if (alias.input >= 0 && i < writable.size() && !writable[i])
            return nb::borrow(Py_NotImplemented);  // Python names it
    }
    nb::list results;
    for (const Tensor& output : kernel.run(inputs)) {
        nb::object array = numpy_of_tensor(output);
        if (!array.is_valid())  // a dtype of ml_dtypes, or memory of a GPU
            array = nb::module_::import_("tilewright._arrays").attr("to_array")(output);
        results.append(array);
    }
    return results;
}

std::string form_text(const std::string& ir, const std::string& form, const std::string& arch) {
    const std::map<std::string, ProgramForm> forms{{"bytecode", ProgramForm::bytecode},
                                                   {"cuda", ProgramForm::cuda},
                                                   {"ptx", ProgramForm::ptx},
                                                   {"sass", ProgramForm::sass}};
    return program_text(ir, forms.at(form), arch);
}

}  // namespace

void bind_call(nb::module_& module) {
    nb::class_<BlockSpec>(module, "BlockSpec")
        .def(nb::init<>())
        .def_static("make", &spec_of, nb::arg("dims"), nb::arg("index_map").none())
        .def_static("absent", [] { return BlockSpec::absent(kNowhere); });
    nb::class_<KernelCall>(module, "Call", "A kernel bound to its grid and block specs.")
        .def_static("make", &make_call)
        .def("__call__", &run_directly)
        .def("run", &KernelCall::run, nb::arg("inputs"))
        .def(
            "into",
            [](KernelCall& kernel, const std::vector<Tensor>& outputs,
               const std::vector<Tensor>& inputs) {
                kernel.released([&] { kernel.call.into(outputs, inputs); });
                kernel.remember(inputs);
            },
            nb::arg("outputs"), nb::arg("inputs"))
        .def(
            "ir",
            [](const KernelCall& kernel, const std::vector<Tensor>& inputs, bool lines) {
                return kernel.released([&] { return kernel.call.ir(inputs, lines); });
            },
            nb::arg("inputs"), nb::arg("lines") = false)
        .def("profile", [](const KernelCall& kernel) { return kernel.call.profile(); })
        .def("last_inputs",
             [](const KernelCall& kernel) -> nb::object {
                 if (!kernel.last) return nb::none();
                 nb::list list;
                 for (const std::optional<TensorType>& type : *kernel.last) {
                     if (type) {
                         list.append(nb::make_tuple(std::string(name(type->dtype)), type->shape));
                     } else {
                         list.append(nb::none());
                     }
                 }
                 return list;
             })
        .def("num_traces", [](const KernelCall& kernel) { return kernel.call.num_traces(); })
        .def("vmap",
             [](const KernelCall& kernel, std::vector<int> in_axes, std::vector<int> out_axes) {
                 return KernelCall{vmap(kernel.call, std::move(in_axes), std::move(out_axes)),
                                   kernel.made_at};
             });
    nb::class_<PythonTuned>(module, "Tuned", "Calls chosen by measurement.")
        .def(nb::init<const std::vector<Values>&, std::string, nb::handle>(), nb::arg("configs"),
             nb::arg("key"), nb::arg("make"))
        .def("best", &PythonTuned::best, nb::arg("inputs"))
        .def("num_measured", &PythonTuned::num_measured, nb::call_guard<nb::gil_scoped_release>());
    nb::class_<Program>(module, "Program")
        .def(
            "__init__",
            [](Program* self, const std::string& ir, const std::string& device, bool checked,
               bool profile) {
                const nb::gil_scoped_release released;
                new (self) Program(
                    ir, {.device = expect_device(device), .checked = checked, .profile = profile});
            },
            nb::arg("ir"), nb::arg("device") = "cpu", nb::arg("checked") = false,
            nb::arg("profile") = false)
        .def("profile", &Program::profile)
        .def_prop_ro("name", &Program::name)
        .def_prop_ro("parameters",
                     [](const Program& program) {
                         nb::list list;
                         for (const Program::Parameter& p : program.parameters()) {
                             list.append(nb::make_tuple(p.name, std::string(name(p.type.dtype)),
                                                        nb::tuple(nb::cast(p.type.shape)),
                                                        p.written, p.alias_group));
                         }
                         return list;
                     })
        .def(
            "run",
            [](const Program& program, const std::vector<Tensor>& arrays) { program.run(arrays); },
            nb::arg("arrays"), nb::call_guard<nb::gil_scoped_release>());
    module.def("uses_torch", [] { return torch::torch().tensor != nullptr; });
    module.def("program_cost", [](const std::string& ir) {
        const ProgramCost cost = program_cost(ir);
        return nb::make_tuple(cost.flops, cost.transcendentals, cost.bytes_read, cost.bytes_written,
                              cost.array_bytes, cost.exact);
    });
    nb::class_<Profile>(module, "Profile")
        .def_ro("kernel", &Profile::kernel)
        .def_ro("runs", &Profile::runs)
        .def_ro("programs", &Profile::programs)
        .def_ro("wall_ms", &Profile::wall_ms)
        .def_ro("thread_ms", &Profile::thread_ms)
        .def_ro("threads", &Profile::threads)
        .def_ro("scalar_ms", &Profile::scalar_ms)
        .def_prop_ro("lines",
                     [](const Profile& profile) {
                         nb::list list;
                         for (const ProfileLine& line : profile.lines) {
                             list.append(nb::make_tuple(line.instruction, line.text, line.source,
                                                        line.executions, line.ms, line.bytes,
                                                        line.flops, line.roof));
                         }
                         return list;
                     })
        .def("table", &Profile::table, nb::arg("most"))
        .def("chrome_trace", &Profile::chrome_trace);
    module.def(
        "explain_text",
        [](const std::string& ir, const std::string& arch) { return explain_text(ir, arch); },
        nb::arg("ir"), nb::arg("arch"), nb::call_guard<nb::gil_scoped_release>());
    module.def(
        "program_page",
        [](const std::string& ir, const std::string& arch) { return program_page(ir, arch); },
        nb::arg("ir"), nb::arg("arch"), nb::call_guard<nb::gil_scoped_release>());
    module.def("program_text", &form_text, nb::arg("ir"), nb::arg("form"), nb::arg("arch"),
               nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace tilewright::python
