// From tile IR to a scheduled kernel.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cuda/codegen/generate.h"
#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Does the scheduled form support an architecture?
bool is_for(const std::string& arch);

/// May threads copy operands of the kernel's products (RefFacts::copy_bytes)?
bool may_copy(const ir::Function& kernel, const std::string& arch);

/// Runs the passes on a traced kernel up to a level, and of those of that level up to `last`.
/// Refused, with the reason, for kernels that the form does not support.
Program schedule(const ir::Function& kernel, const Target& target,
                 Level up_to = Level::synchronised, std::string_view last = {});

/// The kernel's text, or nothing where the form does not support it; the debug log says why. Calls
/// with other facts may be supported.
std::optional<Generated> generate_scheduled(const ir::Function& kernel, const Target& target);

/// Why `generate_scheduled` gives nothing; empty where it gives something.
std::string why_not_scheduled(const ir::Function& kernel, const Target& target);

/// The same where the form supports the kernel, else what `cuda::generate` makes of
/// `cuda::prepare(kernel, target.arch)`.
Generated generate_best(const ir::Function& kernel, const Target& target);

/// The program that `generate_best` prints, at a level or after a pass of it; UserError where
/// kernels without wgmma do not have it.
Program schedule_any(const ir::Function& kernel, const Target& target,
                     Level up_to = Level::synchronised, std::string_view last = {});

/// "lowered, selected, .." for messages, from a level on.
std::string level_names(Level first = Level::lowered);
/// The level that a pass belongs to.
std::optional<Level> level_of_pass(std::string_view pass);
/// The passes in order, "lower, join_iterations, ..".
std::string pass_names();

}  // namespace tilewright::cuda::schedule
