// A stand-in for NVRTC on machines without a GPU: "compiles" one generated kernel with the host's
// C++ compiler against the emulated PTX headers. Its cubin is a shared object, which the stand-in
// for the driver (driver.cpp) loads.
#include <elf.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/cuda/emulated_source.h"

namespace {

namespace fs = std::filesystem;
constexpr int kOk = 0, kCompilation = 6;

struct Program {
    std::string source, name, log, binary;
    std::map<std::string, std::string> headers;  ///< other than the library's
    std::vector<std::string> kernels;            ///< a user's name expressions
    std::vector<std::string> definitions;        ///< options that the host's compiler supports
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

/// The translation unit of a user's kernels, adapted to the host.
std::string user_source(const Program& program) {
    namespace ts = tilewright::testing_support;
    std::string text = "#include \"cuda_builtins.h\"\n#line 1 \"" + program.name + "\"\n" +
                       ts::emulated_user_source(program.source) + "\n#line 1 \"emulation\"\n";
    for (std::size_t i = 0; i < program.kernels.size(); ++i) {
        text += fmt::format("TW_EMULATED_KERNEL(kernel_{}, {})\n", i, program.kernels[i]);
    }
    return text;
}

std::string compile(Program& program, const std::string& text, const std::string& options);

bool build_user(Program& program) {
    const fs::path folder =
        fs::temp_directory_path() / fmt::format("tw_fake_headers_{}", ::getpid());
    fs::create_directories(folder);
    for (const auto& [name, text] : program.headers) std::ofstream(folder / name) << text;
    std::string options = " -I " + folder.string();
    for (const std::string& one : program.definitions) options += " " + one;
    program.binary = compile(program, user_source(program), options);
    fs::remove_all(folder);
    return !program.binary.empty();
}

bool build(Program& program) {
    if (!program.kernels.empty()) return build_user(program);
    if (std::getenv("TW_FAKE_EMPTY") != nullptr) {
        // How long the full kernels of the Hopper engine take; compact ones a tenth of it.
        const char* const seconds = std::getenv("TW_FAKE_COMPILE_SECONDS");
        const double full = seconds == nullptr ? 0 : std::atof(seconds);
        if (program.name.starts_with("attention_"))
            std::this_thread::sleep_for(std::chrono::duration<double>(full));
        if (program.name.starts_with("compact_attention_"))
            std::this_thread::sleep_for(std::chrono::duration<double>(full / 10));
        Elf64_Ehdr header{};
        std::memcpy(header.e_ident, ELFMAG, SELFMAG);
        header.e_type = ET_DYN;
        program.binary.assign(reinterpret_cast<const char*>(&header), sizeof(header));
        return true;
    }
    const std::string kernel = kernel_of(program.source);
    if (kernel.empty()) {
        program.log = "only kernels of tile programs can be emulated";
        return false;
    }
    program.binary =
        compile(program,
                tilewright::testing_support::kEmulatedIncludes +
                    tilewright::testing_support::emulated_source(program.source, kernel, kernel),
                "");
    return !program.binary.empty();
}

/// The shared object; empty if the text does not compile, with the reason in the log.
std::string compile(Program& program, const std::string& text, const std::string& options) {
    static int count = 0;
    const fs::path base =
        fs::temp_directory_path() / fmt::format("tw_fake_nvrtc_{}_{}", ::getpid(), count++);
    const std::string file = base.string() + ".cpp", object = base.string() + ".so";
    std::ofstream(file) << text;
    const std::string command =
        tilewright::testing_support::emulated_compile_command(file, object, options);
    FILE* const pipe = popen(command.c_str(), "r");
    char buffer[4096];
    for (std::size_t n = 0; pipe != nullptr && (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
        program.log.append(buffer, n);
    }
    const bool done = pipe != nullptr && pclose(pipe) == 0;
    std::ostringstream bytes;
    if (done) bytes << std::ifstream(object, std::ios::binary).rdbuf();
    fs::remove(file);
    fs::remove(object);
    return bytes.str();
}

int give(const std::string& text, char* target) {
    std::memcpy(target, text.data(), text.size());
    target[text.size()] = '\0';
    return kOk;
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
    // The emulated headers are part of what is compiled, and therefore of the cache key.
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
int nvrtcCreateProgram(void** program, const char* source, const char* name, int count,
                       const char* const* texts, const char* const* names) {
    auto* const made = new Program{source, name, {}, {}, {}, {}, {}};
    for (int i = 0; i < count; ++i) {
        if (!std::string_view(names[i]).starts_with("cuda/")) made->headers[names[i]] = texts[i];
    }
    *program = made;
    return kOk;
}
int nvrtcAddNameExpression(void* program, const char* kernel) {
    static_cast<Program*>(program)->kernels.emplace_back(kernel);
    return kOk;
}
int nvrtcGetLoweredName(void* program, const char* kernel, const char** symbol) {
    static const char* const kSymbols[] = {"kernel_0", "kernel_1", "kernel_2", "kernel_3"};
    const auto& kernels = static_cast<Program*>(program)->kernels;
    *symbol = kSymbols[std::find(kernels.begin(), kernels.end(), kernel) - kernels.begin()];
    return kOk;
}
int nvrtcDestroyProgram(void** program) {
    delete static_cast<Program*>(*program);
    *program = nullptr;
    return kOk;
}
int nvrtcCompileProgram(void* program, int count, const char* const* options) {
    auto& given = *static_cast<Program*>(program);
    for (int i = 0; i < count; ++i) {
        if (std::string_view(options[i]).starts_with("-D"))
            given.definitions.emplace_back(options[i]);
    }
    return build(given) ? kOk : kCompilation;
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
