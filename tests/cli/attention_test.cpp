// `tilewright attention`: files in, files out, and how bad ones are refused.
#include "tilewright/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/tensor_file.h"
#include "tests/cli/run_program.h"
#include "tilewright/system.h"

namespace tilewright::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class AttentionCommand : public ::testing::Test {
  protected:
    AttentionCommand() {
        make("q", "1,4,40,16", 1);
        make("k", "1,2,40,16", 2);
        make("v", "1,2,40,16", 3);
        make("do", "1,4,40,16", 4);
    }
    void make(const std::string& name, const std::string& shape, int seed) {
        const ProgramResult result =
            run_program({"random", "--out", folder_ / (name + ".npy"), "--shape", shape, "--seed",
                         std::to_string(seed)});
        ASSERT_EQ(result.status, 0) << result.error;
    }
    ProgramResult attention(const std::vector<std::string>& more) {
        std::vector<std::string> arguments = {
            "attention",       "--query", folder_ / "q.npy", "--key",
            folder_ / "k.npy", "--value", folder_ / "v.npy"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return run_program(arguments);
    }
    Tensor load(const std::string& name) { return load_tensor(folder_ / name, "out"); }

    TemporaryFolder folder_;
};

TEST_F(AttentionCommand, ForwardAndGradientsPassTheCheck) {
    const ProgramResult result =
        attention({"--causal", "--grad-out", folder_ / "do.npy", "--out", folder_ / "o.npy",
                   "--lse", folder_ / "l.npy", "--grads", folder_ / "d", "--check"});
    EXPECT_EQ(result.status, 0) << result.error << result.out;
    EXPECT_EQ(result.error, "");
    EXPECT_THAT(result.out, HasSubstr("check grad key"));
    const Tensor q = load("q.npy"), k = load("k.npy"), v = load("v.npy"), dout = load("do.npy");
    const AttentionOptions options{.causal = true};
    const AttentionOutput expected = tilewright::attention(q, k, v, options);
    EXPECT_EQ(load("o.npy").to_vector<float>(), expected.out.to_vector<float>());
    EXPECT_EQ(load("l.npy").to_vector<float>(), expected.lse.to_vector<float>());
    const AttentionGradients g = attention_backward(q, k, v, expected, dout, options);
    EXPECT_EQ(load("dquery.npy").to_vector<float>(), g.query.to_vector<float>());
    EXPECT_EQ(load("dkey.npy").to_vector<float>(), g.key.to_vector<float>());
    EXPECT_EQ(load("dvalue.npy").to_vector<float>(), g.value.to_vector<float>());
}

TEST_F(AttentionCommand, ModsFromTextsWithBoundArrays) {
    make("slopes", "4", 5);
    make("table", "40,40", 6);
    make("sinks", "4", 7);
    const ProgramResult result =
        attention({"--mask",     "causal & (q - kv < 30)",
                   "--score",    "softcap(5, alibi(slopes)) + table[q, kv]",
                   "--bind",     "slopes=" + (folder_ / "slopes.npy"),
                   "--bind",     "table=" + (folder_ / "table.npy"),
                   "--sinks",    folder_ / "sinks.npy",
                   "--dropout",  "0.2",
                   "--seed",     "3",
                   "--grad-out", folder_ / "do.npy",
                   "--out",      folder_ / "o.npy",
                   "--grads",    folder_ / "d",
                   "--check"});
    EXPECT_EQ(result.status, 0) << result.error << result.out;
    EXPECT_THAT(result.out, AllOf(HasSubstr("check grad slopes"), HasSubstr("check grad table")));
    EXPECT_EQ(load("dslopes.npy").shape(), (Tensor::Dims{4}));
    EXPECT_EQ(load("dtable.npy").shape(), (Tensor::Dims{40, 40}));
    EXPECT_EQ(load("dsinks.npy").shape(), (Tensor::Dims{4}));
    const ProgramResult bad =
        attention({"--score", "score + slope[h]", "--out", folder_ / "o.npy"});
    EXPECT_EQ(bad.status, 2);
    EXPECT_THAT(bad.error, HasSubstr("column 9"));
    EXPECT_EQ(attention({"--bind", "x", "--out", folder_ / "o.npy"}).status, 2);
}

TEST_F(AttentionCommand, EveryMaskPassesTheCheck) {
    save_tensors(
        {{folder_ / "s.npy", "s", Tensor::from_vector(std::vector<int>(40, 3), {1, 40}, i32)}});
    for (const std::vector<std::string>& mask :
         std::vector<std::vector<std::string>>{{},
                                               {"--window", "7,-1"},
                                               {"--window", "3,2", "--causal"},
                                               {"--segment-ids", folder_ / "s.npy"},
                                               {"--scale", "0.3"},
                                               {"--checked"}}) {
        std::vector<std::string> arguments = mask;
        arguments.insert(arguments.end(), {"--out", folder_ / "o.safetensors:x", "--check"});
        const ProgramResult result = attention(arguments);
        EXPECT_EQ(result.status, 0) << result.error << result.out;
        EXPECT_THAT(result.out, HasSubstr("ok"));
    }
    EXPECT_EQ(load("o.safetensors:x").shape(), (Tensor::Dims{1, 4, 40, 16}));
}

TEST_F(AttentionCommand, OptionsReachTheComputation) {
    const Tensor q = load("q.npy"), k = load("k.npy"), v = load("v.npy");
    ASSERT_EQ(attention({"--scale", "0.3", "--out", folder_ / "o.npy"}).status, 0);
    EXPECT_EQ(load("o.npy").to_vector<float>(),
              tilewright::attention(q, k, v, {.scale = 0.3}).out.to_vector<float>());

    std::vector<std::int64_t> ids(40), kv_ids(40);
    for (std::int64_t i = 0; i < 40; ++i) {
        ids[static_cast<std::size_t>(i)] = i / 10;
        kv_ids[static_cast<std::size_t>(i)] = i / 15;
    }
    const AttentionOptions segments{.segment_ids = Tensor::from_vector(ids, {1, 40}, i32),
                                    .kv_segment_ids = Tensor::from_vector(kv_ids, {1, 40}, i32)};
    save_tensors({{folder_ / "s.npy", "s", segments.segment_ids},
                  {folder_ / "t.npy", "t", segments.kv_segment_ids}});
    ASSERT_EQ(attention({"--segment-ids", folder_ / "s.npy", "--kv-segment-ids", folder_ / "t.npy",
                         "--out", folder_ / "o.npy", "--check"})
                  .status,
              0);
    EXPECT_EQ(load("o.npy").to_vector<float>(),
              tilewright::attention(q, k, v, segments).out.to_vector<float>());

    const AttentionOptions short_keys{.kv_lengths =
                                          Tensor::from_vector(std::vector<std::int32_t>{23}, {1})};
    save_tensors({{folder_ / "n.npy", "n", short_keys.kv_lengths}});
    ASSERT_EQ(attention({"--kv-lengths", folder_ / "n.npy", "--out", folder_ / "o.npy", "--check"})
                  .status,
              0);
    EXPECT_EQ(load("o.npy").to_vector<float>(),
              tilewright::attention(q, k, v, short_keys).out.to_vector<float>());

    // An index out of bounds is clamped; the checked mode reports it.
    make("table", "40", 5);
    const std::vector<std::string> outside = {"--score", "score + table[q + 1]",
                                              "--bind",  "table=" + (folder_ / "table.npy"),
                                              "--out",   folder_ / "o.npy"};
    EXPECT_EQ(attention(outside).status, 0);
    std::vector<std::string> checked = outside;
    checked.emplace_back("--checked");
    const ProgramResult result = attention(checked);
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.error, HasSubstr("table"));
}

