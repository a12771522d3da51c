// Profiles of programs: what was taken, and what users see of it.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "cpu/machine.h"
#include "cpu/profile.h"
#include "tilewright/profile.h"

namespace tilewright::run {

/// What runs of one program took.
struct TakenProfile {
    explicit TakenProfile(std::shared_ptr<const cpu::Program> compiled);

    std::shared_ptr<const cpu::Program> program;
    cpu::Profile profile;
    std::atomic<std::int64_t> runs{0}, nanoseconds{0};
};

/// What users see of it.
Profile profile_of(const TakenProfile& taken);

/// Does TILEWRIGHT_PROFILE ask for the profile of every program?
bool profiles_all();

/// Lets the end of the process print the profile, as TILEWRIGHT_PROFILE asks.
void print_at_exit(std::shared_ptr<const TakenProfile> taken);

}  // namespace tilewright::run
