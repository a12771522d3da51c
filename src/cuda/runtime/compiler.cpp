// NVRTC and the cache of cubins.
#include "cuda/runtime/compiler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <future>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/runtime/background.h"
#include "cuda/runtime/kernel_pack.h"
#include "cuda/runtime/nvrtc_search.h"
#include "cuda/runtime/nvrtc_version.h"
#include "cuda/runtime/wait_notice.h"
#include "support/check.h"
#include "support/debug_log.h"
#include "support/disk_cache.h"
#include "support/memo.h"

namespace tilewright::cuda {
namespace {

using Program = void*;

// Name in the library, parameter types; every entry returns nvrtcResult.
// clang-format off
#define TW_NVRTC_ENTRIES(X)                                                                        \
    X(nvrtcVersion, (int*, int*))                                                                  \
    X(nvrtcCreateProgram,                                                                          \
      (Program*, const char*, const char*, int, const char* const*, const char* const*))           \
    X(nvrtcDestroyProgram, (Program*))                                                             \
    X(nvrtcAddNameExpression, (Program, const char*))                                              \
    X(nvrtcCompileProgram, (Program, int, const char* const*))                                     \
    X(nvrtcGetLoweredName, (Program, const char*, const char**))                                   \
    X(nvrtcGetCUBINSize, (Program, std::size_t*))                                                  \
    X(nvrtcGetCUBIN, (Program, char*))                                                             \
    X(nvrtcGetPTXSize, (Program, std::size_t*))                                                    \
    X(nvrtcGetPTX, (Program, char*))                                                               \
    X(nvrtcGetProgramLogSize, (Program, std::size_t*))                                             \
    X(nvrtcGetProgramLog, (Program, char*))
// clang-format on

struct Nvrtc {
#define TW_NVRTC_POINTER(entry, parameters) int(*entry) parameters = nullptr;
    TW_NVRTC_ENTRIES(TW_NVRTC_POINTER)
#undef TW_NVRTC_POINTER
    const char* (*nvrtcGetErrorString)(int) = nullptr;
    int major = 0;
    int minor = 0;
    LibraryReport report;
};

void open_nvrtc(Nvrtc& nvrtc) {
    LibraryReport& report = nvrtc.report;
    report.name = "NVRTC";
    report.advice =
        "pip install nvidia-cuda-nvrtc (13.x), install a CUDA toolkit (12.8 or newer), or set "
        "TILEWRIGHT_NVRTC to the path of libnvrtc.so";
    const Library library = Library::open(nvrtc_candidates(), report);
    if (!library) return;
    bool complete = true;
#define TW_NVRTC_LOAD(entry, parameters)                                       \
    nvrtc.entry = reinterpret_cast<int(*) parameters>(library.symbol(#entry)); \
    complete = complete && nvrtc.entry != nullptr;
    TW_NVRTC_ENTRIES(TW_NVRTC_LOAD)
#undef TW_NVRTC_LOAD
    nvrtc.nvrtcGetErrorString =
        reinterpret_cast<const char* (*)(int)>(library.symbol("nvrtcGetErrorString"));
    if (!complete || nvrtc.nvrtcGetErrorString == nullptr) {
        report.tried.push_back(report.path + ": not a usable NVRTC, entry points are missing");
        report.path.clear();
        return;
    }
    Library::open_beside(report.path, "libnvrtc-builtins.so");
    nvrtc.nvrtcVersion(&nvrtc.major, &nvrtc.minor);
    report.version = fmt::format("{}.{}", nvrtc.major, nvrtc.minor);
    report.advice.clear();
}

std::atomic<bool> is_nvrtc_open = false;
std::atomic<bool> has_compiled = false;  // NVRTC in this process

/// The search for NVRTC of a process that has not opened it.
const std::string& first_search() {
    static const auto* const kSearch = new std::string(nvrtc_search());
    return *kSearch;
}

const Nvrtc& opened_nvrtc() {
    static const Nvrtc* const kNvrtc = [] {
        first_search();
        auto* nvrtc = new Nvrtc;  // never destroyed, as the library is never closed
        open_nvrtc(*nvrtc);
        is_nvrtc_open = true;
        return nvrtc;
    }();
    return *kNvrtc;
}

const Nvrtc& nvrtc_or_throw() {
    const Nvrtc& nvrtc = opened_nvrtc();
    if (!nvrtc.report.found()) {
        user_error("cuda",
                   "expected NVRTC, which compiles kernels, but found none: {}. To get it: {}",
                   fmt::join(nvrtc.report.tried, "; "), nvrtc.report.advice);
    }
    return nvrtc;
}

/// The version of the NVRTC that compiles kernels in this process, which need not be open yet.
std::string nvrtc_version() {
    if (is_nvrtc_open) return nvrtc_or_throw().report.version;
    static const std::string kVersion = [] {
        if (auto known = remembered_version(first_search())) return *std::move(known);
        const LibraryReport& report = nvrtc_or_throw().report;
        remember_version(first_search(), report);
        return report.version;
    }();
    return kVersion;
}

/// Keeps what did not compile for inspection: the source, its headers and the log, in a folder of
/// their own. Returns the path of the source, or why it was not kept.
std::string keep_source(const CompileRequest& request, std::string_view log) {
    namespace fs = std::filesystem;
    std::string everything = request.source + request.arch;
    for (const Header& header : request.headers) everything += header.text;
    if (const std::optional<std::string> why = distrust(kernel_cache_folder()))
        return "not kept: " + *why;
    create_private_folders(failed_sources_folder());
    const fs::path folder = failed_sources_folder() / content_hash(everything).substr(0, 12);
    bool kept = true;
    const auto write = [&](const fs::path& name, std::string_view text) {
        std::error_code error;
        fs::create_directories((folder / name).parent_path(), error);
        std::ofstream file(folder / name);
        file << text;
        file.close();
        kept = kept && !file.fail();
    };
    write(request.name, request.source);
    write("log.txt", log);
    for (const Header& header : request.headers) write(header.name, header.text);
    const std::string path = (folder / request.name).string();
    return kept ? path : fmt::format("not kept: {} cannot be written", path);
}

[[noreturn]] void fail(const CompileRequest& request, std::string_view reason,
                       std::string_view log) {
    if (!request.users.empty()) {
        user_error(request.users, "expected CUDA C++ that compiles for {} but got {} of {}:\n{}",
                   request.arch, reason, request.name, log);
    }
    throw InternalError(fmt::format("[cuda] compiling {} for {}: {}\nsource: {}\nlog:\n{}",
                                    request.name, request.arch, reason, keep_source(request, log),
                                    log));
}

/// The number right before `words` in a line; 0 when there is none.
int number_before(std::string_view line, std::string_view words) {
    const std::size_t at = line.find(words);
    if (at == std::string_view::npos || at == 0) return 0;
    std::size_t begin = at;
    while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
    return begin == at ? 0 : std::atoi(std::string(line.substr(begin, at - begin)).c_str());
}

/// Reads ptxas's resource lines and the first warning that costs much performance.
void read_log(Compiled& compiled) {
    std::string_view rest = compiled.log;
    while (!rest.empty()) {
        const std::size_t end = std::min(rest.find('\n'), rest.size());
        const std::string_view line = rest.substr(0, end);
        rest.remove_prefix(std::min(end + 1, rest.size()));
        compiled.spill_bytes += number_before(line, " bytes spill stores");
        compiled.spill_bytes += number_before(line, " bytes spill loads");
        if (line.find("Used ") != std::string_view::npos) {
            compiled.registers = std::max(compiled.registers, number_before(line, " registers"));
        }
        // C75xx: wgmma serialised or setmaxnreg ignored. Either compiles, at half the speed.
        if (compiled.serious_warning.empty() && line.find("(C75") != std::string_view::npos)
            compiled.serious_warning = line;
    }
}

/// Cubins are ELF files.
bool looks_like_cubin(std::string_view bytes) {
    return bytes.starts_with(
        "\x7f"
        "ELF");
}

/// A cubin and the symbols of the request's kernels.
struct Cached {
    std::string cubin;
    std::vector<std::string> symbols;
};

/// A compilation finished or under way in this process. The shared future lets threads that ask for
/// the same kernel wait for one compilation.
struct Compilation {
    std::shared_ptr<std::promise<std::shared_ptr<const Cached>>> promise;
    std::shared_future<std::shared_ptr<const Cached>> result;
};
using MemoryCache = Memo<std::string, Compilation>;

MemoryCache& memory_cache() {
    constexpr std::size_t kMost = 256;  // a cubin has some 100 KB; the disk cache keeps all of them
    static auto* const kCache =
        new MemoryCache("compiled kernels", kMost, [](const Compilation& compilation) {
            const bool done =
                compilation.result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
            try {
                return done ? compilation.result.get()->cubin.size() : 0;
            } catch (const std::exception&) {
                return std::size_t{0};  // the compilation failed
            }
        });
    return *kCache;
}

/// Of names and texts. These are 200 KB for a kernel of the Hopper engine, so they are not joined.
std::string hash_of(const std::vector<Header>& headers) {
    constexpr std::string_view kEnd("\0", 1);
    std::vector<std::string_view> pieces;
    for (const Header& header : headers)
        pieces.insert(pieces.end(), {header.name, kEnd, header.text, kEnd});
    return content_hash(pieces);
}

/// The key on disk of the cubin with a source key.
std::string disk_key(const std::string& source) {
    return fmt::format("{}nvrtc {}\n", source, nvrtc_version());
}

/// The key on disk of a cubin's symbols, which are one line each.
std::string symbols_key(const std::string& key) {
    return key + "symbols\n";
}

std::optional<Cached> read_from_disk(const CompileRequest& request, const std::string& source) {
    const DiskCache disk(kernel_cache_folder());
    const std::string key = disk_key(source);
    std::optional<std::string> bytes = disk.get(key);
    if (!bytes) return std::nullopt;
    if (!looks_like_cubin(*bytes)) {
        debug_log("cuda", "{}: the entry on the disk is no cubin and is dropped", request.name);
        disk.drop(key);
        return std::nullopt;
    }
    debug_log("cuda", "{} for {} comes from the disk", request.name, request.arch);
    Cached cached{std::move(*bytes), {}};
    if (request.kernels.empty()) return cached;
    std::string_view rest;
    const std::optional<std::string> lines = disk.get(symbols_key(key));
    for (rest = lines ? *lines : std::string_view(); !rest.empty();) {
        const std::size_t end = std::min(rest.find('\n'), rest.size());
        cached.symbols.emplace_back(rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    if (cached.symbols.size() != request.kernels.size()) return std::nullopt;
    return cached;
}

/// Kernels of the pack that the driver refused, by source key.
Memo<std::string, bool>& refused() {
    static auto* const kRefused =
        new Memo<std::string, bool>("kernels of the pack that the driver refused", 4096);
    return *kRefused;
}

/// Compiles, whatever the limits are.
Compiled run_nvrtc(const CompileRequest& request) {
    const Nvrtc& nvrtc = nvrtc_or_throw();
    std::vector<const char*> texts, names, options;
    for (const auto* headers : {&embedded_headers(), &request.headers}) {
        for (const Header& header : *headers) {
            names.push_back(header.name.c_str());
            texts.push_back(header.text.c_str());
        }
    }
    const std::string arch = "--gpu-architecture=" + request.arch;
    options = {arch.c_str(), "--std=c++20", "-default-device", "--ptxas-options=-v"};
    // NVRTC 12.9 and later have a cache of their own, whose hits hide ptxas's warnings.
    if (nvrtc.major > 12 || nvrtc.minor >= 9) options.push_back("--no-cache");
    for (const std::string& option : request.options) options.push_back(option.c_str());

    Program program = nullptr;
    const int created =
        nvrtc.nvrtcCreateProgram(&program, request.source.c_str(), request.name.c_str(),
                                 static_cast<int>(names.size()), texts.data(), names.data());
    if (created != 0) fail(request, nvrtc.nvrtcGetErrorString(created), "");
    const auto destroy = [&nvrtc](void* handle) { nvrtc.nvrtcDestroyProgram(&handle); };
    const std::unique_ptr<void, decltype(destroy)> owner(program, destroy);

    for (const std::string& kernel : request.kernels) {
        const int added = nvrtc.nvrtcAddNameExpression(program, kernel.c_str());
        if (added != 0) fail(request, nvrtc.nvrtcGetErrorString(added), "");
    }
    const int status =
        nvrtc.nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data());
    has_compiled = true;
    const auto read = [&](auto size_of_text, auto text) {
        std::size_t size = 0;
        if (size_of_text(program, &size) != 0 || size == 0) return std::string();
        std::string bytes(size, '\0');
        if (text(program, bytes.data()) != 0) bytes.clear();
        return bytes;
    };
    const auto without_nul = [](std::string text) {
        text.resize(std::min(text.find('\0'), text.size()));
        return text;
    };
    Compiled compiled;
    compiled.log = without_nul(read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog));
    if (status != 0) fail(request, nvrtc.nvrtcGetErrorString(status), compiled.log);
    compiled.cubin = read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN);
    compiled.ptx = without_nul(read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX));
    if (!looks_like_cubin(compiled.cubin)) fail(request, "NVRTC gave no cubin", compiled.log);

    for (const std::string& kernel : request.kernels) {
        const char* symbol = nullptr;
        const int found = nvrtc.nvrtcGetLoweredName(program, kernel.c_str(), &symbol);
        if (found != 0) fail(request, nvrtc.nvrtcGetErrorString(found), compiled.log);
        compiled.symbols.emplace_back(symbol);
    }
    read_log(compiled);
    return compiled;
}

/// Compiles a program of nothing if nothing was compiled yet, whatever comes of that.
bool initialise_nvrtc(const std::string& arch) {
    if (has_compiled) return true;
    CompileRequest nothing;
    nothing.name = "nothing";
    nothing.arch = arch;
    nothing.source = "extern \"C\" __global__ void nothing() {}\n";
    try {
        run_nvrtc(nothing);
    } catch (const std::exception& error) {
        debug_log("cuda", "NVRTC compiled nothing: {}", error.what());
        return false;
    }
    return true;
}

/// What makes the cubin slower than a request allows, or nothing.
std::string broken_limit(const CompileRequest& request, const Compiled& compiled) {
    if (!request.spill_limit_bytes) return "";
    if (!compiled.serious_warning.empty()) return compiled.serious_warning;
    if (compiled.spill_bytes <= *request.spill_limit_bytes) return "";
    return fmt::format("expected at most {} spilled bytes but got {}", *request.spill_limit_bytes,
                       compiled.spill_bytes);
}

std::shared_ptr<const Cached> read_or_compile(const CompileRequest& request,
                                              const std::string& source) {
    if (request.kernels.empty() && !refused().find(source)) {
        if (std::optional<std::string> cubin = installed_kernel_pack().find(source)) {
            debug_log("cuda", "{} for {} comes with the library", request.name, request.arch);
            return std::make_shared<const Cached>(Cached{*std::move(cubin), {}});
        }
    }
    if (std::optional<Cached> cached = read_from_disk(request, source))
        return std::make_shared<const Cached>(*std::move(cached));

    const auto start = std::chrono::steady_clock::now();
    Compiled compiled = run_nvrtc(request);
    if (const std::string broken = broken_limit(request, compiled); !broken.empty()) {
        debug_log("cuda", "{} for {} will be slow: {}", request.name, request.arch, broken);
    }
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - start;
    debug_log("cuda", "{} for {} compiled in {:.0f} ms: {} registers, {} bytes spilled",
              request.name, request.arch, taken.count(), compiled.registers, compiled.spill_bytes);
    const DiskCache disk(kernel_cache_folder());
    remember_version(first_search(), nvrtc_report());  // what was remembered may be another
    const std::string key = disk_key(source);          // of the NVRTC that is open now
    disk.put(key, compiled.cubin);
    if (!compiled.symbols.empty()) {
        disk.put(symbols_key(key), fmt::format("{}", fmt::join(compiled.symbols, "\n")));
    }
    return std::make_shared<const Cached>(
        Cached{std::move(compiled.cubin), std::move(compiled.symbols)});
}

/// A compilation on a thread of its own.
struct Background {
    std::string key;  ///< source_key of the request
    std::shared_ptr<std::atomic<bool>> done;
    std::jthread thread;
};
struct BackgroundThreads {
    std::mutex mutex;
    std::vector<Background> all;
};
std::atomic<BackgroundThreads*> begun_threads = nullptr;  // null before the first

/// Objects with static storage are destroyed in the reverse order of their construction. NVRTC
/// constructs its own while it compiles for the first time, so it does that before these threads,
/// which exit() waits for, exist; otherwise a process that ends while they compile crashes.
BackgroundThreads& background_threads(const std::string& arch) {
    [[maybe_unused]] static const bool kInitialised = initialise_nvrtc(arch);
    static BackgroundThreads threads;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
    begun_threads = &threads;
    return threads;
}

/// A request's cubin in this process; threads that ask at once wait for one compilation.
std::shared_ptr<const Cached> cached_of(const CompileRequest& request, const std::string& key) {
    MemoryCache& cache = memory_cache();
    const auto promise = std::make_shared<std::promise<std::shared_ptr<const Cached>>>();
    const Compilation compilation = cache.get(key, [&] {
        return Compilation{promise, promise->get_future().share()};
    });
    if (compilation.promise == promise) {
        try {
            promise->set_value(read_or_compile(request, key));
        } catch (...) {
            promise->set_exception(std::current_exception());
            cache.drop(key);  // a later call may find NVRTC or disk space again
        }
    }
    return compilation.result.get();
}

/// The same, with a notice for whoever waits.
std::shared_ptr<const Cached> awaited(const CompileRequest& request) {
    const std::string key = source_key(request);
    if (const auto known = memory_cache().find(key);
        known && known->result.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
        return known->result.get();
    }
    const WaitNotice notice(fmt::format("compiling {} for {}", request.name, request.arch));
    return cached_of(request, key);
}

bool is_there(const CompileRequest& request, const std::string& source) {
    if (const auto known = memory_cache().find(source))
        return known->result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    if (request.kernels.empty() && installed_kernel_pack().contains(source)) return true;
    std::optional<Cached> cached = read_from_disk(request, source);
    if (!cached) return false;
    std::promise<std::shared_ptr<const Cached>> read;
    read.set_value(std::make_shared<const Cached>(*std::move(cached)));
    memory_cache().put(source, {nullptr, read.get_future().share()});
    return true;
}

}  // namespace

const LibraryReport& nvrtc_report() {
    return opened_nvrtc().report;
}

std::filesystem::path kernel_cache_folder() {
    return cache_root() / "kernels";
}

std::filesystem::path failed_sources_folder() {
    return kernel_cache_folder() / "failed";
}

Compiled compile(const CompileRequest& request) {
    Compiled compiled = run_nvrtc(request);
    const std::string broken = broken_limit(request, compiled);
    if (!broken.empty()) fail(request, broken, compiled.log);
    return compiled;
}

std::string source_key(const CompileRequest& request) {
    static const std::string kEmbeddedHash = hash_of(embedded_headers());
    const std::string kernels = request.kernels.empty()
                                    ? ""
                                    : fmt::format("kernels {}\n", fmt::join(request.kernels, "; "));
    return fmt::format("{}\narch {}\noptions {}\nlimit {}\nsource {}\nheaders {} {}\n{}",
                       request.name, request.arch, fmt::join(request.options, " "),
                       request.spill_limit_bytes.value_or(-1), content_hash(request.source),
                       hash_of(request.headers), kEmbeddedHash, kernels);
}

std::string cache_key(const CompileRequest& request) {
    return disk_key(source_key(request));
}

std::shared_ptr<const std::string> cubin_of(const CompileRequest& request) {
    const std::shared_ptr<const Cached> cached = awaited(request);
    return {cached, &cached->cubin};
}

std::string symbol_of(const CompileRequest& request, const std::string& kernel) {
    const auto found = std::find(request.kernels.begin(), request.kernels.end(), kernel);
    if (found == request.kernels.end()) return kernel;
    const std::shared_ptr<const Cached> cached = cached_of(request, source_key(request));
    return cached->symbols.at(found - request.kernels.begin());
}

bool is_compiled(const CompileRequest& request) {
    return is_there(request, source_key(request));
}

bool is_compiling(const CompileRequest& request) {
    const std::string key = source_key(request);
    BackgroundThreads* const threads = begun_threads;
    if (threads == nullptr) return false;
    const std::lock_guard lock(threads->mutex);
    return std::any_of(threads->all.begin(), threads->all.end(), [&](const Background& work) {
        return work.key == key && !work.done->load();
    });
}

void compile_in_background(CompileRequest request) {
    std::string key = source_key(request);
    try {
        if (is_there(request, key)) return;
    } catch (const UserError&) {
        return;  // no NVRTC, as the call that needs the cubin will say
    }
    BackgroundThreads& threads = background_threads(request.arch);
    const std::lock_guard lock(threads.mutex);
    std::erase_if(threads.all, [](const Background& work) { return work.done->load(); });
    auto done = std::make_shared<std::atomic<bool>>(false);
    const auto work = [done, request = std::move(request), key] {
        try {
            cached_of(request, key);
        } catch (const std::exception& error) {
            debug_log("cuda", "{}, compiled ahead: {}", request.name, error.what());
        }
        done->store(true);
    };
    try {
        threads.all.push_back({std::move(key), done, std::jthread(work)});
    } catch (const std::system_error& error) {  // no more threads: the call that needs it compiles
        debug_log("cuda", "nothing is compiled ahead: {}", error.what());
    }
}

std::size_t background_compilations() {
    BackgroundThreads* const threads = begun_threads;
    if (threads == nullptr) return 0;
    const std::lock_guard lock(threads->mutex);
    std::erase_if(threads->all, [](const Background& work) { return work.done->load(); });
    return threads->all.size();
}

void forget_cubin(const CompileRequest& request) {
    const std::string key = source_key(request);
    refused().put(key, true);
    if (nvrtc_report().found()) DiskCache(kernel_cache_folder()).drop(disk_key(key));
    memory_cache().drop(key);
}

}  // namespace tilewright::cuda
