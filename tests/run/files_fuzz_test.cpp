// Damaged files: any mutation of a valid file parses or throws UserError, without huge allocations.
#include <random>

#include "run/npy.h"
#include "run/safetensors.h"
#include "tests/run/file_helpers.h"

namespace tilewright::run {
namespace {

constexpr int kMutants = 20000;

// One to four edits: flipped bits, random bytes, truncation, growth, copied pieces, other digits.
std::string mutate(std::string bytes, std::mt19937& random) {
    const auto below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
    for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
        const std::size_t at = below(bytes.size());
        switch (below(6)) {
            case 0:
                if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
                break;
            case 1:
                if (!bytes.empty()) bytes[at] = static_cast<char>(below(256));
                break;
            case 2:
                bytes.resize(at);
                break;
            case 3:
                bytes.insert(at, 1 + below(9), static_cast<char>(below(256)));
                break;
            case 4:
                bytes.insert(below(bytes.size()), bytes.substr(at, 1 + below(12)));
                break;
            default:
                for (std::size_t i = at; i < bytes.size(); ++i) {
                    if (bytes[i] < '0' || bytes[i] > '9') continue;
                    bytes[i] = static_cast<char>('0' + below(10));
                    break;
                }
        }
    }
    return bytes;
}

// Every mutant of the seeds must be read or refused; both must occur, or the test proves nothing.
template <typename Read>
void fuzz(const std::vector<std::string>& seeds, const Read& read) {
    int parsed = 0, refused = 0;
    for (unsigned seed = 0; seed < kMutants; ++seed) {
        std::mt19937 random(seed);
        const std::string bytes = mutate(seeds[seed % seeds.size()], random);
        try {
            const Tensor tensor = read_bytes(bytes, read);
            ASSERT_EQ(bytes_of(tensor).size(), checked_bytes("t", tensor.dtype(), tensor.shape()))
                << seed;
            ASSERT_LE(bytes_of(tensor).size(), bytes.size()) << seed;
            ++parsed;
        } catch (const UserError& error) {
            ASSERT_NE(std::string(error.what()).find("t:"), std::string::npos) << error.what();
            ++refused;
        } catch (const std::exception& error) {
            FAIL() << "seed " << seed << ": " << error.what();
        }
    }
    EXPECT_GT(parsed, 100);
    EXPECT_GT(refused, 1000);
}

TEST(TensorFileFuzz, Npy) {
    std::vector<std::string> seeds;
    for (const Tensor& tensor : {random_tensor(f32, {2, 3}), random_tensor(boolean, {}),
                                 random_tensor(i64, {0, 5}), random_tensor(f16, {3, 1, 2, 2})}) {
        for (bool fortran_order : {false, true}) {
            std::ostringstream stream;
            write_npy(stream, "t", tensor, fortran_order);
            seeds.push_back(stream.str());
        }
    }
    fuzz(seeds, read_npy);
}

TEST(TensorFileFuzz, Safetensors) {
    const Tensor a = random_tensor(bf16, {2, 3}), b = random_tensor(i32, {}),
                 empty = random_tensor(f8e4m3, {0, 7});
    std::vector<std::string> seeds;
    for (const std::vector<NamedTensor>& tensors :
         {std::vector<NamedTensor>{{"a", a}}, {{"b", b}, {"a", a}}, {{"a", empty}, {"b", b}}}) {
        std::ostringstream stream;
        write_safetensors(stream, tensors);
        seeds.push_back(stream.str());
    }
    fuzz(seeds, [](ByteReader& file) { return read_safetensors(file, "a"); });
}

}  // namespace
}  // namespace tilewright::run
