// The .safetensors format: round trips, files by other writers, and wrong headers.
#include "run/safetensors.h"

#include "tests/run/file_helpers.h"

namespace tilewright::run {
namespace {

std::string file_of(const std::string& header, std::size_t data_bytes = 0) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
    return bytes + header + std::string(data_bytes, '\1');
}

Tensor parse_file(const std::string& bytes, const std::string& name = "a") {
    return read_bytes(bytes, [&](ByteReader& file) { return read_safetensors(file, name); });
}

void expect_refused(const std::string& header, std::size_t bytes, const std::string& part) {
    expect_user_error([&] { parse_file(file_of(header, bytes)); }, part);
}

TEST(Safetensors, EveryDtypeSurvives) {
    std::vector<Tensor> tensors;
    for (int i = 0; i < kNumDTypes; ++i) {
        tensors.push_back(
            random_tensor(static_cast<DType>(i), {2, 1, 3}, static_cast<unsigned>(i)));
    }
    tensors.push_back(random_tensor(f32, {}));
    tensors.push_back(random_tensor(bf16, {0, 4}));
    std::vector<NamedTensor> named;
    for (const Tensor& tensor : tensors) {
        named.push_back({"t" + std::to_string(named.size()), tensor});
    }
    std::ostringstream stream;
    write_safetensors(stream, named);
    for (const auto& [name, tensor] : named)
        EXPECT_TRUE(identical(parse_file(stream.str(), name), tensor)) << name;
}

TEST(Safetensors, ReadsMetadataPaddingAndAnyOrder) {
    const std::string header =
        R"({"__metadata__":{"format":"pt"},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},)"
        R"("a":{"data_offsets":[0,4],"dtype":"BF16","shape":[1,2]}}   )";
    const Tensor tensor = parse_file(file_of(header, 6));
    EXPECT_EQ(tensor.dtype(), bf16);
    EXPECT_EQ(tensor.shape(), (std::vector<std::int64_t>{1, 2}));
}

TEST(Safetensors, DtypesFromTheFutureFailOnlyWhenRead) {
    const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                               R"("b":{"dtype":"F4","shape":[2],"data_offsets":[1,2]}})";
    EXPECT_EQ(parse_file(file_of(header, 2)).dtype(), u8);
    expect_user_error([&] { parse_file(file_of(header, 2), "b"); },
                      "t:b: expected a dtype known here");
}

TEST(Safetensors, NamesWhatTheFileHolds) {
    const std::string header = R"({"q":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
    expect_refused(header, 1, "expected a tensor named `a` but the file holds: q");
    expect_refused("{}", 0, "the file holds: nothing");
}

TEST(Safetensors, HeadersThatLie) {
    const auto entry = [](const std::string& text) { return "{\"a\":{" + text + "}}"; };
    const std::string u8_1 = R"("dtype":"U8","shape":[1],"data_offsets":[0,1])";
    expect_user_error([] { parse_file("1234567"); }, "at least 8 bytes but got 7");
    expect_user_error([] { parse_file(std::string(8, '\xff')); }, "claims 18446744073709551615");
    expect_refused("[]", 0, "a JSON object");
    expect_refused("{\"a\":", 0, "a JSON header but got");
    expect_refused(std::string(100000, '['), 0, "at most 3 levels");
    expect_refused("{\"a\":{" + u8_1 + "},\"a\":{" + u8_1 + "}}", 1, "`a` repeats");
    expect_refused(entry(u8_1 + ",\"dtype\":\"I8\""), 1, "`dtype` repeats");
    expect_refused(entry(u8_1 + ",\"more\":1"), 1, "expected dtype, shape and data_offsets");
    expect_refused("{\"a\":1}", 0, "expected dtype, shape and data_offsets");
    expect_refused(entry(R"("dtype":1,"shape":[1],"data_offsets":[0,1])"), 1, "a string as dtype");
    expect_refused(entry(R"("dtype":"U8","shape":1,"data_offsets":[0,1])"), 1, "a list of at most");
    expect_refused(entry(R"("dtype":"U8","shape":[1.5],"data_offsets":[0,1])"), 1, "but got 1.5");
    expect_refused(entry(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), 1, "but got -1");
    expect_refused(entry(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), 1, "[begin, end]");
    expect_refused(entry(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])"), 1,
                   "offsets in order");
    expect_refused(entry(R"("dtype":"U8","shape":[9],"data_offsets":[0,9])"), 1, "up to 1 but got");
    expect_refused(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4,
                   "t:a: expected 8 bytes for f32[2] but the offsets hold 4");
    expect_refused(entry(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0])"),
                   0, "below 2^63");
    expect_refused(entry(u8_1), 2, "expected 1 bytes of data but got 2");
    const std::string b = R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)";
    expect_refused(entry(u8_1 + b + "[0,2]"), 2, "byte 0 of the data belongs to two");
    expect_refused(entry(u8_1 + b + "[2,4]"), 4, "byte 1 of the data belongs to none");
}

}  // namespace
}  // namespace tilewright::run