TEST_F(AttentionCommand, BshdFilesAreTheSameNumbers) {
    for (const char* name : {"q", "k", "v"})
        save_tensors({{folder_ / (std::string("t") + name + ".npy"), "x",
                       load(std::string(name) + ".npy").transpose({0, 2, 1, 3})}});
    ASSERT_EQ(attention({"--out", folder_ / "o.npy"}).status, 0);
    const ProgramResult result = run_program(
        {"attention", "--query", folder_ / "tq.npy", "--key", folder_ / "tk.npy", "--value",
         folder_ / "tv.npy", "--layout", "bshd", "--out", folder_ / "to.npy", "--check"});
    EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_EQ(load("to.npy").transpose({0, 2, 1, 3}).to_vector<float>(),
              load("o.npy").to_vector<float>());
}

TEST_F(AttentionCommand, PackedSequencesPassTheCheck) {
    ASSERT_EQ(run_program({"random", "--documents", "3", "--shape", "40", "--cu-seqlens", "--out",
                           folder_ / "cu.npy"})
                  .status,
              0);
    make("slopes", "4", 5);
    const std::vector<std::string> arguments = {"--cu-seqlens",
                                                folder_ / "cu.npy",
                                                "--score",
                                                "alibi(slopes) + 0.1 * b",
                                                "--bind",
                                                "slopes=" + (folder_ / "slopes.npy"),
                                                "--causal",
                                                "--dropout",
                                                "0.1",
                                                "--grad-out",
                                                folder_ / "do.npy",
                                                "--out",
                                                folder_ / "o.npy",
                                                "--grads",
                                                folder_ / "d",
                                                "--check"};
    const ProgramResult result = attention(arguments);
    EXPECT_EQ(result.status, 0) << result.error << result.out;
    EXPECT_THAT(result.out, HasSubstr("check grad slopes"));
    const AttentionOptions options{.cu_seqlens = load("cu.npy")};
    ASSERT_EQ(attention({"--cu-seqlens", folder_ / "cu.npy", "--kv-cu-seqlens", folder_ / "cu.npy",
                         "--out", folder_ / "o.npy", "--check"})
                  .status,
              0);
    EXPECT_EQ(load("o.npy").to_vector<float>(),
              tilewright::attention(load("q.npy"), load("k.npy"), load("v.npy"), options)
                  .out.to_vector<float>());
}

