// The on-disk cache: round trips, damaged entries, threads and processes.
#include "support/disk_cache.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace tilewright {
namespace {
namespace fs = std::filesystem;

class DiskCacheTest : public testing::Test {
  protected:
    DiskCacheTest()
        : folder_(fs::path(testing::TempDir()) /
                  fmt::format("tw_disk_cache_{}_{}", ::getpid(),
                              testing::UnitTest::GetInstance()->current_test_info()->name())),
          cache_(folder_) {
        fs::remove_all(folder_);
    }
    ~DiskCacheTest() override { fs::remove_all(folder_); }

    fs::path only_file() const {
        const auto entries = cache_.list();
        EXPECT_EQ(entries.size(), 1u);
        return entries.at(0).path;
    }
    static std::string read(const fs::path& path) {
        std::ifstream file(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    static void write(const fs::path& path, const std::string& bytes) {
        std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    }

    fs::path folder_;
    DiskCache cache_;
};

TEST_F(DiskCacheTest, RoundTripsBytes) {
    const std::string value("a\0b\n\xff", 5);
    EXPECT_EQ(cache_.get("key"), std::nullopt);
    EXPECT_TRUE(cache_.put("key", value));
    EXPECT_TRUE(cache_.put("other\nkey", ""));
    EXPECT_EQ(cache_.get("key"), value);
    EXPECT_EQ(cache_.get("other\nkey"), "");
    EXPECT_TRUE(cache_.put("key", "new"));
    EXPECT_EQ(cache_.get("key"), "new");
    EXPECT_EQ(cache_.list().size(), 2u);
    EXPECT_EQ(cache_.clear(), 2u);
    EXPECT_EQ(cache_.get("key"), std::nullopt);
}

TEST_F(DiskCacheTest, DropsEveryDamagedEntry) {
    const std::string value(1000, 'v');
    ASSERT_TRUE(cache_.put("key", value));
    const fs::path path = only_file();
    const std::string sound = read(path);
    for (std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{31}, sound.size() - 1}) {
        write(path, sound.substr(0, size));
        EXPECT_EQ(cache_.get("key"), std::nullopt) << "cut to " << size;
        EXPECT_FALSE(fs::exists(path)) << "a bad entry stays";
    }
    for (std::size_t at : {0, 9, 17, 25, 33, 600}) {
        std::string bytes = sound;
        bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
        write(path, bytes);
        EXPECT_EQ(cache_.get("key"), std::nullopt) << "bit flipped at " << at;
    }
    write(path, sound + "x");
    EXPECT_EQ(cache_.get("key"), std::nullopt);
    EXPECT_TRUE(cache_.put("key", value));
    EXPECT_EQ(cache_.get("key"), value);
}

TEST_F(DiskCacheTest, RefusesAnEntryOfAnotherKey) {
    ASSERT_TRUE(cache_.put("mine", "right"));
    const fs::path path = only_file();
    cache_.clear();
    ASSERT_TRUE(cache_.put("yours", "wrong"));
    fs::rename(only_file(), path);  // an intact file under another entry's name
    EXPECT_EQ(cache_.get("mine"), std::nullopt);
}

TEST_F(DiskCacheTest, AnUnwritableFolderIsNotAnError) {
    write(folder_, "a file where the folder should be");
    EXPECT_FALSE(cache_.put("key", "value"));
    EXPECT_EQ(cache_.get("key"), std::nullopt);
    EXPECT_TRUE(cache_.list().empty());
}

// Writers replace one entry as fast as they can; every read sees exactly one of the written values.
TEST_F(DiskCacheTest, ThreadsAndProcessesSeeWholeEntries) {
    const auto value = [](int writer) { return std::string(20000 + writer, char('a' + writer)); };
    const auto work = [&](int writer) {
        for (int i = 0; i < 100; ++i) {
            if (!cache_.put("key", value(writer))) return false;
            const std::optional<std::string> seen = cache_.get("key");
            if (!seen || seen->empty() || *seen != value(seen->front() - 'a')) return false;
        }
        return true;
    };
    std::vector<pid_t> children;
    for (int writer = 0; writer < 2; ++writer) {
        const pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) ::_exit(work(writer) ? 0 : 1);
        children.push_back(child);
    }
    bool ok[2] = {false, false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) threads.emplace_back([&, i] { ok[i] = work(2 + i); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(ok[0] && ok[1]);
    for (pid_t child : children) {
        int status = -1;
        ::waitpid(child, &status, 0);
        EXPECT_EQ(status, 0);
    }
    std::size_t files = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder_)) ++files;
    EXPECT_EQ(files, 1u) << "a temporary file was left over";
}

TEST(CacheRoot, FollowsTheEnvironment) {
    ::setenv("TILEWRIGHT_CACHE_DIR", "/somewhere", 1);
    EXPECT_EQ(cache_root(), fs::path("/somewhere"));
    ::unsetenv("TILEWRIGHT_CACHE_DIR");
    ::setenv("XDG_CACHE_HOME", "/xdg", 1);
    EXPECT_EQ(cache_root(), fs::path("/xdg/tilewright"));
    ::unsetenv("XDG_CACHE_HOME");
    ::setenv("HOME", "/home/someone", 1);
    EXPECT_EQ(cache_root(), fs::path("/home/someone/.cache/tilewright"));
}

TEST(ContentHash, IsStable) {
    EXPECT_EQ(content_hash("").size(), 32u);
    EXPECT_EQ(content_hash("abc"), content_hash("abc"));
    EXPECT_NE(content_hash("abc"), content_hash("abd"));
    const std::string text(1000, 'x');
    const std::vector<std::string_view> pieces = {"a", "", "bc", text};
    EXPECT_EQ(content_hash(pieces), content_hash("abc" + text));
}

TEST_F(DiskCacheTest, WhatIsNoRegularFileIsAMissAndCleared) {
    ASSERT_TRUE(cache_.put("key", "value"));
    const fs::path path = only_file();
    fs::remove(path);
    fs::create_directories(path / "inside");
    EXPECT_EQ(cache_.get("key"), std::nullopt);
    EXPECT_TRUE(cache_.list().empty());
    EXPECT_FALSE(cache_.put("key", "value"));
    EXPECT_EQ(cache_.clear(), 1u);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_EQ(cache_.get("key"), std::nullopt);
    EXPECT_TRUE(cache_.list().empty());
    EXPECT_TRUE(cache_.put("key", "value"));
    EXPECT_EQ(cache_.get("key"), "value");
    write(fs::path(path).concat(".1.2.tmp"), "what a killed process left");
    EXPECT_EQ(cache_.clear(), 1u);
    EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(DiskCacheTest, FoldersAreForThisUserAlone) {
    EXPECT_TRUE(cache_.put("key", "value"));
    EXPECT_EQ(fs::status(folder_).permissions(), fs::perms::owner_all);
    EXPECT_EQ(cache_problem(folder_), std::nullopt);
    EXPECT_EQ(cache_.list().size(), 1u);  // the probe was removed
}

TEST_F(DiskCacheTest, FoldersThatOthersMayWriteAreNotUsed) {
    ASSERT_TRUE(cache_.put("key", "value"));
    for (const mode_t mode : {0777U, 0770U, 01777U}) {
        ASSERT_EQ(::chmod(folder_.c_str(), mode), 0);
        EXPECT_EQ(cache_.get("key"), std::nullopt);
        EXPECT_FALSE(cache_.put("other", "value"));
        EXPECT_TRUE(cache_.list().empty());
        const std::optional<std::string> why = cache_problem(folder_);
        ASSERT_TRUE(why.has_value());
        EXPECT_NE(why->find("others may write to " + folder_.string()), std::string::npos) << *why;
    }
    ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
    EXPECT_EQ(cache_.get("key"), "value");
    EXPECT_EQ(cache_.get("other"), std::nullopt);
}

TEST_F(DiskCacheTest, FoldersWithinWhatOthersMayWriteAreNotUsed) {
    const DiskCache inner(folder_ / "kernels");
    ASSERT_TRUE(inner.put("key", "value"));
    ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
    EXPECT_EQ(inner.get("key"), std::nullopt);
    ASSERT_EQ(::chmod(folder_.c_str(), 01777), 0);  // like /tmp: others cannot replace it there
    EXPECT_EQ(inner.get("key"), "value");
}

TEST_F(DiskCacheTest, FoldersAndLinksOfOthersAreNotUsed) {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root, to give files away";
    ASSERT_TRUE(cache_.put("key", "value"));
    ASSERT_EQ(::chown(folder_.c_str(), 12345, 12345), 0);
    EXPECT_EQ(cache_.get("key"), std::nullopt);
    EXPECT_FALSE(cache_.put("key", "new"));
    EXPECT_NE(cache_problem(folder_)->find("belongs to user 12345"), std::string::npos);
    ASSERT_EQ(::chown(folder_.c_str(), 0, 0), 0);
    const fs::path link = folder_.string() + "_link";
    fs::remove(link);
    fs::create_directory_symlink(folder_, link);
    const DiskCache linked(link);
    EXPECT_EQ(linked.get("key"), "value");  // a link of the user's own is followed
    ASSERT_EQ(::lchown(link.c_str(), 12345, 12345), 0);
    EXPECT_EQ(linked.get("key"), std::nullopt);
    EXPECT_NE(cache_problem(link)->find("is a link of user 12345"), std::string::npos);
    fs::remove(link);
}

TEST_F(DiskCacheTest, ProblemsAreNamed) {
    EXPECT_EQ(cache_problem(folder_ / "not" / "there"), std::nullopt);
    write(folder_, "a file");
    EXPECT_NE(cache_problem(folder_)->find("is no folder"), std::string::npos);
    EXPECT_FALSE(cache_.put("key", "value"));
    if (::geteuid() != 0) {  // root may write to every folder
        EXPECT_NE(cache_problem("/proc/tilewright")->find("it cannot be made in /proc"),
                  std::string::npos);
    }
}

}  // namespace
}  // namespace tilewright
