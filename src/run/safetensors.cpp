// The .safetensors format: all of the header is checked before any data is read.
#include "run/safetensors.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "support/check.h"

namespace tilewright::run {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr int kMaxDepth = 3;                       // file > tensor > shape
constexpr std::size_t kMaxRank = 64;
constexpr std::string_view kMetadata = "__metadata__";

constexpr std::array<std::pair<std::string_view, DType>, kNumDTypes> kDTypes = {{
    {"BOOL", DType::boolean},
    {"I8", DType::i8},
    {"U8", DType::u8},
    {"I16", DType::i16},
    {"U16", DType::u16},
    {"I32", DType::i32},
    {"U32", DType::u32},
    {"I64", DType::i64},
    {"U64", DType::u64},
    {"F16", DType::f16},
    {"BF16", DType::bf16},
    {"F32", DType::f32},
    {"F64", DType::f64},
    {"F8_E4M3", DType::f8e4m3},
    {"F8_E5M2", DType::f8e5m2},
}};

std::optional<DType> parse_file_dtype(std::string_view text) {
    for (const auto& [name, dtype] : kDTypes) {
        if (name == text) return dtype;
    }
    return std::nullopt;
}

std::string_view file_dtype(DType dtype) {
    const auto* row = std::find_if(kDTypes.begin(), kDTypes.end(),
                                   [&](const auto& pair) { return pair.second == dtype; });
    return row->first;
}

// Parses the header and refuses deep nesting and repeated keys, which the parsed JSON would hide.
Json parse_header(const std::string& text, const std::string& file) {
    std::vector<std::set<std::string>> keys;
    const Json::parser_callback_t watch = [&](int depth, Json::parse_event_t event, Json& value) {
        if (depth > kMaxDepth) {
            user_error("safetensors", "{}: expected JSON of at most {} levels", file, kMaxDepth);
        }
        if (event == Json::parse_event_t::object_start) keys.emplace_back();
        if (event == Json::parse_event_t::object_end) keys.pop_back();
        if (event == Json::parse_event_t::key) {
            const auto& key = value.get_ref<const std::string&>();
            if (!keys.back().insert(key).second) {
                user_error("safetensors", "{}: expected each key once but `{}` repeats", file, key);
            }
        }
        return true;
    };
    try {
        Json header = Json::parse(text, watch);
        if (header.is_object()) return header;
    } catch (const Json::exception& error) {
        user_error("safetensors", "{}: expected a JSON header but got {}", file, error.what());
    }
    user_error("safetensors", "{}: expected a JSON object as header", file);
}

std::int64_t parse_count(const Json& value, const std::string& where) {
    // No file has offsets or extents above 2^63 - 1.
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT64_MAX) {
        user_error("safetensors", "{}: expected an integer from 0 to 2^63 - 1 but got {}", where,
                   value.dump());
    }
    return value.get<std::int64_t>();
}

SafetensorsEntry parse_entry(const Json& value, const std::string& where, std::uint64_t data_at,
                             std::uint64_t data_size) {
    if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
        !value.contains("shape") || !value.contains("data_offsets")) {
        user_error("safetensors", "{}: expected dtype, shape and data_offsets", where);
    }
    const Json& dtype = value["dtype"];
    const Json& shape = value["shape"];
    const Json& offsets = value["data_offsets"];
    if (!dtype.is_string()) {
        user_error("safetensors", "{}: expected a string as dtype but got {}", where, dtype.dump());
    }
    if (!shape.is_array() || shape.size() > kMaxRank) {
        user_error("safetensors", "{}: expected a list of at most {} extents as shape", where,
                   kMaxRank);
    }
    if (!offsets.is_array() || offsets.size() != 2) {
        user_error("safetensors", "{}: expected [begin, end] as data_offsets but got {}", where,
                   offsets.dump());
    }
    SafetensorsEntry entry;
    entry.dtype = dtype.get<std::string>();
    for (const Json& extent : shape) entry.shape.push_back(parse_count(extent, where));
    const auto begin = static_cast<std::uint64_t>(parse_count(offsets[0], where));
    const auto end = static_cast<std::uint64_t>(parse_count(offsets[1], where));
    if (begin > end || end > data_size) {
        user_error("safetensors", "{}: expected offsets in order and up to {} but got [{}, {}]",
                   where, data_size, begin, end);
    }
    entry.begin = data_at + begin;
    entry.end = data_at + end;
    if (const auto type = parse_file_dtype(entry.dtype)) {
        const std::uint64_t bytes = checked_bytes(where, *type, entry.shape);
        if (bytes != end - begin) {
            user_error("safetensors", "{}: expected {} bytes for {}[{}] but the offsets hold {}",
                       where, bytes, name(*type), fmt::join(entry.shape, ", "), end - begin);
        }
    }
    return entry;
}