TEST_F(AttentionCommand, SavedBlockMasks) {
    for (const std::string file : {"m.npy", "m.safetensors", "m.safetensors:window"}) {
        ASSERT_EQ(run_program({"mask", "(q - kv) % 3 == h % 2", "--q-len", "40", "--kv-len", "40",
                               "--heads", "4", "--out", folder_ / file})
                      .status,
                  0);
        const ProgramResult result = attention(
            {"--block-mask", folder_ / file, "--causal", "--out", folder_ / "o.npy", "--check"});
        EXPECT_EQ(result.status, 0) << result.error << result.out;
        const std::vector<float> data = load("o.npy").to_vector<float>();
        ASSERT_EQ(
            attention({"--mask", "(q - kv) % 3 == h % 2", "--causal", "--out", folder_ / "o.npy"})
                .status,
            0);
        EXPECT_THAT(data, ::testing::Pointwise(::testing::FloatNear(1e-5F),
                                               load("o.npy").to_vector<float>()));
    }
    const ProgramResult bad =
        attention({"--block-mask", folder_ / "q.npy", "--out", folder_ / "o.npy"});
    EXPECT_EQ(bad.status, 2);
    EXPECT_THAT(bad.error, HasSubstr("[attention] expected --block-mask of the words"));
    ASSERT_EQ(run_program({"mask", "causal", "--q-len", "8", "--kv-len", "8", "--out",
                           folder_ / "small.npy"})
                  .status,
              0);
    EXPECT_EQ(attention({"--block-mask", folder_ / "small.npy", "--out", folder_ / "o.npy"}).status,
              2);
}

TEST_F(AttentionCommand, HintsThreadsAndOrder) {
    const ProgramResult result =
        attention({"--blocks", "16,32", "--backward-blocks", "32,16", "--no-deterministic",
                   "--threads", "1", "--grad-out", folder_ / "do.npy", "--out", folder_ / "o.npy",
                   "--grads", folder_ / "d", "--check"});
    EXPECT_EQ(result.status, 0) << result.error << result.out;
    EXPECT_EQ(num_threads(), 1);
    set_num_threads(0);
    EXPECT_THAT(attention({"--blocks", "16", "--out", folder_ / "o.npy"}).error,
                HasSubstr("--blocks Q,KV"));
    EXPECT_THAT(attention({"--blocks", "-1,5", "--out", folder_ / "o.npy"}).error,
                HasSubstr("[attention]"));
}

TEST_F(AttentionCommand, AutotunePrintsWhatItTried) {
    const std::string cache = folder_ / "cache";
    ::setenv("TILEWRIGHT_CACHE_DIR", cache.c_str(), 1);
    const std::vector<std::string> tuned{"--autotune", "--out", folder_ / "o.npy", "--check"};
    const std::string first = attention(tuned).out;
    EXPECT_THAT(first, HasSubstr("attention tiles forward"));
    EXPECT_THAT(first, HasSubstr(", 1.00 of the fastest"));
    EXPECT_THAT(first, HasSubstr("check out"));
    ::unsetenv("TILEWRIGHT_CACHE_DIR");
    EXPECT_THAT(attention({"--precision", "tf32", "--out", folder_ / "o.npy", "--check"}).out,
                HasSubstr("check out"));
    EXPECT_THAT(attention({"--precision", "fast", "--out", folder_ / "o.npy"}).error,
                HasSubstr("expected precision `ieee`, `tf32` or `bf16x3` but got `fast`"));
}

