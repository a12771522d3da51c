// Runs an exported norm through its generated header, in C++17.
//
// usage: deploy FOLDER [cuda]      cuda: on the first GPU, where the folder has its cubins
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "small_norm.h"

namespace {

/// Memory that both the CPU and the first GPU can access, allocated by the installed driver.
class SharedMemory {
  public:
    SharedMemory() : driver_(dlopen("libcuda.so.1", RTLD_NOW)) {
        if (!driver_) throw std::runtime_error("no CUDA driver");
        int device = 0;
        void* context = nullptr;
        call<unsigned>("cuInit", 0u);
        call<int*, int>("cuDeviceGet", &device, 0);
        call<void**, int>("cuDevicePrimaryCtxRetain", &context, device);
        call<void*>("cuCtxSetCurrent", context);
    }
    float* take(std::size_t count) {
        float* memory = nullptr;
        call<float**, std::size_t, unsigned>("cuMemAllocManaged", &memory, count * sizeof(float),
                                             1u);
        return memory;
    }
    void wait() { call<>("cuCtxSynchronize"); }

  private:
    template <class... Parameters>
    void call(const char* name, Parameters... arguments) {
        void* symbol = dlsym(driver_, name);
        int (*function)(Parameters...) = nullptr;
        std::memcpy(&function, &symbol, sizeof function);
        if (!function || function(arguments...) != 0) throw std::runtime_error(name);
    }

    void* driver_;
};

bool is_right(const float* x, const float* y) {
    for (std::size_t row = 0; row < 8; ++row) {
        double squares = 0;
        for (std::size_t i = 0; i < 64; ++i) squares += x[row * 64 + i] * x[row * 64 + i];
        for (std::size_t i = 0; i < 64; ++i) {
            const double want = 2 * x[row * 64 + i] / std::sqrt(squares / 64 + 1e-5);
            if (!(std::abs(y[row * 64 + i] - want) < 1e-5)) return false;
        }
    }
    return true;
}

void fill(float* x, float* weight) {
    for (std::size_t i = 0; i < 8 * 64; ++i) x[i] = static_cast<float>(i % 7) - 3;
    for (std::size_t i = 0; i < 64; ++i) weight[i] = 2;
}

bool run_on_cpu(const std::string& folder) {
    const tilewright_artifacts::small_norm norm(folder);
    std::vector<float> x(8 * 64), weight(64), y(8 * 64);
    fill(x.data(), weight.data());
    norm(x.data(), weight.data(), y.data());
    return is_right(x.data(), y.data());
}

bool run_on_gpu(const std::string& folder) {
    SharedMemory memory;
    float *x = memory.take(8 * 64), *weight = memory.take(64), *y = memory.take(8 * 64);
    fill(x, weight);
    const tilewright_artifacts::small_norm norm(folder, {kDLCUDA, 0});
    norm(x, weight, y);
    memory.wait();
    return is_right(x, y);
}

}  // namespace

int main(int count, char** arguments) {
    static_assert(__cplusplus < 202002L, "the header is one for C++17");
    const bool on_gpu = count > 2 && std::strcmp(arguments[2], "cuda") == 0;
    if (!(on_gpu ? run_on_gpu(arguments[1]) : run_on_cpu(arguments[1]))) return 1;
    try {
        tilewright_artifacts::small_norm("no such folder");
    } catch (const std::runtime_error& error) {
        std::printf("%s\n", error.what());
        return 0;
    }
    return 1;
}
