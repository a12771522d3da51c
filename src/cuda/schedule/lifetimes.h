// When buffers of a program without roles are in use.
#pragma once

#include <map>
#include <string>

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// The first and last operation that accesses a buffer, counted in the order of the text. What is
/// accessed inside of a loop but before it, too, lives until the loop ends.
struct Lifetime {
    int first = 0, last = 0;
    bool meets(const Lifetime& other) const { return first <= other.last && other.first <= last; }
};

/// By buffer; buffers that nothing accesses are missing.
std::map<std::string, Lifetime> lifetimes(const Program& program);

}  // namespace tilewright::cuda::schedule