TEST_F(AttentionCommand, StandardInputAndOutput) {
    std::ostringstream all;
    save_tensors({{"-:query", "", load("q.npy")},
                  {"-:key", "", load("k.npy")},
                  {"-:value", "", load("v.npy")}},
                 &all);
    const ProgramResult result = run_program(
        {"attention", "--query", "-", "--key", "-", "--value", "-", "--out", "-", "--check"},
        all.str());
    EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_THAT(result.error, HasSubstr("check out"));
    std::istringstream stream(result.out);
    StandardInput input(stream);
    const Tensor out = load_tensor("-", "", &input);
    EXPECT_EQ(out.to_vector<float>(),
              tilewright::attention(load("q.npy"), load("k.npy"), load("v.npy"), {})
                  .out.to_vector<float>());
}

TEST_F(AttentionCommand, OutputsShareAFileAndAddToIt) {
    const std::string file = folder_ / "all.safetensors";
    save_tensors({{file + ":mine", "", load("q.npy")}});
    ASSERT_EQ(attention({"--out", file, "--lse", file, "--grad-out", folder_ / "do.npy", "--grads",
                         folder_ / "all"})
                  .status,
              0);
    EXPECT_EQ(load_tensor(file + ":mine", "").shape(), (Tensor::Dims{1, 4, 40, 16}));
    EXPECT_EQ(load_tensor(file, "out").shape(), (Tensor::Dims{1, 4, 40, 16}));
    EXPECT_EQ(load_tensor(file, "lse").shape(), (Tensor::Dims{1, 4, 40}));
    const ProgramResult twice = attention({"--out", folder_ / "o.npy", "--lse", folder_ / "o.npy"});
    EXPECT_EQ(twice.status, 2);
    EXPECT_THAT(twice.error, HasSubstr("two go to"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "o.npy"));
}

TEST_F(AttentionCommand, BadInputIsStatus2AndNamed) {
    const std::string out = folder_ / "o.npy";
    const auto expect_error = [&](const std::vector<std::string>& arguments, const char* part) {
        const ProgramResult result = attention(arguments);
        EXPECT_EQ(result.status, 2);
        EXPECT_THAT(result.error, HasSubstr(part));
        EXPECT_EQ(result.out, "");
    };
    expect_error({}, "--out");
    expect_error({"--out", out, "--window", "3"}, "--window");
    expect_error({"--out", out, "--window", "3,4x"}, "--window");
    expect_error({"--out", out, "--window", "-5,4"}, "window");
    expect_error({"--out", out, "--layout", "sbhd"}, "--layout");
    expect_error({"--out", out, "--window", "3,"}, "--window LEFT,RIGHT but got \"3,\"");
    expect_error({"--out", out, "--window", "99999999999999999999,3"}, "--window");
    expect_error({"--out", out, "--mask", ""}, "--mask: expected a value");
    expect_error({"--out", out, "--score", ""}, "--score: expected a value");
    expect_error({"--out", out, "--grad-out", folder_ / "do.npy"}, "--grads or --check");
    expect_error({"--out", out, "--bind", "x=" + (folder_ / "q.npy")}, "--bind x but none does");
    expect_error({"--out", out, "--mask", "causal", "--bind", "x=" + (folder_ / "q.npy")},
                 "--bind x but none does");
    expect_error({"--out", out, "--seed", "3"}, "expected --dropout with --seed");
    expect_error({"--out", out, "--lse", "l.txt"}, "l.txt");
    expect_error({"--out", out, "--dropout", "0.5", "--seed", "-1"},
                 "--seed: expected an integer of 0 to 18446744073709551615");
    expect_error({"--out", out, "--dropout", "0.5", "--seed", "18446744073709551616"},
                 "--seed: expected an integer of 0 to 18446744073709551615");
    expect_error({"--out", out, "--grads", "d"}, "--grad-out");
    expect_error({"--out", out, "--grad-out", folder_ / "k.npy", "--check"}, "dout");
    expect_error({"--out", out, "--segment-ids", folder_ / "q.npy"}, "segment_ids");
    expect_error({"--out", out, "--segment-ids", folder_ / "none.npy"}, "none.npy");
    expect_error({"--out", folder_ / "o.txt"}, "o.txt");
    expect_error({"--out", out, "--device", "cuda"}, "--device");
    EXPECT_FALSE(std::filesystem::exists(out));
}

}  // namespace
}  // namespace tilewright::cli
