// A traced kernel made ready for a device: the one place that chooses it and launches.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "ir/function.h"
#include "ir/launch.h"
#include "tilewright/profile.h"
#include "tilewright/tensor.h"

namespace tilewright::run {

/// Immutable; may run on many threads at once.
class Executable {
  public:
    virtual ~Executable() = default;
    virtual void run(const ir::Arguments& arguments) const = 0;
    /// Starts in the background what a first run with such arguments would wait for.
    virtual void compile_ahead(const ir::Arguments&) const {}
    /// The kernel as it was traced; null where only another form is left of it.
    virtual const ir::Function* traced() const { return nullptr; }
    /// What its lines took so far; nothing where nobody asked.
    virtual std::optional<Profile> profile() const { return std::nullopt; }
};

/// How kernels are run.
enum class Machine {
    native,    ///< the tile machine on all cores, or a GPU
    profiled,  ///< the tile machine, taking the times of its instructions
    checked,   ///< the reference interpreter with bounds, poison and race checks
};

/// `outputs` says, per global Ref, that the caller does not define its contents.
std::unique_ptr<Executable> make_executable(ir::Function kernel, Machine machine,
                                            std::vector<bool> outputs, Device device);

/// The kernel as it is on the CPU's tile machine, for work of the library itself: not optimised,
/// never offloaded, profiled or interpreted.
std::unique_ptr<Executable> make_host_executable(const ir::Function& kernel);

}  // namespace tilewright::run
