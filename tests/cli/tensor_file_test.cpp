// Tensor specifications, files on disk, and atomic writes.
#include "cli/tensor_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <vector>

#include "run/safetensors.h"
#include "tests/run/file_helpers.h"

namespace tilewright::cli {
namespace {

using run::ByteReader;
using run::expect_user_error;
using run::identical;
using run::random_tensor;
using run::read_safetensors_index;
using run::SafetensorsEntry;
using run::SafetensorsIndex;

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
        "a path that can be written");
    EXPECT_TRUE(identical(load_tensor(path("o.npy"), "o"), old));
    EXPECT_EQ(num_files(), 1u);
}

TEST_F(TensorFile, WritersAddToAFile) {
    const Tensor q = random_tensor(f32, {2, 3}, 1), k = random_tensor(bf16, {4}, 2),
                 q2 = random_tensor(i64, {5}, 3);
    save_tensors({{path("f.safetensors:q"), "", q}});
    save_tensors({{path("f.safetensors:k"), "", k}});
    EXPECT_TRUE(identical(load_tensor(path("f.safetensors:q"), ""), q));
    EXPECT_TRUE(identical(load_tensor(path("f.safetensors:k"), ""), k));
    save_tensors({{path("f.safetensors:q"), "", q2}});
    EXPECT_TRUE(identical(load_tensor(path("f.safetensors:q"), ""), q2));
    EXPECT_TRUE(identical(load_tensor(path("f.safetensors:k"), ""), k));
    EXPECT_EQ(num_files(), 1u);
}

TEST_F(TensorFile, WhatTheReaderDoesNotKnowStays) {
    const std::string header = R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F4","shape":[2],)"
                               R"("data_offsets":[0,1]}})";
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
    std::ofstream(path("f.safetensors"), std::ios::binary) << bytes << header << 'x';
    save_tensors({{path("f.safetensors:q"), "", random_tensor(f32, {3})}});
    std::ifstream stream(path("f.safetensors"), std::ios::binary);
    ByteReader file(stream, "f");
    const SafetensorsIndex index = read_safetensors_index(file);
    EXPECT_EQ(index.metadata, R"({"format":"pt"})");
    const SafetensorsEntry& b = index.tensors.at("b");
    EXPECT_EQ(b.dtype, "F4");
    EXPECT_EQ(file.read_text(b.begin, b.end - b.begin), "x");
    EXPECT_EQ(index.tensors.count("q"), 1u);
}

TEST_F(TensorFile, FilesThatCannotBeAddedToStayAsTheyAre) {
    std::ofstream(path("f.safetensors")) << "precious notes";
    const Tensor q = random_tensor(f32, {2});
    expect_user_error([&] { save_tensors({{path("f.safetensors:q"), "", q}}); }, "f.safetensors");
    expect_user_error(
        [&] {
            check_outputs({{path("f.safetensors:q"), "", f32}});
        },
        "f.safetensors");
    std::ifstream file(path("f.safetensors"));
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "precious notes");
    EXPECT_EQ(num_files(), 1u);
}

TEST_F(TensorFile, WritersAtTheSameTimeLoseNothing) {
    std::vector<std::thread> writers;
    for (unsigned i = 0; i < 8; ++i) {
        writers.emplace_back([&, i] {
            for (unsigned j = 0; j < 5; ++j)
                save_tensors({{path(fmt::format("f.safetensors:t{}", 5 * i + j)), "",
                               random_tensor(f32, {16}, 5 * i + j)}});
        });
    }
    for (std::thread& writer : writers) writer.join();
    for (unsigned i = 0; i < 40; ++i)
        EXPECT_TRUE(identical(load_tensor(path(fmt::format("f.safetensors:t{}", i)), ""),
                              random_tensor(f32, {16}, i)));
    EXPECT_EQ(num_files(), 1u);
}

TEST_F(TensorFile, OutputsAreRefusedBeforeTheWork) {
    const auto refused = [&](const std::vector<PlannedTensor>& outputs, const std::string& part) {
        expect_user_error([&] { check_outputs(outputs); }, part);
    };
    refused({{path("o.npy"), "o", bf16}}, "use .safetensors");
    refused({{path("o.npy"), "o", f32}, {path("./o.npy"), "l", f32}}, "two go to");
    refused({{path("no/o.npy"), "o", f32}}, "No such file or directory");
    refused({{path("o.safetensors:__metadata__"), "o", f32}}, "__metadata__");
    refused({{"-", "o", f32}, {"-:lse", "l", f32}}, "two go to");
    fs::create_directory(folder_ / "d.npy");
    refused({{path("d.npy"), "o", f32}}, "Is a directory");
    check_outputs({{path("o.npy"), "o", f32}, {path("o.safetensors"), "o", bf16}});
    EXPECT_EQ(num_files(), 1u);
}

TEST_F(TensorFile, StandardInputAndOutput) {
    const Tensor q = random_tensor(f32, {2, 3}, 1), k = random_tensor(bf16, {4}, 2);
    std::ostringstream npy, both;
    save_tensors({{"-", "q", q}}, &npy);
    save_tensors({{"-:q", "", q}, {"-:k", "", k}}, &both);
    std::istringstream npy_in(npy.str()), both_in(both.str());
    StandardInput one(npy_in), two(both_in);
    EXPECT_TRUE(identical(load_tensor("-", "query", &one), q));
    expect_user_error([&] { load_tensor("-", "key", &one); }, "for one option but two");
    EXPECT_TRUE(identical(load_tensor("-:q", "", &two), q));
    EXPECT_TRUE(identical(load_tensor("-", "k", &two), k));
    expect_user_error([&] { load_tensor("-", "q"); }, "standard input");
    expect_user_error([&] { save_tensors({{"-", "k", k}}, &npy); }, "-:NAME writes .safetensors");
}

}  // namespace
}  // namespace tilewright::cli
