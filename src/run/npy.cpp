// NumPy's .npy format: a magic number, a header that is a Python dict literal, raw elements.
#include "run/npy.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <optional>
#include <utility>

#include "support/check.h"

namespace tilewright::run {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::uint64_t kMaxHeader = 1 << 16;
constexpr std::size_t kMaxRank = 64;  // NumPy's own limit

constexpr std::array<std::pair<std::string_view, DType>, 12> kDescriptors = {{
    {"|b1", DType::boolean},
    {"|i1", DType::i8},
    {"|u1", DType::u8},
    {"<i2", DType::i16},
    {"<u2", DType::u16},
    {"<i4", DType::i32},
    {"<u4", DType::u32},
    {"<i8", DType::i64},
    {"<u8", DType::u64},
    {"<f2", DType::f16},
    {"<f4", DType::f32},
    {"<f8", DType::f64},
}};

std::optional<std::string_view> descriptor_of(DType dtype) {
    for (const auto& [text, type] : kDescriptors) {
        if (type == dtype) return text;
    }
    return std::nullopt;
}

struct Header {
    std::string descriptor;
    bool fortran_order = false;
    std::vector<std::int64_t> shape;
};

// Reads the dict literal that NumPy writes: keys are strings; values are strings, bools and tuples.
class HeaderParser {
  public:
    HeaderParser(std::string_view text, const std::string& file) : text_(text), file_(file) {}

    Header parse() {
        Header header;
        bool has_descriptor = false, has_order = false, has_shape = false;
        expect('{');
        while (!accept('}')) {
            const std::string key = string();
            expect(':');
            if (key == "descr" && !std::exchange(has_descriptor, true)) {
                header.descriptor = string();
            } else if (key == "fortran_order" && !std::exchange(has_order, true)) {
                header.fortran_order = boolean();
            } else if (key == "shape" && !std::exchange(has_shape, true)) {
                header.shape = tuple();
            } else {
                fail(fmt::format("descr, fortran_order and shape once each, not `{}`", key));
            }
            if (!accept(',')) {
                expect('}');
                break;
            }
        }
        skip_space();
        if (at_ != text_.size()) fail("nothing after the header's `}`");
        if (!has_descriptor || !has_order || !has_shape) fail("descr, fortran_order and shape");
        return header;
    }

  private:
    [[noreturn]] void fail(std::string_view expected) const {
        // Unprintable bytes would garble the message.
        std::string got(text_.substr(at_, 20));
        for (char& c : got) {
            if (!std::isprint(static_cast<unsigned char>(c))) c = '?';
        }
        user_error("npy", "{}: expected {} but got `{}` at byte {} of the header", file_, expected,
                   got, at_);
    }

    void skip_space() {
        while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    }

    bool accept(char c) {
        skip_space();
        if (at_ >= text_.size() || text_[at_] != c) return false;
        ++at_;
        return true;
    }

    void expect(char c) {
        if (!accept(c)) fail(fmt::format("`{}`", c));
    }

    bool accept_word(std::string_view word) {
        skip_space();
        if (!text_.substr(at_).starts_with(word)) return false;
        at_ += word.size();
        return true;
    }

    std::string string() {
        const char quote = accept('\'') ? '\'' : '"';
        if (quote == '"' && !accept('"')) fail("a string (structured dtypes are not supported)");
        const std::size_t end = text_.find(quote, at_);
        if (end == std::string_view::npos) fail("a closing quote");
        return std::string(text_.substr(std::exchange(at_, end + 1), end - at_));
    }

    bool boolean() {
        if (accept_word("True")) return true;
        if (!accept_word("False")) fail("True or False");
        return false;
    }

    std::vector<std::int64_t> tuple() {
        std::vector<std::int64_t> values;
        expect('(');
        while (!accept(')')) {
            skip_space();
            std::int64_t value = 0;
            const auto [end, error] =
                std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
            if (error != std::errc() || value < 0) fail("an extent from 0 to 2^63 - 1");
            at_ = static_cast<std::size_t>(end - text_.data());
            accept('L');  // long integers of Python 2
            values.push_back(value);
            if (values.size() > kMaxRank) fail(fmt::format("at most {} dimensions", kMaxRank));
            if (!accept(',')) {
                expect(')');
                break;
            }
        }
        return values;
    }

