// Machine code in memory that may be executed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tilewright::cpu {

/// Code in memory of its own, which is never written again and is unmapped with this object.
class ExecutableCode {
  public:
    explicit ExecutableCode(const std::vector<std::uint8_t>& code);
    ~ExecutableCode();
    ExecutableCode(const ExecutableCode&) = delete;
    ExecutableCode& operator=(const ExecutableCode&) = delete;

    /// nullptr where the system refuses.
    std::byte* data() const { return data_; }
    std::size_t size() const { return size_; }
    /// The bytes of whole pages that code of this size takes.
    static std::size_t memory(std::size_t size) { return (size + kPage - 1) / kPage * kPage; }

  private:
    static constexpr std::size_t kPage = 4096;  ///< of x86-64

    std::byte* data_ = nullptr;
    std::size_t size_;
};

/// False with TILEWRIGHT_JIT=0, and on machines for which nothing is compiled.
bool wants_machine_code();

}  // namespace tilewright::cpu
