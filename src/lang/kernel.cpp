// Checks of kernels and index maps that need no trace.
#include "tilewright/lang/kernel.h"

#include <algorithm>

#include "lang/tracer.h"

namespace tilewright::detail {

void wrong_arity(std::size_t given) {
    user_error("call",
               "expected a kernel or index map that takes {} arguments but got one that takes "
               "other numbers of them",
               given);
}

void check_parameter_names(const std::string& kernel, int arity,
                           const std::vector<std::string>& names,
                           const std::source_location& location) {
    lang::Tracer::with_line(location, [&] {
        if (arity >= 0 && !names.empty() && static_cast<int>(names.size()) != arity) {
            user_error("kernel",
                       "expected a name for each of the {} Refs of kernel `{}` but got {}", arity,
                       kernel, names.size());
        }
        for (auto name = names.begin(); name != names.end(); ++name) {
            if (name->empty() || std::find(names.begin(), name, *name) != name) {
                user_error("kernel",
                           "expected the Refs of kernel `{}` to have names of their own but got "
                           "`{}`",
                           kernel, fmt::join(names, "`, `"));
            }
        }
    });
}

}  // namespace tilewright::detail