    std::string_view text_;
    const std::string& file_;
    std::size_t at_ = 0;
};

DType parse_descriptor(const std::string& file, const std::string& descriptor) {
    for (const auto& [text, dtype] : kDescriptors) {
        // NumPy marks one-byte types with `|`, but any byte order is accepted for them.
        if (descriptor == text) return dtype;
        if (size_of(dtype) == 1 && descriptor.size() == 3 &&
            descriptor.substr(1) == text.substr(1)) {
            return dtype;
        }
    }
    if (descriptor.starts_with('>')) {
        user_error("npy", "{}: expected little-endian elements but got dtype `{}`", file,
                   descriptor);
    }
    user_error("npy",
               "{}: expected a dtype among bool, integers, f16, f32 and f64 but got `{}` (bf16 and "
               "8-bit floats travel in .safetensors)",
               file, descriptor);
}

// Reverses the dimensions: row-major elements become column-major ones.
Tensor reverse_dims(const Tensor& tensor) {
    std::vector<int> order;
    for (int d = tensor.rank(); d-- > 0;) order.push_back(d);
    return tensor.transpose(order);
}

}  // namespace

Tensor read_npy(ByteReader& file) {
    const std::string& name = file.name();
    if (file.size() < kMagic.size() + 4 || file.read_text(0, kMagic.size()) != kMagic) {
        user_error("npy", "{}: expected a .npy file but it does not start as one", name);
    }
    const std::uint64_t major = file.read_integer(6, 1);
    if (major < 1 || major > 3) {
        user_error("npy", "{}: expected .npy version 1, 2 or 3 but got {}", name, major);
    }
    const int length_bytes = major == 1 ? 2 : 4;
    const std::uint64_t header_at = 8 + static_cast<std::uint64_t>(length_bytes);
    const std::uint64_t header_size = file.read_integer(8, length_bytes);
    if (header_size > kMaxHeader) {
        user_error("npy", "{}: expected a header of at most {} bytes but it claims {}", name,
                   kMaxHeader, header_size);
    }
    const std::string text = file.read_text(header_at, header_size);
    Header header = HeaderParser(text, name).parse();

    const DType dtype = parse_descriptor(name, header.descriptor);
    std::vector<std::int64_t> shape = std::move(header.shape);
    const std::uint64_t data_at = header_at + header_size;
    const std::uint64_t bytes = checked_bytes(name, dtype, shape);
    if (bytes != file.size() - data_at) {
        user_error("npy", "{}: expected {} bytes for {}[{}] but got {}", name, bytes,
                   tilewright::name(dtype), fmt::join(shape, ", "), file.size() - data_at);
    }
    if (header.fortran_order) std::reverse(shape.begin(), shape.end());
    const Tensor tensor = Tensor::empty(dtype, std::move(shape));
    file.read(data_at, bytes_of(tensor));
    return header.fortran_order ? reverse_dims(tensor).contiguous() : tensor;
}

void check_npy_dtype(const std::string& file, DType dtype) {
    if (!descriptor_of(dtype)) {
        user_error("npy", "{}: expected a dtype that .npy can hold but got {}; use .safetensors",
                   file, name(dtype));
    }
}

void write_npy(std::ostream& stream, const std::string& file, const Tensor& tensor,
               bool fortran_order) {
    check_npy_dtype(file, tensor.dtype());
    std::string header =
        fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': ({}{}), }}",
                    *descriptor_of(tensor.dtype()), fortran_order ? "True" : "False",
                    fmt::join(tensor.shape(), ", "), tensor.rank() == 1 ? "," : "");
    // Elements start at a multiple of 64 bytes; ten bytes precede the header in version 1.
    header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
    header += '\n';
    TW_ASSERT(header.size() < 1 << 16);
    stream.write(kMagic.data(), static_cast<std::streamsize>(kMagic.size()));
    stream.put(1).put(0);
    stream.put(static_cast<char>(header.size() & 0xff)).put(static_cast<char>(header.size() >> 8));
    stream.write(header.data(), static_cast<std::streamsize>(header.size()));

    const Tensor ordered = (fortran_order ? reverse_dims(tensor) : tensor).contiguous();
    stream.write(static_cast<const char*>(ordered.raw()), ordered.nbytes());
}

}  // namespace tilewright::run
