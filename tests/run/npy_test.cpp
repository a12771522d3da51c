// The .npy format: files by NumPy, both orders, every dtype, and wrong headers.
#include "run/npy.h"

#include <cstring>

#include "tests/run/file_helpers.h"

namespace tilewright::run {
namespace {

std::string npy_bytes(const Tensor& tensor, bool fortran_order = false) {
    std::ostringstream stream;
    write_npy(stream, "t", tensor, fortran_order);
    return stream.str();
}

Tensor parse(const std::string& bytes) {
    return read_bytes(bytes, read_npy);
}

// A version 1 file with this header text and this many data bytes.
std::string with_header(const std::string& header, std::size_t data_bytes = 0, int version = 1) {
    std::string bytes = "\x93NUMPY";
    bytes += static_cast<char>(version);
    bytes += '\0';
    for (int i = 0; i < (version == 1 ? 2 : 4); ++i) {
        bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
    }
    return bytes + header + std::string(data_bytes, '\1');
}

void expect_refused(const std::string& header, const std::string& part, std::size_t bytes = 0) {
    expect_user_error([&] { parse(with_header(header, bytes)); }, part);
}

TEST(Npy, EveryDtypeSurvivesInBothOrders) {
    for (DType dtype : {boolean, i8, u8, i16, u16, i32, u32, i64, u64, f16, f32, f64}) {
        for (const auto& shape :
             std::vector<std::vector<std::int64_t>>{{}, {7}, {2, 3, 5}, {4, 0, 3}}) {
            const Tensor tensor = random_tensor(dtype, shape);
            EXPECT_TRUE(identical(parse(npy_bytes(tensor)), tensor)) << name(dtype);
            EXPECT_TRUE(identical(parse(npy_bytes(tensor, true)), tensor)) << name(dtype);
        }
    }
}

TEST(Npy, FortranOrderIsColumnMajorInTheFile) {
    const Tensor tensor = Tensor::arange(u8, 6).reshape({2, 3});
    const std::string bytes = npy_bytes(tensor, true);
    EXPECT_EQ(bytes.substr(bytes.size() - 6), std::string("\0\3\1\4\2\5", 6));
}

TEST(Npy, ReadsWhatNumPyWrites) {
    const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
    for (int version : {1, 2, 3}) {
        const Tensor tensor = parse(with_header(header + "     \n", 12, version));
        EXPECT_EQ(tensor.dtype(), f32);
        EXPECT_EQ(tensor.shape(), std::vector<std::int64_t>{3});
    }
    EXPECT_EQ(
        parse(with_header("{\"shape\":(2L,1L),'descr':'<i1','fortran_order':True}", 2)).dtype(),
        i8);
}

TEST(Npy, WrittenElementsStartAtAMultipleOf64) {
    const std::string bytes = npy_bytes(random_tensor(f32, {3, 5}));
    EXPECT_EQ((bytes.size() - 60) % 64, 0u);
    EXPECT_EQ(bytes[bytes.size() - 61], '\n');
}

TEST(Npy, WrongMagicVersionAndLengths) {
    expect_user_error([] { parse(""); }, "does not start as one");
    expect_user_error([] { parse("\x93NUMPX\1\0\0\0........"); }, "does not start as one");
    expect_user_error([] { parse(with_header("{}", 0, 4)); }, "version 1, 2 or 3 but got 4");
    const std::string whole = npy_bytes(random_tensor(f64, {4}));
    expect_user_error([&] { parse(whole.substr(0, whole.size() - 1)); },
                      "t: expected 32 bytes for f64[4] but got 31");
    expect_user_error([&] { parse(whole + "x"); }, "expected 32 bytes for f64[4] but got 33");
    expect_user_error([&] { parse(whole.substr(0, 40)); }, "but the file has 40");
    std::string long_header = with_header("{}", 0, 2);
    std::memset(&long_header[8], 0xff, 4);
    expect_user_error([&] { parse(long_header); }, "claims 4294967295");
}

TEST(Npy, HeadersThatLie) {
    const std::string order = "'fortran_order': False, ";
    expect_refused("{'descr': '<f4', " + order + "}", "expected descr, fortran_order and shape");
    expect_refused("{'descr': '<f4', 'descr': '<f4', }", "once each, not `descr`");
    expect_refused("{'descr': '<f4', " + order + "'shape': (1,)} x", "nothing after");
    expect_refused("{'descr': '<f4', " + order + "'shape': (-1,)}", "an extent from 0");
    expect_refused("{'descr': '<f4', " + order + "'shape': (99999999999999999999,)}", "an extent");
    expect_refused("{'descr': '<f4', " + order + "'shape': (4611686018427387904, 2)}",
                   "below 2^63");
    expect_refused("{'descr': '<f4', " + order + "'shape': (0, 4611686018427387904, 2)}",
                   "below 2^63");
    expect_refused("{'descr': '<f4', " + order + "'shape': (1000000000,)}", "4000000000 bytes", 64);
    expect_refused("{'descr': '>f4', " + order + "'shape': ()}", "little-endian elements", 4);
    expect_refused("{'descr': '|V2', " + order + "'shape': ()}", ".safetensors", 2);
    expect_refused("{'descr': [('a', '<f4')], " + order + "'shape': ()}", "structured", 4);
    expect_refused("{'descr': '<f4', 'fortran_order': 0, 'shape': ()}", "True or False", 4);
    expect_refused("{'descr': '<f4", "a closing quote");
    std::string many = "{'descr': '<f4', " + order + "'shape': (";
    for (int i = 0; i < 65; ++i) many += "1,";
    expect_refused(many + ")}", "at most 64 dimensions", 4);
}

TEST(Npy, RefusesDtypesThatNumPyHasNot) {
    for (DType dtype : {bf16, f8e4m3, f8e5m2}) {
        expect_user_error([&] { npy_bytes(random_tensor(dtype, {2})); }, "use .safetensors");
    }
}

}  // namespace
}  // namespace tilewright::run
