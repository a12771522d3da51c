// Traced kernels prepared for a device: the only place that chooses it and launches.
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
    /// Starts in the background what the first run with such arguments would wait for.
    virtual void compile_ahead(const ir::Arguments&) const {}
    /// The kernel as it was traced; null if only another form of it is kept.
    virtual const ir::Function* traced() const { return nullptr; }
    /// Times of its lines so far; nullopt unless they are taken.
    virtual std::optional<Profile> profile() const { return std::nullopt; }
};

/// How kernels are run.
enum class Machine {
    native,    ///< the tile machine on all cores, or a GPU
    profiled,  ///< the tile machine, which times its instructions
    checked,   ///< the reference interpreter with bounds, poison and race checks
};

/// `outputs` says for each global Ref whether its contents are undefined before the run.
std::unique_ptr<Executable> make_executable(ir::Function kernel, Machine machine,
                                            std::vector<bool> outputs, Device device);

/// The kernel, unoptimised, on the CPU's tile machine, for work of the library itself: never
/// offloaded, profiled or interpreted.
std::unique_ptr<Executable> make_host_executable(const ir::Function& kernel);

}  // namespace tilewright::run
