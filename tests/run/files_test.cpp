// The public functions for .npy and .safetensors files; the formats have separate tests.
#include "tilewright/files.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/run/support.h"

namespace tilewright {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// Each test has a folder that is removed afterwards.
class Files : public ::testing::Test {
  protected:
    Files() { fs::create_directories(folder_); }
    ~Files() override { fs::remove_all(folder_); }
    std::string path(const std::string& name) const { return (folder_ / name).string(); }

    fs::path folder_ = fs::temp_directory_path() / ("tilewright_files_" + std::to_string(getpid()));
};

TEST_F(Files, NpyComesBackAsItWas) {
    const Tensor x = ramp({3, 4});
    save_npy(path("x.npy"), x.transpose({1, 0}));
    const Tensor back = load_npy(path("x.npy"));
    EXPECT_EQ(back.shape(), (Tensor::Dims{4, 3}));
    EXPECT_TRUE(back.is_contiguous());
    EXPECT_EQ(back.get({3, 1}), x.get({1, 3}));
    save_npy(path("x.npy"), Tensor::arange(i64, 2));  // in place of the old file
    EXPECT_EQ(load_npy(path("x.npy")).to_vector<int>(), (std::vector<int>{0, 1}));
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(Files, SafetensorsHoldEveryDtypeByName) {
    const Tensor x = ramp({3, 4}), bits = Tensor::full(bf16, {2}, 1.5);
    save_safetensors(path("m.safetensors"), {{"x", x.slice(1, 0, 2, 2)}, {"bits", bits}});
    const auto all = load_safetensors(path("m.safetensors"));
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all.at("x").get({2, 1}), x.get({2, 2}));
    EXPECT_EQ(all.at("bits").dtype(), bf16);
    EXPECT_EQ(load_safetensors(path("m.safetensors"), "bits").get({1}), 1.5);
    EXPECT_THAT(error_of([&] { load_safetensors(path("m.safetensors"), "y"); }),
                HasSubstr("a tensor named `y` but the file holds: bits, x"));
    save_safetensors(path("m.safetensors"), {});
    EXPECT_TRUE(load_safetensors(path("m.safetensors")).empty());
}

TEST_F(Files, WhatCannotBeReadOrWrittenIsNamed) {
    EXPECT_THAT(error_of([&] { load_npy(path("none.npy")); }), HasSubstr("none.npy"));
    EXPECT_THAT(error_of([&] { load_npy(folder_.string()); }), HasSubstr("regular file"));
    std::ofstream(path("text.npy")) << "no array";
    EXPECT_THAT(error_of([&] { load_npy(path("text.npy")); }), HasSubstr("does not start as one"));
    EXPECT_THAT(error_of([&] { load_safetensors(path("text.npy")); }), HasSubstr("text.npy"));
    EXPECT_THAT(error_of([&] { save_npy(path("x.npy"), Tensor::zeros(bf16, {2})); }),
                HasSubstr(".npy can hold but got bf16"));
    EXPECT_THAT(error_of([&] { save_npy(path("x.npy"), Tensor()); }), HasSubstr("undefined"));
    EXPECT_THAT(error_of([&] { save_npy(path("a/b.npy"), ramp({2})); }), HasSubstr("b.npy"));
    EXPECT_THAT(error_of([&] {
                    save_safetensors(path("x"), {{"__metadata__", ramp({2})}});
                }),
                HasSubstr("__metadata__"));
    EXPECT_FALSE(fs::exists(path("x.npy")));
    EXPECT_FALSE(fs::exists(path("x")));
}

}  // namespace
}  // namespace tilewright
