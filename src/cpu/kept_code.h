// Machine code that programs refer to for as long as the process runs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/simd/executable_code.h"
#include "support/memo.h"

namespace tilewright::cpu {

/// Equal code is kept once. As none of it can be evicted, there is a limit to how much is kept.
class KeptCode {
  public:
    /// `name`: for `tilewright doctor`. At most `most` functions in `most_bytes` of memory.
    KeptCode(std::string name, std::size_t most, std::size_t most_bytes)
        : most_(most), most_bytes_(most_bytes), known_(std::move(name), most, memory_of) {}
    ~KeptCode() {
        for (const auto* code : known_.take_if([](auto&, auto&) { return true; })) delete code;
    }
    KeptCode(const KeptCode&) = delete;
    KeptCode& operator=(const KeptCode&) = delete;

    /// Where the code is; nullptr where it does not fit any more, or the system refuses.
    std::byte* keep(const std::vector<std::uint8_t>& code) {
        const std::string_view key(reinterpret_cast<const char*>(code.data()), code.size());
        if (const auto found = known_.find(key)) return (*found)->data();
        const std::size_t bytes = ExecutableCode::memory(code.size());
        if (known_.size() >= most_ || !reserve(bytes)) return nullptr;
        const auto* made = new ExecutableCode(code);
        const ExecutableCode* kept = nullptr;
        if (made->data() != nullptr) {
            const auto* const text = reinterpret_cast<const char*>(made->data());
            kept = known_.put({text, code.size()}, made);
        }
        if (kept != made) {  // another thread was first
            delete made;
            used_ -= bytes;
        }
        return kept == nullptr ? nullptr : kept->data();
    }

  private:
    static std::size_t memory_of(const ExecutableCode* const& code) {
        return ExecutableCode::memory(code->size());
    }
    bool reserve(std::size_t bytes) {
        if (used_.fetch_add(bytes) + bytes <= most_bytes_) return true;
        used_ -= bytes;
        return false;
    }

    const std::size_t most_, most_bytes_;
    std::atomic<std::size_t> used_ = 0;
    Memo<std::string_view, const ExecutableCode*> known_;  ///< by the code itself
};

}  // namespace tilewright::cpu
