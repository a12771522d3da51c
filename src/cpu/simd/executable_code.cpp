// Maps memory for machine code.
#include "cpu/simd/executable_code.h"

#if defined(__x86_64__) && defined(__linux__)

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

namespace tilewright::cpu {

ExecutableCode::ExecutableCode(const std::vector<std::uint8_t>& code) : size_(code.size()) {
    void* const memory =
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    std::memcpy(memory, code.data(), size_);
    if (mprotect(memory, size_, PROT_READ | PROT_EXEC) == 0)
        data_ = static_cast<std::byte*>(memory);
    else
        munmap(memory, size_);
}

ExecutableCode::~ExecutableCode() {
    if (data_ != nullptr) munmap(data_, size_);
}

bool wants_machine_code() {
    static const bool wanted = [] {
        const char* const text = std::getenv("TILEWRIGHT_JIT");
        return text == nullptr || std::string_view(text) != "0";
    }();
    return wanted;
}

}  // namespace tilewright::cpu

#else

namespace tilewright::cpu {

ExecutableCode::ExecutableCode(const std::vector<std::uint8_t>& code) : size_(code.size()) {}
ExecutableCode::~ExecutableCode() = default;

bool wants_machine_code() {
    return false;
}

}  // namespace tilewright::cpu

#endif
