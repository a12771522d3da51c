// `tilewright precompile`: compiles attention's kernels without mods and those that build masks
// from arrays on a GPU, which packages include.
#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "attention/sm90/plain_kernels.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "cuda/runtime/compiler.h"
#include "cuda/runtime/kernel_pack.h"
#include "mask/gpu.h"
#include "support/check.h"
#include "support/write_file.h"

namespace tilewright::cli {
namespace {

struct Options {
    std::string file, head_dims = "64,96,128,192,256", dtypes = "bf16,f16", only;
    std::int64_t jobs = 0;
};

std::vector<DType> parse_dtypes(const std::string& text) {
    std::vector<DType> dtypes;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        const std::string name = text.substr(begin, end - begin);
        if (name != "bf16" && name != "f16")
            user_error("precompile", "expected --dtypes of bf16 and f16 but got {}", text);
        dtypes.push_back(name == "bf16" ? DType::bf16 : DType::f16);
        begin = end + 1;
    }
    return dtypes;
}

/// The existing pack in the file, if this version of NVRTC made it.
cuda::KernelPack earlier(const std::string& file) {
    cuda::KernelPack pack = cuda::KernelPack::if_readable(file);
    return pack.compiler() == cuda::nvrtc_report().version ? pack : cuda::KernelPack("");
}

/// Compiles what the earlier pack lacks on `jobs` threads and returns the cubins by source key.
/// Throws the first failure.
std::map<std::string, std::string> compile_all(const std::vector<cuda::CompileRequest>& units,
                                               const cuda::KernelPack& before, std::size_t jobs) {
    std::map<std::string, std::string> cubins;
    std::mutex mutex;
    std::exception_ptr failure;
    std::atomic<std::size_t> next = 0;
    Progress progress("compiling");
    const auto work = [&] {
        for (std::size_t i = next++; i < units.size(); i = next++) {
            try {
                const std::string key = cuda::source_key(units[i]);
                std::optional<std::string> cubin = before.find(key);
                if (!cubin) cubin = cuda::compile(units[i]).cubin;
                const std::lock_guard lock(mutex);
                cubins.emplace(key, *std::move(cubin));
                progress.update(static_cast<double>(cubins.size()) /
                                static_cast<double>(units.size()));
            } catch (...) {
                const std::lock_guard lock(mutex);
                if (!failure) failure = std::current_exception();
                next = units.size();
            }
        }
    };
    {
        std::vector<std::jthread> threads;
        for (std::size_t i = 0; i < std::min(jobs, units.size()); ++i) threads.emplace_back(work);
    }
    if (failure) std::rethrow_exception(failure);
    return cubins;
}

void run(const Options& options, Console& console) {
    std::vector<int> head_dims;
    for (const std::int64_t dim :
         parse_integers("precompile", "--head-dims D,...", options.head_dims, 1, 32)) {
        if (dim < 8 || dim > 256 || dim % 8 != 0)
            user_error("precompile", "expected --head-dims of multiples of 8 up to 256 but got {}",
                       dim);
        head_dims.push_back(static_cast<int>(dim));
    }
    expect_writable("precompile", options.file);
    auto units = attn::sm90::plain_kernels(head_dims, parse_dtypes(options.dtypes));
    for (const auto kernel : {mask::MaskKernel::pieces, mask::MaskKernel::ranges})
        units.push_back(mask::kernel_request(kernel, "sm_90a"));
    std::erase_if(
        units, [&](const auto& unit) { return unit.name.find(options.only) == std::string::npos; });
    const std::size_t jobs = options.jobs > 0 ? static_cast<std::size_t>(options.jobs)
                                              : std::max(1u, std::thread::hardware_concurrency());
    const auto start = std::chrono::steady_clock::now();
    const auto cubins = compile_all(units, earlier(options.file), jobs);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    cuda::KernelPack::write(options.file, cuda::nvrtc_report().version, cubins);
    std::size_t bytes = 0;
    for (const auto& [key, cubin] : cubins) bytes += cubin.size();
    console.out << fmt::format(
        "{}: {} units, {:.1f} MB, of {:.1f} MB uncompressed; {:.0f} s "
        "by {} threads\n",
        options.file, cubins.size(),
        static_cast<double>(std::filesystem::file_size(options.file)) / 1e6,
        static_cast<double>(bytes) / 1e6, taken.count(), jobs);
}

}  // namespace

void add_precompile(CLI::App& app, Console& console) {
    auto options = std::make_shared<Options>();
    CLI::App* command = app.add_subcommand("precompile",
                                           "compile attention's kernels without a mod, and those "
                                           "that evaluate masks of arrays on a GPU, "
                                           "for Hopper GPUs into one file");
    command->footer(
        "Needs NVRTC and no GPU. Kernels of this version that the file already holds are not "
        "compiled again. The library uses the file if it is named tilewright-kernels.pack and is "
        "in the library's folder, or if TILEWRIGHT_KERNELS gives its path.");
    command->add_option("file", options->file, "the file to write")->required();
    command->add_option("--head-dims", options->head_dims, "head dimensions")
        ->capture_default_str();
    command->add_option("--dtypes", options->dtypes, "bf16, f16 or both")->capture_default_str();
    command->add_option("--only", options->only, "units whose names contain this text")
        ->type_name("TEXT");
    add_size(*command, "--jobs", options->jobs, "compilations at once; 0: one for each core");
    command->callback([options, &console] { run(*options, console); });
}

}  // namespace tilewright::cli
