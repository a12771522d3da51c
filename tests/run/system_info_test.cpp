// Facts about the host, read from /proc and /sys.
#include "run/system_info.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/throws.h"
#include "tilewright/error.h"
#include "tilewright/system.h"

namespace tilewright::run {
namespace {

using testing::throws;

namespace fs = std::filesystem;

TEST(SystemInfo, ReadsProcAndSys) {
    const fs::path root = fs::path(testing::TempDir()) / fmt::format("tilewright_sys_{}", getpid());
    const fs::path cache = root / "sys/devices/system/cpu/cpu0/cache/index0";
    fs::create_directories(cache);
    fs::create_directories(root / "proc");
    std::ofstream(root / "proc/cpuinfo")
        << "model name\t: Some CPU\nphysical id\t: 0\ncore id\t: 0\nflags\t: sse avx2 fma "
           "amx_bf16\n"
           "model name\t: Some CPU\nphysical id\t: 0\ncore id\t: 0\n"
           "model name\t: Some CPU\nphysical id\t: 1\ncore id\t: 0\n";
    std::ofstream(root / "proc/meminfo") << "MemTotal:  2048 kB\nMemAvailable: 1024 kB\n";
    std::ofstream(cache / "level") << 1;
    std::ofstream(cache / "type") << "Data\n";
    std::ofstream(cache / "size") << "48K\n";
    const SystemInfo info = read_system_info(root);
    EXPECT_EQ(info.cpu_model, "Some CPU");
    EXPECT_EQ(info.physical_cores, 2);
    EXPECT_EQ(info.cpu_features, (std::vector<std::string>{"avx2", "fma", "amx_bf16"}));
    EXPECT_EQ(info.memory_bytes, 2048u * 1024);
    ASSERT_EQ(info.caches.size(), 1u);
    EXPECT_EQ(info.caches[0].size, "48K");
    EXPECT_TRUE(read_system_info(root / "nothing").cpu_model.empty());
    fs::remove_all(root);
}

TEST(System, NamesDevicesAndKeepsTheThreadCount) {
    EXPECT_EQ(devices().front(), "cpu");
    const int all = num_threads();
    set_num_threads(1);
    EXPECT_EQ(num_threads(), 1);
    set_num_threads(0);
    EXPECT_EQ(num_threads(), all);
    EXPECT_THAT([&] { set_num_threads(-1); }, throws("expected at least 0 threads but got -1"));
}

}  // namespace
}  // namespace tilewright::run
