// What the plain C entry points of the CUDA benchmarks share.
#pragma once

#include <exception>
#include <string>

namespace tilewright::bench {

/// Text of this thread's last failure.
inline std::string& last_error() {
    thread_local std::string text;
    return text;
}

/// Runs an action; 0, or 1 with the text of its failure kept.
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
