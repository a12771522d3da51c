// A stand-in for NVRTC on machines without a GPU: "compiles" one generated kernel with the host's
// C++ compiler against the emulated PTX headers. Its cubin is a shared object, which the stand-in
// for the driver (driver.cpp) loads.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>

#include "tests/cuda/emulated_source.h"

namespace {

namespace fs = std::filesystem;
constexpr int kOk = 0, kCompilation = 6;

struct Program {
    std::string source, name, log, binary;
};

/// The name of the only kernel of a translation unit.
std::string kernel_of(const std::string& source) {
    const std::size_t bounds = source.find("__launch_bounds__(");
    if (bounds == std::string::npos) return {};
    std::size_t begin = source.find(')', bounds) + 1;
    while (begin < source.size() && std::isspace(static_cast<unsigned char>(source[begin]))) {
        ++begin;
    }
    return source.substr(begin, source.find('(', begin) - begin);
}

bool build(Program& program) {
    const std::string kernel = kernel_of(program.source);
    if (kernel.empty()) {
        program.log = "only kernels of tile programs can be emulated";
        return false;
    }
    static int count = 0;
    const fs::path base =
        fs::temp_directory_path() / fmt::format("tw_fake_nvrtc_{}_{}", ::getpid(), count++);
    const std::string file = base.string() + ".cpp", object = base.string() + ".so";
    std::ofstream(file) << tilewright::testing_support::kEmulatedIncludes
                        << tilewright::testing_support::emulated_source(program.source, kernel,
                                                                        kernel);
    const std::string command = tilewright::testing_support::emulated_compile_command(file, object);
    FILE* const pipe = popen(command.c_str(), "r");
    char buffer[4096];
    for (std::size_t n = 0; pipe != nullptr && (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
        program.log.append(buffer, n);
    }
    const bool done = pipe != nullptr && pclose(pipe) == 0;
    std::ostringstream bytes;
    bytes << std::ifstream(object, std::ios::binary).rdbuf();
    program.binary = bytes.str();
    fs::remove(file);
    fs::remove(object);
    return done;
}

int give(const std::string& text, char* target) {
    std::memcpy(target, text.data(), text.size());
    target[text.size()] = '\0';
    return kOk;
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
    // The emulated headers are part of what is compiled, so of the key of the cache.
    std::string text;
    const fs::path headers = fs::path(TW_SOURCE_FOLDER) / "tests/cuda/emulator";
    std::set<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(headers)) {
        if (entry.is_regular_file()) files.insert(entry.path());
    }
    for (const fs::path& file : files) {
        std::ostringstream bytes;
        bytes << std::ifstream(file, std::ios::binary).rdbuf();
        text += bytes.str();
    }
    *major = 13;
    *minor = static_cast<int>(std::hash<std::string>()(text) % 1000000);
    return kOk;
}
const char* nvrtcGetErrorString(int status) {
    return status == kOk ? "NVRTC_SUCCESS" : "NVRTC_ERROR_COMPILATION";
}
int nvrtcCreateProgram(void** program, const char* source, const char* name, int,
                       const char* const*, const char* const*) {
    *program = new Program{source, name, {}, {}};
    return kOk;
}
int nvrtcDestroyProgram(void** program) {
    delete static_cast<Program*>(*program);
    *program = nullptr;
    return kOk;
}
int nvrtcCompileProgram(void* program, int, const char* const*) {
    return build(*static_cast<Program*>(program)) ? kOk : kCompilation;
}
int nvrtcGetCUBINSize(void* program, std::size_t* size) {
    *size = static_cast<Program*>(program)->binary.size();
    return kOk;
}
int nvrtcGetCUBIN(void* program, char* target) {
    const std::string& binary = static_cast<Program*>(program)->binary;
    std::memcpy(target, binary.data(), binary.size());
    return kOk;
}
int nvrtcGetPTXSize(void*, std::size_t* size) {
    *size = 1;
    return kOk;
}
int nvrtcGetPTX(void*, char* target) {
    return give("", target);
}
int nvrtcGetProgramLogSize(void* program, std::size_t* size) {
    *size = static_cast<Program*>(program)->log.size() + 1;
    return kOk;
}
int nvrtcGetProgramLog(void* program, char* target) {
    return give(static_cast<Program*>(program)->log, target);
}

}  // extern "C"
