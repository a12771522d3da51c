// Compiles generated kernels for the host and calls them.
#include "tests/cuda/emulate.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "support/integer.h"
#include "tests/cuda/emulated_source.h"

namespace tilewright::testing_support {
EmulatedKernels::EmulatedKernels(const std::vector<cuda::Generated>& kernels) : kernels_(kernels) {
    std::string source = kEmulatedIncludes;
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
        source +=
            emulated_source(kernels_[i].source, kernels_[i].name, fmt::format("emulated_{}", i));
    }
    static int count = 0;
    const std::filesystem::path base = std::filesystem::path(::testing::TempDir()) /
                                       fmt::format("tw_emulated_{}_{}", ::getpid(), count++);
    const std::string file = base.string() + ".cpp", object = base.string() + ".so";
    std::ofstream(file) << source;
    const std::string command = emulated_compile_command(file, object);
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
    const auto entry =
        reinterpret_cast<Entry>(dlsym(library_, fmt::format("run_emulated_{}", i).c_str()));
    // The layout in cuda/device/ptx/tma.cuh of the emulator.
    struct Map {
        unsigned char* data;
        long extent[5], stride[5];
        int box[5], rank, bytes;
    };
    std::vector<Map> maps;
    for (const cuda::TensorMapRequest& request : arguments.maps()) {
        Map map{};
        map.data = reinterpret_cast<unsigned char*>(request.address);
        map.rank = request.rank;
        map.bytes = size_of(request.dtype);
        for (int d = 0; d < request.rank; ++d) {
            const auto from = static_cast<std::size_t>(d);
            map.extent[d] = static_cast<long>(request.extents[from]);
            map.stride[d] = d == 0 ? map.bytes : static_cast<long>(request.strides[from]);
            map.box[d] = static_cast<int>(request.box[from]);
        }
        maps.push_back(map);
    }
    std::vector<void*> parameters = arguments.parameters();
    for (Map& map : maps) parameters.push_back(&map);
    constexpr std::int64_t kBlocks = 3;  // of kernels whose blocks go through programs
    const bool few = kernels_[i].is_persistent || kernels_[i].has_rows;
    const std::int64_t blocks =
        few ? std::min(kBlocks, arguments.programs()) : arguments.programs();
    const int cluster = kernels_[i].cluster;
    const std::int64_t rounds = ceil_div(arguments.programs(), blocks);
    const unsigned grid[] = {
        static_cast<unsigned>(blocks * cluster),
        kernels_[i].has_rows ? static_cast<unsigned>(std::min<std::int64_t>(rounds, 2)) : 1,
        static_cast<unsigned>(cluster)};
    entry(parameters.data(), grid, kernels_[i].threads, seed);
}

}  // namespace tilewright::testing_support
