// The CUDA runtime: search, compilation and its cache and, on a GPU, memory, launches, capture.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

#include "cuda/runtime/kernel.h"
#include "cuda/runtime/kernel_pack.h"
#include "cuda/runtime/memory.h"
#include "cuda/runtime/tensor_map.h"
#include "cuda/runtime/wait_notice.h"
#include "support/disk_cache.h"
#include "tests/cuda/graph.h"
#include "tests/cuda/test_support.h"
#include "tests/support/throws.h"

namespace tilewright::cuda {
namespace {
namespace fs = std::filesystem;

using testing::throws;

CompileRequest add_one(const std::string& marker = "") {
    CompileRequest request;
    request.name = "add_one.cu";
    request.arch = device_count() > 0 ? device_info(0).arch() : "sm_90a";
    request.source = "// " + marker + R"(
extern "C" __global__ void add_one(float* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += 1.0f;
})";
    return request;
}

/// The text of the exception that `action` throws; empty if it throws none.
template <typename Exception, typename Action>
std::string message_of(Action&& action) {
    try {
        action();
    } catch (const Exception& error) {
        return error.what();
    }
    return "";
}

TEST(Library, ReportsEveryFailedAttempt) {
    LibraryReport report;
    const Library library = Library::open({"libno-such-library.so.1", "/nowhere/lib.so"}, report);
    EXPECT_FALSE(library);
    EXPECT_FALSE(report.found());
    ASSERT_EQ(report.tried.size(), 2u);
    EXPECT_NE(report.tried[0].find("libno-such-library.so.1"), std::string::npos);
    EXPECT_EQ(library.symbol("anything"), nullptr);
}

TEST(Library, SearchesInTheDocumentedOrder) {
    const fs::path root = fs::path(testing::TempDir()) / "tw_nvrtc_search";
    fs::remove_all(root);
    const fs::path toolkit = root / "toolkit/lib64", wheel = root / "site/nvidia/cu13/lib";
    const fs::path venv = root / "venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib";
    for (const fs::path& folder : {toolkit, wheel, venv}) {
        fs::create_directories(folder);
        std::ofstream(folder / "libnvrtc.so.13") << "x";
    }
    std::ofstream(toolkit / "libnvrtc.so.12") << "x";
    ::setenv("CUDA_HOME", (root / "toolkit").c_str(), 1);
    ::setenv("VIRTUAL_ENV", (root / "venv").c_str(), 1);
    ::setenv("PYTHONPATH", ("/nowhere:" + (root / "site").string()).c_str(), 1);
    const std::vector<std::string> order = nvrtc_candidates();
    const auto place = [&](const fs::path& path) {
        return std::find(order.begin(), order.end(), path.string()) - order.begin();
    };
    const auto count = static_cast<std::ptrdiff_t>(order.size());
    EXPECT_LT(place("libnvrtc.so.13"), place(toolkit / "libnvrtc.so.13"));
    EXPECT_LT(place(toolkit / "libnvrtc.so.13"), place(venv / "libnvrtc.so.13"));
    EXPECT_LT(place(venv / "libnvrtc.so.13"), place(wheel / "libnvrtc.so.13"));
    EXPECT_LT(place(wheel / "libnvrtc.so.13"), count);
    EXPECT_EQ(place(toolkit / "libnvrtc.so.12"), count) << "a folder gives its newest only";

    ::setenv("TILEWRIGHT_NVRTC", wheel.c_str(), 1);
    EXPECT_EQ(nvrtc_candidates(), std::vector<std::string>{wheel / "libnvrtc.so.13"});
    ::setenv("TILEWRIGHT_NVRTC", "/some/libnvrtc.so", 1);
    EXPECT_EQ(nvrtc_candidates(), std::vector<std::string>{"/some/libnvrtc.so"});
    for (const char* variable : {"CUDA_HOME", "VIRTUAL_ENV", "PYTHONPATH", "TILEWRIGHT_NVRTC"}) {
        ::unsetenv(variable);
    }
    fs::remove_all(root);
}

TEST(Probe, SaysWhatIsMissingAndHowToGetIt) {
    const Probe found = probe();
    const std::string text = found.text();
    for (const LibraryReport* report : {&found.driver, &found.nvrtc}) {
        EXPECT_EQ(report->found(), report->advice.empty()) << report->name;
        EXPECT_NE(text.find(report->found() ? report->path : report->advice), std::string::npos);
    }
    EXPECT_EQ(static_cast<int>(found.devices.size()), device_count());
    EXPECT_NE(text.find("kernel cache: "), std::string::npos);
}

TEST(Probe, SaysWhatKernelsCanBeHere) {
    const auto text = [](bool nvrtc, bool gpu, const char* nvdisasm) {
        Probe found;
        if (nvrtc) found.nvrtc.path = "/lib/libnvrtc.so";
        if (gpu) found.devices.emplace_back();
        found.nvdisasm = nvdisasm;
        return found.text();
    };
    const auto says = [](const std::string& report, const char* part) {
        return report.find(part) != std::string::npos;
    };
    EXPECT_TRUE(says(text(true, false, ""), "no GPU: CUDA kernels can be generated and compiled"));
    EXPECT_TRUE(
        says(text(false, false, ""), "no NVRTC, no GPU: CUDA kernels can be generated, not"));
    EXPECT_TRUE(says(text(false, true, ""), "no NVRTC: CUDA kernels can be generated, not"));
    EXPECT_FALSE(says(text(true, true, ""), "CUDA kernels"));
    EXPECT_TRUE(says(text(true, true, ""), "nvdisasm: not found"));
    EXPECT_TRUE(says(text(true, true, "/bin/nvdisasm"), "nvdisasm: /bin/nvdisasm"));
}

TEST(Driver, ErrorsThatLoseTheContextAskForARestart) {
    Driver cuda;
    cuda.cuGetErrorName = [](int, const char** name) { return *name = "NAME", 0; };
    cuda.cuGetErrorString = [](int, const char** text) { return *text = "text", 0; };
    EXPECT_NO_THROW(cuda.check(0, "waiting"));
    for (const auto& [status, sticky] :
         {std::pair(2, false), std::pair(700, true), std::pair(709, true), std::pair(719, true)}) {
        try {
            cuda.check(status, "waiting");
            FAIL();
        } catch (const tilewright::CudaError& error) {  // the public header's
            const std::string message = error.what();
            EXPECT_EQ(error.code, status);
            EXPECT_NE(message.find("[cuda] waiting failed: text (NAME)"), std::string::npos);
            EXPECT_EQ(message.find("restart the process") != std::string::npos, sticky) << status;
        }
    }
}

TEST(Device, WithoutADriverTheMessageSaysSo) {
    if (find_driver() != nullptr) GTEST_SKIP() << "NOT RUN: this machine has a driver";
    EXPECT_NE(message_of<UserError>([] { driver(); }).find("expected a CUDA driver"),
              std::string::npos);
    EXPECT_NE(message_of<UserError>([] { Buffer buffer(0, 16); }).find("libcuda.so.1"),
              std::string::npos);
}

TEST(Compiler, ReportsResources) {
    TW_REQUIRE_NVRTC();
    const Compiled compiled = compile(add_one());
    EXPECT_GT(compiled.registers, 0);
    EXPECT_EQ(compiled.spill_bytes, 0);
    EXPECT_NE(compiled.ptx.find(".entry add_one"), std::string::npos);
    EXPECT_NE(compiled.log.find("ptxas info"), std::string::npos);
}

TEST(Compiler, AFailureCarriesTheWholeLogAndTheKeptSource) {
    TW_REQUIRE_NVRTC();
    const testing_support::OwnCacheFolder folder;
    CompileRequest request = add_one();
    request.source += "\nint first_error = no_such_name;\nint second_error = nor_this;";
    request.headers = {{"some/folder/config.cuh", "constexpr int kSize = 3;"}};
    const std::string text = message_of<InternalError>([&] { compile(request); });
    EXPECT_NE(text.find("no_such_name"), std::string::npos) << text;
    EXPECT_NE(text.find("nor_this"), std::string::npos);
    const std::size_t begin = text.find("source: ") + 8;
    const fs::path kept = text.substr(begin, text.find('\n', begin) - begin);
    std::ifstream file(kept);
    const std::string source{std::istreambuf_iterator<char>(file), {}};
    EXPECT_NE(source.find("add_one"), std::string::npos) << kept;
    EXPECT_TRUE(fs::exists(kept.parent_path() / "some/folder/config.cuh"));
    EXPECT_TRUE(fs::exists(kept.parent_path() / "log.txt"));
}

// Also where nothing was compiled before: exit() waits for the thread, which NVRTC must survive.
TEST(CompilerDeathTest, AProcessMayEndWhileAThreadCompilesInTheBackground) {
    TW_REQUIRE_NVRTC();
    const testing_support::OwnCacheFolder folder;
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    CompileRequest request = add_one("at exit");
    std::string body;
    for (int i = 0; i < 3000; ++i) body += fmt::format("x = __expf(x * y + {}.5f); y += x;\n", i);
    request.source += fmt::format(
        "\nextern \"C\" __global__ void large(float* p) {{ float x = p[0], y = p[1];\n{}p[0] = y; "
        "}}",
        body);
    EXPECT_EXIT(
        {
            compile_in_background(request);
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            std::exit(0);
        },
        testing::ExitedWithCode(0), "");
}

TEST(Compiler, SpillsBeyondTheLimitAreAnError) {
    TW_REQUIRE_NVRTC();
    const testing_support::OwnCacheFolder folder;
    CompileRequest request;
    request.name = "spills.cu";
    request.arch = "sm_90a";
    request.source = R"(
extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* x) {
    float v[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) v[i] = x[i * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; ++i) x[(63 - i) * 1024 + threadIdx.x] = v[i] * v[(i * 7) % 64];
})";
    const Compiled compiled = compile(request);
    ASSERT_GT(compiled.spill_bytes, 0) << compiled.log;
    request.spill_limit_bytes = compiled.spill_bytes;
    EXPECT_NO_THROW(compile(request));
    request.spill_limit_bytes = compiled.spill_bytes - 1;
    EXPECT_NE(message_of<InternalError>([&] { compile(request); }).find("spilled bytes"),
              std::string::npos);
    EXPECT_FALSE(cubin_of(request)->empty());  // for a call, slow is better than none
}

