// Profiles of programs: what was measured, and what users see of it.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "cpu/machine.h"
#include "cpu/profile.h"
#include "tilewright/profile.h"

namespace tilewright::run {

/// Times of the runs of one program.
struct TakenProfile {
    explicit TakenProfile(std::shared_ptr<const cpu::Program> compiled);

    std::shared_ptr<const cpu::Program> program;
    cpu::Profile profile;
    std::atomic<std::int64_t> runs{0}, nanoseconds{0};
};

/// The public form of a profile.
Profile profile_of(const TakenProfile& taken);

/// Whether TILEWRIGHT_PROFILE asks for a profile of every program.
bool profiles_all();

/// Prints the profile when the process ends, as TILEWRIGHT_PROFILE asks.
void print_at_exit(std::shared_ptr<const TakenProfile> taken);

}  // namespace tilewright::run
