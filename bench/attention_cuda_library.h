// Shared by the plain C entry points of the CUDA benchmarks.
#pragma once

#include <exception>
#include <string>

namespace tilewright::bench {

/// The text of this thread's last failure.
inline std::string& last_error() {
    thread_local std::string text;
    return text;
}

/// Runs an action; returns 0, or 1 after storing the text of its failure.
template <typename Action>
int guarded(Action action) {
    try {
        action();
        return 0;
    } catch (const std::exception& error) {
        last_error() = error.what();
        return 1;
    }
}

}  // namespace tilewright::bench
