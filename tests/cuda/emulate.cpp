// Compiles generated kernels for the host and calls them.
#include "tests/cuda/emulate.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace tilewright::testing_support {
namespace {

/// The kernel's text without its includes, under another name, and its parameters' types.
std::string renamed(const cuda::Generated& kernel, const std::string& name,
                    std::vector<std::string>& types) {
    std::string text = kernel.source;
    text.erase(0, text.find("extern \"C\""));
    const std::size_t at = text.find(kernel.name + "(");
    const std::size_t begin = at + kernel.name.size() + 1, end = text.find(") {\n", begin);
    std::string list = text.substr(begin, end - begin);
    while (!list.empty()) {
        const std::size_t next = list.find(", const ");
        std::string one = list.substr(0, next);
        list.erase(0, next == std::string::npos ? next : next + 2);
        for (const char* word : {"const ", "__grid_constant__ "}) {
            if (const auto found = one.find(word); found != std::string::npos) {
                one.erase(found, std::string(word).size());
            }
        }
        types.push_back(one.substr(0, one.rfind(' ')));
    }
    return text.replace(at, kernel.name.size(), name);
}

}  // namespace

EmulatedKernels::EmulatedKernels(const std::vector<cuda::Generated>& kernels) : kernels_(kernels) {
    std::string source =
        "#include \"cuda/device/ptx/types.cuh\"\n#include \"cuda/device/ptx/matrix_move.cuh\"\n"
        "#include \"cuda/device/ptx/mma.cuh\"\n#include \"cuda/device/tile/memory.cuh\"\n"
        "using namespace tw;\n";
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
        const std::string name = fmt::format("emulated_{}", i);
        std::vector<std::string> types;
        source += renamed(kernels_[i], name, types);
        std::string arguments;
        for (std::size_t p = 0; p < types.size(); ++p) {
            arguments += fmt::format("{}*static_cast<{}*>(p[{}])", p == 0 ? "" : ", ", types[p], p);
        }
        source += fmt::format(
            "extern \"C\" void run_{}(void** p, long programs, int threads, unsigned seed) {{\n"
            "    gridDim.x = programs;\n"
            "    for (long i = 0; i < programs; ++i) {{\n"
            "        blockIdx.x = i;\n"
            "        emulator::run_block(threads, seed + i, [&] {{ {}({}); }});\n    }}\n}}\n",
            i, name, arguments);
    }
    static int count = 0;
    const std::filesystem::path base = std::filesystem::path(::testing::TempDir()) /
                                       fmt::format("tw_emulated_{}_{}", ::getpid(), count++);
    const std::string file = base.string() + ".cpp", object = base.string() + ".so";
    std::ofstream(file) << source;
    const std::string command = fmt::format(
        "{} -std=c++20 -O0 -w -fno-strict-aliasing -ffp-contract=off -fPIC -shared -I "
        "{}/tests/cuda/"
        "emulator -I {}/src -o {} {} 2>&1",
        TW_CXX_COMPILER, TW_SOURCE_FOLDER, TW_SOURCE_FOLDER, object, file);
    std::string log;
    FILE* const pipe = popen(command.c_str(), "r");
    char buffer[4096];
    for (std::size_t n = 0; pipe != nullptr && (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
        log.append(buffer, n);
    }
    if (pipe == nullptr || pclose(pipe) != 0) {
        throw std::runtime_error(fmt::format("{}\n{}", command, log.substr(0, 4000)));
    }
    library_ = dlopen(object.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) throw std::runtime_error(dlerror());
    std::filesystem::remove(file);
    std::filesystem::remove(object);
}

EmulatedKernels::~EmulatedKernels() {
    if (library_ != nullptr) dlclose(library_);
}

void EmulatedKernels::run(std::size_t i, cuda::LaunchArguments& arguments, unsigned seed) const {
    const auto entry = reinterpret_cast<Entry>(dlsym(library_, fmt::format("run_{}", i).c_str()));
    entry(arguments.parameters().data(), arguments.programs(), kernels_[i].threads, seed);
}

}  // namespace tilewright::testing_support