// The data must be covered exactly once, from the header to the end of the file.
void check_coverage(const std::map<std::string, SafetensorsEntry>& entries, const std::string& file,
                    std::uint64_t data_at, std::uint64_t file_size) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (const auto& [name, entry] : entries) ranges.emplace_back(entry.begin, entry.end);
    std::sort(ranges.begin(), ranges.end());
    std::uint64_t covered = data_at;
    for (const auto& [begin, end] : ranges) {
        if (begin != covered) {
            user_error("safetensors",
                       "{}: expected tensors side by side but byte {} of the data {}", file,
                       std::min(begin, covered) - data_at,
                       begin < covered ? "belongs to two" : "belongs to none");
        }
        covered = end;
    }
    if (covered != file_size) {
        user_error("safetensors", "{}: expected {} bytes of data but got {}", file,
                   covered - data_at, file_size - data_at);
    }
}

/// Copies bytes [begin, end) of the file piece by piece.
void copy_bytes(ByteReader& file, std::uint64_t begin, std::uint64_t end, std::ostream& stream) {
    constexpr std::uint64_t kPiece = 1 << 20;
    for (; begin < end; begin += std::min(kPiece, end - begin)) {
        const std::string piece = file.read_text(begin, std::min(kPiece, end - begin));
        stream.write(piece.data(), static_cast<std::streamsize>(piece.size()));
    }
}

}  // namespace

SafetensorsIndex read_safetensors_index(ByteReader& file) {
    constexpr std::uint64_t kLengthBytes = 8;
    if (file.size() < kLengthBytes) {
        user_error("safetensors", "{}: expected at least {} bytes but got {}", file.name(),
                   kLengthBytes, file.size());
    }
    const std::uint64_t header_size = file.read_integer(0, kLengthBytes);
    if (header_size > kMaxHeader || header_size > file.size() - kLengthBytes) {
        user_error("safetensors",
                   "{}: expected a header within the file of {} bytes but it claims {}",
                   file.name(), file.size(), header_size);
    }
    const Json header = parse_header(file.read_text(kLengthBytes, header_size), file.name());
    const std::uint64_t data_at = kLengthBytes + header_size;
    SafetensorsIndex index;
    for (const auto& [name, value] : header.items()) {
        if (name == kMetadata) {  // free text from the writer
            index.metadata = value.dump();
            continue;
        }
        const std::string where = fmt::format("{}:{}", file.name(), name);
        index.tensors[name] = parse_entry(value, where, data_at, file.size() - data_at);
    }
    check_coverage(index.tensors, file.name(), data_at, file.size());
    return index;
}

Tensor read_safetensors(ByteReader& file, const std::string& name) {
    const auto entries = read_safetensors_index(file).tensors;
    const auto found = entries.find(name);
    if (found == entries.end()) {
        std::vector<std::string> names;
        for (const auto& [key, entry] : entries) names.push_back(key);
        user_error("safetensors", "{}: expected a tensor named `{}` but the file holds: {}",
                   file.name(), name,
                   names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", ")));
    }
    const SafetensorsEntry& entry = found->second;
    const auto dtype = parse_file_dtype(entry.dtype);
    if (!dtype) {
        user_error("safetensors", "{}:{}: expected a dtype known here but got `{}`", file.name(),
                   name, entry.dtype);
    }
    Tensor tensor = Tensor::empty(*dtype, entry.shape);
    file.read(entry.begin, bytes_of(tensor));
    return tensor;
}

void write_safetensors(std::ostream& stream, const std::vector<NamedTensor>& tensors,
                       ByteReader* old) {
    Json header = Json::object();
    std::uint64_t end = 0;
    const auto add = [&](const std::string& name, std::string_view dtype,
                         const std::vector<std::int64_t>& shape, std::uint64_t bytes) {
        const std::uint64_t begin = std::exchange(end, end + bytes);
        header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, end}}};
    };
    std::vector<SafetensorsEntry> kept;
    if (old != nullptr) {
        const SafetensorsIndex index = read_safetensors_index(*old);
        if (!index.metadata.empty()) header[std::string(kMetadata)] = Json::parse(index.metadata);
        for (const auto& [name, entry] : index.tensors) {
            if (std::any_of(tensors.begin(), tensors.end(),
                            [&, &old_name = name](const auto& t) { return t.name == old_name; }))
                continue;
            add(name, entry.dtype, entry.shape, entry.end - entry.begin);
            kept.push_back(entry);
        }
    }
    for (const auto& [name, tensor] : tensors) {
        if (name == kMetadata || header.contains(name)) {
            user_error("safetensors", "expected a name of its own for each tensor but got `{}`",
                       name);
        }
        add(name, file_dtype(tensor.dtype()), tensor.shape(), bytes_of(tensor).size());
    }
    // A name that is not UTF-8 cannot be written as it is; its bad bytes become U+FFFD.
    std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
    text.resize((text.size() + 7) / 8 * 8, ' ');  // elements start at a multiple of 8 bytes
    for (int i = 0; i < 8; ++i) stream.put(static_cast<char>(text.size() >> (8 * i) & 0xff));
    stream.write(text.data(), static_cast<std::streamsize>(text.size()));
    for (const SafetensorsEntry& entry : kept) copy_bytes(*old, entry.begin, entry.end, stream);
    for (const auto& [name, tensor] : tensors) {
        stream.write(static_cast<const char*>(tensor.raw()), tensor.nbytes());
    }
}

}  // namespace tilewright::run
