// Tensor specifications, files on disk, and writes that leave nothing half done.
#include "cli/tensor_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/cli/tensor_file_helpers.h"

namespace tilewright::cli {
namespace {

namespace fs = std::filesystem;

// A fresh folder for each test.
class TensorFile : public testing::Test {
  protected:
    TensorFile() {
        const auto* test = testing::UnitTest::GetInstance()->current_test_info();
        folder_ =
            fs::path(testing::TempDir()) / fmt::format("tilewright_{}_{}", getpid(), test->name());
        fs::create_directories(folder_);
    }
    ~TensorFile() override { fs::remove_all(folder_); }

    std::string path(const std::string& name) const { return (folder_ / name).string(); }
    std::size_t num_files() const {
        return static_cast<std::size_t>(
            std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
    }

    fs::path folder_;
};

TEST_F(TensorFile, SpecificationsComeApart) {
    TensorSpec spec = parse_tensor_spec("a/b.safetensors:x.y", "query");
    EXPECT_EQ(spec.path, "a/b.safetensors");
    EXPECT_EQ(spec.name, "x.y");
    spec = parse_tensor_spec("b.safetensors", "query");
    EXPECT_EQ(spec.path, "b.safetensors");
    EXPECT_EQ(spec.name, "query");
    EXPECT_EQ(parse_tensor_spec("c:d.npy", "query").path, "c:d.npy");
    for (const char* bad : {"", "x", "x.txt", "x.safetensors:", "x.npy:name"}) {
        expect_user_error([&] { parse_tensor_spec(bad, "query"); }, "FILE.safetensors:NAME");
    }
}

TEST_F(TensorFile, WritesAndReadsBack) {
    const Tensor q = random_tensor(f32, {2, 3}, 1), k = random_tensor(bf16, {4}, 2);
    save_tensors({{path("q.npy"), "out", q},
                  {path("x.safetensors"), "query", q},
                  {path("x.safetensors:key"), "ignored", k}});
    EXPECT_TRUE(identical(load_tensor(path("q.npy"), "any"), q));
    EXPECT_TRUE(identical(load_tensor(path("x.safetensors"), "query"), q));
    EXPECT_TRUE(identical(load_tensor(path("x.safetensors:key"), "query"), k));
    EXPECT_EQ(num_files(), 2u);
}

TEST_F(TensorFile, RefusesWhatIsNoFile) {
    expect_user_error([&] { load_tensor(path("none.npy"), ""); }, "does not exist");
    fs::create_directory(folder_ / "folder.npy");
    expect_user_error([&] { load_tensor(path("folder.npy"), ""); }, "a regular file");
    std::ofstream(path("text.npy")) << "hello, this is no array";
    expect_user_error([&] { load_tensor(path("text.npy"), ""); }, "text.npy");
}

TEST_F(TensorFile, OneFileUnderTwoSpellings) {
    const Tensor a = random_tensor(f32, {2}), b = random_tensor(f32, {3}, 2);
    expect_user_error(
        [&] {
            save_tensors({{path("o.npy"), "o", a}, {path("./o.npy"), "lse", b}});
        },
        "two go to");
    save_tensors({{path("o.safetensors:a"), "", a}, {path("x/../o.safetensors:b"), "", b}});
    EXPECT_TRUE(identical(load_tensor(path("o.safetensors:a"), ""), a));
    EXPECT_TRUE(identical(load_tensor(path("o.safetensors:b"), ""), b));
}

TEST_F(TensorFile, FailedWritesLeaveTheOldFileAndNothingElse) {
    const Tensor old = random_tensor(f32, {2});
    save_tensors({{path("o.npy"), "o", old}});
    const Tensor half = random_tensor(bf16, {2});
    expect_user_error([&] { save_tensors({{path("o.npy"), "o", half}}); }, "use .safetensors");
    expect_user_error(
        [&] {
            save_tensors({{path("o.npy"), "o", old}, {path("o.npy"), "lse", old}});
        },
        "two go to");
    expect_user_error(
        [&] {
            save_tensors({{path("p.safetensors:__metadata__"), "o", old}});
        },
        "a name of its own");
    expect_user_error(
        [&] {
            save_tensors({{path("no/such/folder/o.npy"), "o", old}});
        },
        "writable");
    EXPECT_TRUE(identical(load_tensor(path("o.npy"), "o"), old));
    EXPECT_EQ(num_files(), 1u);
}

}  // namespace
}  // namespace tilewright::cli