// An accumulator touched between issue and wait makes ptxas serialise every wgmma of the kernel.
TEST(Compiler, SerialisedWgmmaIsAnErrorInOurKernels) {
    TW_REQUIRE_NVRTC();
    const testing_support::OwnCacheFolder folder;
    CompileRequest request;
    request.name = "serialised.cu";
    request.arch = "sm_90a";
    request.source = R"(
extern "C" __global__ void __launch_bounds__(128, 1) serialised(float* x, unsigned long long a) {
    float d[4] = {x[0], x[1], x[2], x[3]};
    asm volatile("wgmma.fence.sync.aligned;");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(a));
    asm volatile("wgmma.commit_group.sync.aligned;");
    x[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
    asm volatile("wgmma.wait_group.sync.aligned 0;");
})";
    ASSERT_NO_THROW(compile(request));
    request.spill_limit_bytes = 0;
    EXPECT_NE(message_of<InternalError>([&] { compile(request); }).find("C75"), std::string::npos);
    EXPECT_FALSE(cubin_of(request)->empty());
}

TEST(Cache, AKeyChangesWithEverythingThatChangesTheCubin) {
    TW_REQUIRE_NVRTC();
    const std::string base = cache_key(add_one());
    EXPECT_EQ(base, cache_key(add_one()));
    CompileRequest other = add_one("other");
    EXPECT_NE(cache_key(other), base);
    other = add_one();
    other.arch = "sm_80";
    EXPECT_NE(cache_key(other), base);
    other = add_one();
    other.options = {"-DX"};
    EXPECT_NE(cache_key(other), base);
    other = add_one();
    other.headers = {{"a.cuh", "text"}};
    EXPECT_NE(cache_key(other), base);
    CompileRequest header = other;
    header.headers[0].text = "texu";
    EXPECT_NE(cache_key(header), cache_key(other));
    EXPECT_NE(source_key(header), source_key(other));
    EXPECT_NE(source_key(header), source_key(add_one()));
}

