// Files are written atomically.
#include "support/write_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/throws.h"
#include "tilewright/error.h"

namespace tilewright {
namespace {
namespace fs = std::filesystem;

using testing::throws;

class WriteFile : public testing::Test {
  protected:
    WriteFile()
        : folder_(fs::path(testing::TempDir()) /
                  fmt::format("tw_write_file_{}_{}", ::getpid(),
                              testing::UnitTest::GetInstance()->current_test_info()->name())) {
        fs::remove_all(folder_);
        fs::create_directories(folder_);
    }
    ~WriteFile() override { fs::remove_all(folder_); }

    std::string path(const std::string& name) const { return (folder_ / name).string(); }
    static void put(const std::string& path, const std::string& text) {
        write_file("test", path, [&](std::ostream& file) { file << text; });
    }
    static std::string read(const std::string& path) {
        std::ifstream file(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    std::size_t num_files() const {
        return static_cast<std::size_t>(
            std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
    }
    static std::string error_of(const std::string& path, const std::string& text) {
        try {
            put(path, text);
        } catch (const UserError& error) {
            return error.what();
        }
        return "";
    }

    fs::path folder_;
};

TEST_F(WriteFile, NewAndOldFiles) {
    put(path("x"), "one");
    EXPECT_EQ(read(path("x")), "one");
    ASSERT_EQ(::chmod(path("x").c_str(), 0640), 0);
    put(path("x"), "two");
    EXPECT_EQ(read(path("x")), "two");
    EXPECT_EQ(static_cast<int>(fs::status(path("x")).permissions()), 0640);
    EXPECT_EQ(num_files(), 1u);
}

TEST_F(WriteFile, LinksStayLinks) {
    put(path("x"), "one");
    fs::create_symlink("x", path("link"));
    put(path("link"), "two");
    EXPECT_TRUE(fs::is_symlink(path("link")));
    EXPECT_EQ(read(path("x")), "two");
    fs::create_symlink("new", path("dangling"));
    put(path("dangling"), "three");
    EXPECT_EQ(read(path("new")), "three");
}

TEST_F(WriteFile, DevicesStayDevices) {
    put("/dev/null", "text");
    EXPECT_TRUE(fs::is_character_file("/dev/null"));
    EXPECT_NE(error_of("/dev/full", "text").find("No space left on device"), std::string::npos);
    EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST_F(WriteFile, AFullDiskLeavesTheOldFile) {
    put(path("x"), "old");
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit before = {};
    getrlimit(RLIMIT_FSIZE, &before);
    rlimit small = before;
    small.rlim_cur = 1000;  // writes fail as on a full disk
    setrlimit(RLIMIT_FSIZE, &small);
    const std::string error = error_of(path("x"), std::string(100'000, 'x'));
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_NE(error.find("[test] could not write all of " + path("x") + ": "), std::string::npos)
        << error;
    EXPECT_EQ(read(path("x")), "old");
    EXPECT_EQ(num_files(), 1u);
}

TEST_F(WriteFile, RefusalsNameTheReason) {
    EXPECT_NE(error_of(path("no/x"), "").find("No such file or directory"), std::string::npos);
    EXPECT_NE(error_of(folder_.string(), "").find("Is a directory"), std::string::npos);
    EXPECT_THAT([&] { expect_writable("test", path("no/x")); },
                throws("No such file or directory"));
    EXPECT_THAT([&] { expect_writable("test", folder_.string()); }, throws("Is a directory"));
    expect_writable("test", path("x"));
    expect_writable("test", "/dev/null");
    EXPECT_EQ(num_files(), 0u);
}

}  // namespace
}  // namespace tilewright
