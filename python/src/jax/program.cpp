// Tile programs given as IR text, as custom calls.
#include "tilewright/program.h"

#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "jax/ffi.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/string_view.h"
#include "nanobind/stl/vector.h"
#include "support/memo.h"

namespace tilewright::jax {
namespace {

/// Compiled programs by text and options, the most recently used ones. They are compiled when a
/// function is lowered, or at the first run of an executable from the persistent cache.
Program compiled(std::string_view ir, const ProgramOptions& options) {
    using Key = std::tuple<Device::Kind, int, bool, bool, std::vector<bool>, std::string>;
    static auto* const kPrograms = new Memo<Key, Program>("programs of JAX", 1024);
    return kPrograms->get({options.device.kind, options.device.index, options.checked,
                           options.profile, options.undefined, std::string(ir)},
                          [&] { return Program(ir, options); });
}

/// Which arrays the program defines: results that share no memory with an operand.
std::vector<bool> undefined_arrays(std::size_t operands, std::string_view aliased) {
    std::vector<bool> undefined(operands, false);
    for (const char c : aliased) undefined.push_back(c != '1');
    return undefined;
}

/// The program's Refs are the operands, then the results. Attributes: `ir`, its text; `checked`;
/// `profile`; `aliased`, a 0 or 1 for each result.
class ProgramSite {
  public:
    explicit ProgramSite(const Attributes& given)
        : ir_(given.text("ir")),
          aliased_(given.text("aliased")),
          checked_(given.get<bool>("checked")),
          profile_(given.get<bool>("profile")) {}

    bool repeats() const { return !checked_; }

    void run(const CustomCall& call) const {
        std::vector<Tensor> arrays = call.operands;
        arrays.insert(arrays.end(), call.results.begin(), call.results.end());
        if (!arrays.empty()) program_on(call.device, call.operands.size()).run(arrays);
    }

  private:
    Program program_on(Device device, std::size_t operands) const {
        const std::scoped_lock lock(mutex_);
        for (const auto& [where, program] : programs_) {
            if (where == device) return program;
        }
        programs_.emplace_back(device,
                               compiled(ir_, {.device = device,
                                              .checked = checked_,
                                              .profile = profile_,
                                              .undefined = undefined_arrays(operands, aliased_)}));
        return programs_.back().second;
    }

    std::string ir_, aliased_;
    bool checked_, profile_;
    mutable std::mutex mutex_;
    mutable std::vector<std::pair<Device, Program>> programs_;
};

}  // namespace

void add_program_targets(nb::list& targets) {
    add_target<ProgramSite, CommandBuffers::yes>(targets, "tilewright_program");
}

void bind_program(nb::module_& module) {
    module.def(
        "compile_program",
        [](const std::string& ir, bool checked, bool profile, int operands,
           const std::string& aliased) {
            compiled(ir,
                     {.checked = checked,
                      .profile = profile,
                      .undefined = undefined_arrays(static_cast<std::size_t>(operands), aliased)});
        },
        nb::arg("ir"), nb::arg("checked"), nb::arg("profile"), nb::arg("operands"),
        nb::arg("aliased"), nb::call_guard<nb::gil_scoped_release>(),
        "Compiles a program for the CPU and keeps it for the call; ValueError when it cannot be.");
    module.def(
        "program_profile",
        [](const std::string& ir, int operands, const std::string& aliased) -> nb::object {
            // The type belongs to tilewright._core, which this module's stubs do not know.
            const auto inputs = static_cast<std::size_t>(operands);
            const ProgramOptions options{.profile = true,
                                         .undefined = undefined_arrays(inputs, aliased)};
            return nb::cast(compiled(ir, options).profile());
        },
        nb::arg("ir"), nb::arg("operands"), nb::arg("aliased"));
    module.def("batched_ir", &batched_ir, nb::arg("ir"), nb::arg("mapped"), nb::arg("size"));
    module.def(
        "program_parameters",
        [](const std::string& ir) {
            nb::list result;
            const Program program(ir);
            for (const auto& parameter : program.parameters()) {
                nb::list shape;
                for (const std::int64_t extent : parameter.type.shape) shape.append(extent);
                result.append(
                    nb::make_tuple(parameter.name, std::string(name(parameter.type.dtype)),
                                   nb::tuple(shape), parameter.written, parameter.alias_group));
            }
            return result;
        },
        nb::arg("ir"), "Per Ref: name, dtype, shape, whether it is written, alias group or -1.");
}

}  // namespace tilewright::jax
