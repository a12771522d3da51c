// Emulated asynchronous copies: each completes after a random delay, but before its group's wait
// ends.
#pragma once

#include "cuda/device/ptx/types.cuh"

namespace emulator {

/// Each thread's uncommitted copies, and the groups of committed ones.
inline std::map<int, std::vector<std::function<void()>>> open_copies;
inline std::map<int, std::vector<std::shared_ptr<bool>>> copy_groups;

inline void copy(unsigned target, const void* source, unsigned bytes, unsigned valid) {
    if (target % bytes != 0 || reinterpret_cast<std::uintptr_t>(source) % bytes != 0) {
        fail("misaligned cp.async");
    }
    open_copies[current].push_back([=, thread = current] {
        std::memset(memory + target, 0, bytes);
        if (valid != 0) std::memcpy(memory + target, source, valid);
        write_shared(target, thread);
    });
}

}  // namespace emulator

namespace twd::ptx {

inline void cp_async_16(u32 target, const void* source, u32 valid = 16) {
    emulator::copy(target, source, 16, valid);
}
inline void cp_async_8(u32 target, const void* source, u32 valid = 8) {
    emulator::copy(target, source, 8, valid);
}
inline void cp_async_4(u32 target, const void* source, u32 valid = 4) {
    emulator::copy(target, source, 4, valid);
}
inline void cp_async_commit() {
    const auto done = std::make_shared<bool>(false);
    emulator::copy_groups[emulator::current].push_back(done);
    auto& open = emulator::open_copies[emulator::current];
    emulator::later([done, copies = std::move(open)] {
        for (const auto& copy : copies) copy();
        *done = true;
    });
    open.clear();
}
template <int kPending>
inline void cp_async_wait() {
    auto& groups = emulator::copy_groups[emulator::current];
    while (groups.size() > kPending) {
        const auto done = groups.front();
        emulator::wait_until([&] { return *done; });
        groups.erase(groups.begin());
    }
}

}  // namespace twd::ptx