TEST(Cache, OtherProcessesReadTheDiskAndBadEntriesAreRebuilt) {
    TW_REQUIRE_NVRTC();
    const testing_support::OwnCacheFolder folder;
    const CompileRequest request = add_one("disk");
    const std::string cubin = *cubin_of(request);
    const DiskCache disk(kernel_cache_folder());
    ASSERT_EQ(disk.get(cache_key(request)), cubin);

    // A cubin that another process cached is used...
    const CompileRequest planted = add_one("planted");
    disk.put(cache_key(planted), cubin);
    EXPECT_EQ(*cubin_of(planted), cubin);
    // ... unless it is not a cubin, ...
    const CompileRequest lying = add_one("lying");
    disk.put(cache_key(lying), "not a cubin at all");
    EXPECT_TRUE(
        cubin_of(lying)->starts_with("\x7f"
                                     "ELF"));
    EXPECT_TRUE(disk.get(cache_key(lying))
                    ->starts_with("\x7f"
                                  "ELF"));
    // ... or was forgotten because the driver refused it.
    forget_cubin(planted);
    EXPECT_EQ(disk.get(cache_key(planted)), std::nullopt);
    EXPECT_TRUE(
        cubin_of(planted)->starts_with("\x7f"
                                       "ELF"));
}

TEST(Cache, ThreadsShareOneCompilation) {
    TW_REQUIRE_NVRTC();
    const testing_support::OwnCacheFolder folder;
    std::vector<std::shared_ptr<const std::string>> cubins(4);
    std::vector<std::thread> threads;
    for (auto& cubin : cubins) {
        threads.emplace_back([&cubin] { cubin = cubin_of(add_one("threads")); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& cubin : cubins) EXPECT_EQ(cubin.get(), cubins[0].get());
}

TEST(Cache, WhatIsCompiledAheadIsThereWhenItIsNeeded) {
    TW_REQUIRE_NVRTC();
    const testing_support::OwnCacheFolder folder;
    const CompileRequest request = add_one("ahead");
    compile_in_background(request);
    const std::shared_ptr<const std::string> cubin = cubin_of(request);
    EXPECT_EQ(cubin.get(), cubin_of(request).get());
    // A failure is reported by the call that needs the cubin.
    CompileRequest broken = add_one("broken ahead");
    broken.source += "no C++";
    compile_in_background(broken);
    EXPECT_THAT([&] { cubin_of(broken); }, throws<std::exception>("NVRTC_ERROR_COMPILATION"));
    EXPECT_THAT([&] { cubin_of(broken); }, throws<std::exception>("NVRTC_ERROR_COMPILATION"));
}

TEST(KernelPack, GivesBackWhatItWasGiven) {
    const fs::path file = fs::path(testing::TempDir()) / "tw_kernels.pack";
    std::map<std::string, std::string> cubins;
    for (int i = 0; i < 20; ++i) {
        std::string cubin =
            "\x7f"
            "ELF";
        for (int n = 0; n < 1000 * i; ++n) cubin += static_cast<char>(n * n / (i + 1));
        cubins["key " + std::to_string(i)] = cubin;
    }
    KernelPack::write(file, "13.0", cubins);
    const KernelPack pack(file);
    EXPECT_EQ(pack.size(), cubins.size());
    EXPECT_EQ(pack.compiler(), "13.0");
    for (const auto& [key, cubin] : cubins) {
        EXPECT_TRUE(pack.contains(key));
        EXPECT_EQ(pack.find(key), cubin);
    }
    EXPECT_FALSE(pack.contains("another key"));
    EXPECT_EQ(pack.find("another key"), std::nullopt);
    EXPECT_EQ(KernelPack("").size(), 0u);
    fs::remove(file);
}

TEST(KernelPack, RefusesOtherFilesAndLeavesOutDamagedKernels) {
    const fs::path file = fs::path(testing::TempDir()) / "tw_damaged.pack";
    const auto refused = [&] { return message_of<UserError>([&] { KernelPack pack(file); }); };
    fs::remove(file);
    EXPECT_NE(refused().find("it cannot be read"), std::string::npos);
    std::ofstream(file) << "something else that is long enough to be read as a pack of kernels";
    EXPECT_NE(refused().find("it is none of this version"), std::string::npos);

    KernelPack::write(file, "13.0", {{"a", std::string(10000, 'a')}, {"b", "short"}});
    std::string bytes;
    {
        std::ifstream in(file, std::ios::binary);
        bytes.assign(std::istreambuf_iterator<char>(in), {});
    }
    const auto put = [&](const std::string& text) {
        std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
    };
    put(bytes.substr(0, 100));
    EXPECT_NE(refused().find("it ends in its index"), std::string::npos);
    put(bytes.substr(0, bytes.size() - 1));
    EXPECT_NE(refused().find("a kernel lies beyond its end"), std::string::npos);
    // The last byte of the last stream belongs to its checksum.
    std::string flipped = bytes;
    flipped.back() = static_cast<char>(flipped.back() ^ 1);
    put(flipped);
    const KernelPack pack(file);
    EXPECT_EQ(pack.find("a").has_value() + pack.find("b").has_value(), 1);
    fs::remove(file);
}

TEST(WaitNotice, SpeaksUpAfterItsDelayAlone) {
    std::ostringstream quick, slow;
    { const WaitNotice notice("compiling a.cu", quick, 60); }
    EXPECT_EQ(quick.str(), "");
    {
        const WaitNotice notice("compiling a.cu", slow, 0.01);
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    EXPECT_NE(slow.str().find("tilewright: compiling a.cu ...\n"), std::string::npos);
    EXPECT_NE(slow.str().find("tilewright: compiling a.cu took 0."), std::string::npos);
}

TEST(Cache, AnUnwritableFolderOnlyCostsTime) {
    TW_REQUIRE_NVRTC();
    ::setenv("TILEWRIGHT_CACHE_DIR", "/proc/no_such_folder", 1);
    EXPECT_TRUE(cubin_of(add_one("unwritable"))
                    ->starts_with("\x7f"
                                  "ELF"));
    ::unsetenv("TILEWRIGHT_CACHE_DIR");
}

TEST(TensorMap, RefusesWhatTmaCannotDo) {
    TensorMapRequest good;
    good.rank = 2;
    good.address = 1024;
    good.extents = {64, 100};
    good.strides = {0, 128};
    good.box = {64, 64};
    const auto refusal = [](const TensorMapRequest& request) {
        return message_of<UserError>([&] { encode_tensor_map(request, "q"); });
    };
    TensorMapRequest bad = good;
    bad.address = 8;
    EXPECT_NE(refusal(bad).find("q: expected an address that is a multiple of 16"),
              std::string::npos);
    bad = good;
    bad.strides[1] = 100;
    EXPECT_NE(refusal(bad).find("multiples of 16"), std::string::npos);
    bad = good;
    bad.box[1] = 257;
    EXPECT_NE(refusal(bad).find("box extents"), std::string::npos);
    bad = good;
    bad.extents[1] = 0;
    EXPECT_NE(refusal(bad).find("extents from 1"), std::string::npos);
}

class Gpu : public testing::Test {
  protected:
    void SetUp() override {
        TW_REQUIRE_GPU();
        TW_REQUIRE_NVRTC();
    }
};

TEST_F(Gpu, LaunchesAndCapturesInAGraph) {
    const testing_support::OwnCacheFolder folder;
    const int n = 1000;
    std::vector<float> values(n, 0.0f);
    Buffer buffer(0, n * sizeof(float));
    buffer.upload(values.data(), buffer.bytes());
    const Kernel kernel = load_kernel(add_one(), "add_one", 0, 0);
    EXPECT_GT(kernel.registers, 0);
    DeviceAddress address = buffer.address();
    int count = n;
    void* parameters[] = {&address, &count};
    LaunchShape shape;
    shape.grid = {8, 1, 1};
    shape.block = {128, 1, 1};
    const Stream stream(0);
    launch(kernel, shape, parameters, stream.handle());
    stream.synchronize();

    const testing_support::Graph graph(
        stream, [&] { launch(kernel, shape, parameters, stream.handle()); },
        testing_support::Capture::all_threads);
    for (int i = 0; i < 3; ++i) graph.launch(stream);
    stream.synchronize();
    buffer.download(values.data(), buffer.bytes());
    for (float value : values) ASSERT_EQ(value, 4.0f);
}

TEST_F(Gpu, ACubinTheDriverRefusesIsCompiledAgain) {
    const testing_support::OwnCacheFolder folder;
    const CompileRequest request = add_one("refused");
    const DiskCache disk(kernel_cache_folder());
    disk.put(cache_key(request), std::string("\x7f"
                                             "ELF and then nothing a driver could load"));
    EXPECT_NE(load_kernel(request, "add_one", 0, 0).function, nullptr);
}

TEST_F(Gpu, BadRequestsAreRefusedByName) {
    EXPECT_NE(message_of<UserError>([] { device_info(99); }).find("got 99"), std::string::npos);
    int on_host = 0;
    const auto host = reinterpret_cast<DeviceAddress>(&on_host);
    EXPECT_NE(message_of<UserError>([&] { device_of(host, "query"); }).find("query: expected"),
              std::string::npos);
    EXPECT_NE(message_of<UserError>([] {
                  load_kernel(add_one(), "add_one", 1 << 20, 0);
              }).find("shared memory"),
              std::string::npos);
    EXPECT_NE(
        message_of<CudaError>([] { Buffer buffer(0, std::size_t{1} << 46); }).find("out of memory"),
        std::string::npos);
    Buffer buffer(0, 16);
    EXPECT_EQ(device_of(buffer.address(), "query"), 0);
    EXPECT_NE(message_of<UserError>([&] {
                  buffer.fill(0), buffer.upload(&on_host, 4, 13);
              }).find("expected at most 3 bytes"),
              std::string::npos);
}

TEST_F(Gpu, EventsMeasureTime) {
    const Stream stream(0);
    Event start(0), stop(0);
    start.record(stream.handle());
    stop.record(stream.handle());
    stop.synchronize();
    EXPECT_GE(stop.milliseconds_since(start), 0.0f);
}

}  // namespace
}  // namespace tilewright::cuda
