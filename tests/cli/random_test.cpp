// `tilewright random`: values, integers, documents, and arrays added to files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "cli/tensor_file.h"
#include "tests/cli/run_program.h"

namespace tilewright::cli {
namespace {

using ::testing::HasSubstr;

class RandomFile : public ::testing::Test {
  protected:
    ProgramResult random(std::vector<std::string> more) {
        more.insert(more.begin(), "random");
        return run_program(more);
    }
    Tensor make(std::vector<std::string> more) {
        more.insert(more.end(), {"--out", folder_ / "x.npy"});
        const ProgramResult result = random(more);
        EXPECT_EQ(result.status, 0) << result.error;
        return load_tensor(folder_ / "x.npy", "");
    }

    TemporaryFolder folder_;
};

TEST_F(RandomFile, AddsToAFile) {
    for (const char* name : {"q", "k", "v"})
        ASSERT_EQ(random({"--shape", "2,3", "--out", folder_ / "f.safetensors:" + name}).status, 0);
    for (const char* name : {"q", "k", "v"})
        EXPECT_EQ(load_tensor(folder_ / "f.safetensors:" + name, "").shape(), (Tensor::Dims{2, 3}));
}

TEST_F(RandomFile, Integers) {
    const Tensor values = make({"--shape", "1k", "--dtype", "i16", "--range", "-3,5"});
    EXPECT_EQ(values.dtype(), i16);
    const std::vector<std::int64_t> all = values.to_vector<std::int64_t>();
    EXPECT_EQ(std::set<std::int64_t>(all.begin(), all.end()),
              (std::set<std::int64_t>{-3, -2, -1, 0, 1, 2, 3, 4}));
    EXPECT_EQ(make({"--shape", "1k", "--dtype", "i16", "--range", "-3,5"}).to_vector<int>(),
              values.to_vector<int>());
    EXPECT_NE(make({"--shape", "1k", "--dtype", "i16", "--range", "-3,5", "--seed", "1"})
                  .to_vector<int>(),
              values.to_vector<int>());
    const std::vector<int> usual = make({"--shape", "10k", "--dtype", "u8"}).to_vector<int>();
    EXPECT_EQ(*std::max_element(usual.begin(), usual.end()), 99);
    EXPECT_EQ(make({"--shape", "64", "--dtype", "bool"}).dtype(), boolean);
}

TEST_F(RandomFile, DocumentsAndTheirStarts) {
    const Tensor ids = make({"--documents", "5", "--shape", "2,64"});
    EXPECT_EQ(ids.dtype(), i32);
    for (std::int64_t row = 0; row < 2; ++row) {
        EXPECT_EQ(ids.get_int({row, 0}), 0);
        EXPECT_EQ(ids.get_int({row, 63}), 4);
        for (std::int64_t i = 1; i < 64; ++i) {
            const std::int64_t step = ids.get_int({row, i}) - ids.get_int({row, i - 1});
            EXPECT_TRUE(step == 0 || step == 1);
        }
    }
    const Tensor alone = make({"--documents", "5", "--shape", "64"}),
                 starts = make({"--documents", "5", "--shape", "64", "--cu-seqlens"});
    EXPECT_EQ(starts.shape(), (Tensor::Dims{6}));
    EXPECT_EQ(starts.get_int({5}), 64);
    for (std::int64_t n = 0; n < 5; ++n) {
        EXPECT_EQ(alone.get_int({starts.get_int({n})}), n);
        EXPECT_EQ(alone.get_int({starts.get_int({n + 1}) - 1}), n);
    }
}

TEST_F(RandomFile, RefusesBadInput) {
    const auto error = [&](std::vector<std::string> more) {
        more.insert(more.end(), {"--out", folder_ / "x.npy"});
        const ProgramResult result = random(more);
        EXPECT_EQ(result.status, 2);
        return result.error;
    };
    EXPECT_THAT(error({"--shape", "4,x"}), HasSubstr("--shape N,N,... but got"));
    EXPECT_THAT(error({"--shape", "4", "--dtype", "f8"}), HasSubstr("[random] expected --dtype"));
    EXPECT_THAT(error({"--shape", "4", "--range", "0,2"}), HasSubstr("an integer --dtype"));
    EXPECT_THAT(error({"--shape", "4", "--dtype", "u8", "--range", "0,257"}), HasSubstr("<= 255"));
    EXPECT_THAT(error({"--shape", "4", "--dtype", "i8", "--range", "5,5"}),
                HasSubstr("LOW < HIGH"));
    EXPECT_THAT(error({"--shape", "4", "--documents", "5"}), HasSubstr("--documents of 1 to"));
    EXPECT_THAT(error({"--shape", "4", "--documents", "-5"}), HasSubstr("--documents of 1 to"));
    EXPECT_THAT(error({"--shape", "4", "--cu-seqlens"}), HasSubstr("--documents with"));
    EXPECT_THAT(error({"--shape", "2,4", "--documents", "2", "--cu-seqlens"}),
                HasSubstr("--shape TOTAL"));
    EXPECT_THAT(error({"--shape", "4", "--documents", "2", "--dtype", "f32"}), HasSubstr("i32"));
    EXPECT_THAT(error({"--shape", "4", "--seed", "-1"}), HasSubstr("an integer of 0 to"));
    EXPECT_THAT(random({"--shape", "4", "--dtype", "bf16", "--out", "-"}).error,
                HasSubstr("-:NAME writes .safetensors"));
}

}  // namespace
}  // namespace tilewright::cli
