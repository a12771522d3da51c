// Opening the CUDA driver library.
#include "cuda/runtime/driver.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "support/check.h"

namespace tilewright::cuda {
namespace {

struct Opened {
    Driver driver;
    LibraryReport report;
};

void open_driver(Opened& opened) {
    LibraryReport& report = opened.report;
    report.name = "CUDA driver";
    report.advice =
        "install the NVIDIA driver (525 or newer, 570 or newer for CUDA 12.8 cubins), which brings "
        "libcuda.so.1";
    const Library library = Library::open({"libcuda.so.1", "libcuda.so"}, report);
    if (!library) return;

    const auto give_up = [&](std::string reason) {
        report.tried.push_back(report.path + ": " + reason);
        report.path.clear();
    };
#define TW_CUDA_DRIVER_LOAD(entry, parameters)                                         \
    opened.driver.entry = reinterpret_cast<int(*) parameters>(library.symbol(#entry)); \
    if (opened.driver.entry == nullptr) return give_up("lacks " #entry ", too old");
    TW_CUDA_DRIVER_ENTRIES(TW_CUDA_DRIVER_LOAD)
#undef TW_CUDA_DRIVER_LOAD

    if (const int status = opened.driver.cuInit(0); status != 0) {
        const char* text = nullptr;
        opened.driver.cuGetErrorString(status, &text);
        report.advice = "check nvidia-smi: the driver's library is here, but no usable GPU";
        return give_up(fmt::format("cuInit failed: {}", text != nullptr ? text : "unknown error"));
    }
    opened.driver.cuDriverGetVersion(&opened.driver.version);
    report.version =
        fmt::format("{}.{}", opened.driver.version / 1000, opened.driver.version % 1000 / 10);
    report.advice.clear();
}

const Opened& opened_driver() {
    static const Opened* const kOpened = [] {
        auto* opened = new Opened;  // never destroyed: kernels may run until the process ends
        open_driver(*opened);
        return opened;
    }();
    return *kOpened;
}

/// Does this CUresult mean that the driver refuses all further work of the process?
bool is_sticky(int status) {
    constexpr std::array kSticky{
        214,  // CUDA_ERROR_ECC_UNCORRECTABLE
        700,  // CUDA_ERROR_ILLEGAL_ADDRESS
        702,  // CUDA_ERROR_LAUNCH_TIMEOUT
        709,  // CUDA_ERROR_CONTEXT_IS_DESTROYED
        710,  // CUDA_ERROR_ASSERT
        714,  // CUDA_ERROR_HARDWARE_STACK_ERROR
        715,  // CUDA_ERROR_ILLEGAL_INSTRUCTION
        716,  // CUDA_ERROR_MISALIGNED_ADDRESS
        717,  // CUDA_ERROR_INVALID_ADDRESS_SPACE
        718,  // CUDA_ERROR_INVALID_PC
        719,  // CUDA_ERROR_LAUNCH_FAILED
    };
    return std::find(kSticky.begin(), kSticky.end(), status) != kSticky.end();
}

}  // namespace

void Driver::check(int status, const char* action) const {
    if (status == 0) return;
    const char* name = nullptr;
    const char* text = nullptr;
    cuGetErrorName(status, &name);
    cuGetErrorString(status, &text);
    throw CudaError(
        fmt::format("[cuda] {} failed: {} ({}){}", action, text ? text : "unknown error",
                    name ? name : std::to_string(status),
                    is_sticky(status) ? "; the GPU's context is lost: restart the process" : ""),
        status);
}

const Driver* find_driver() {
    const Opened& opened = opened_driver();
    return opened.report.found() ? &opened.driver : nullptr;
}

const Driver& driver() {
    const Opened& opened = opened_driver();
    if (!opened.report.found()) {
        user_error("cuda", "expected a CUDA driver but found none: {}. To get one: {}",
                   fmt::join(opened.report.tried, "; "), opened.report.advice);
    }
    return opened.driver;
}

const LibraryReport& driver_report() {
    return opened_driver().report;
}

}  // namespace tilewright::cuda
