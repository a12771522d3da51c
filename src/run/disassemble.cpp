// Machine code as text.
#include "run/disassemble.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "support/check.h"

namespace tilewright::run {

std::string disassembled(const std::string& cubin, bool lines) {
    const auto file = std::filesystem::temp_directory_path() /
                      fmt::format("tilewright_{}.cubin", static_cast<const void*>(cubin.data()));
    std::ofstream(file, std::ios::binary) << cubin;
    const std::string command =
        fmt::format("nvdisasm -c {}'{}' 2>&1", lines ? "-gi " : "", file.string());
    std::string text;
    FILE* const pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) user_error("dump", "expected to start nvdisasm but the system refused");
    char buffer[4096];
    for (std::size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
        text.append(buffer, n);
    const int status = pclose(pipe);
    std::filesystem::remove(file);
    if (status != 0) {
        user_error("dump",
                   "expected nvdisasm on PATH, from a CUDA toolkit or the PyPI package "
                   "nvidia-cuda-nvdisasm, but got: {}",
                   text);
    }
    return text;
}

}  // namespace tilewright::run
