// Tensors in files: parses specifications, reads files and adds to them.
#include "cli/tensor_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "run/byte_reader.h"
#include "run/npy.h"
#include "run/safetensors.h"
#include "support/check.h"
#include "support/write_file.h"

namespace tilewright::cli {

using run::ByteReader;
using run::NamedTensor;

namespace {

constexpr std::string_view kNpy = ".npy";
constexpr std::string_view kSafetensors = ".safetensors";
constexpr std::string_view kReservedName = "__metadata__";

/// Locks out other processes that add to files in this folder, if the file system supports that.
class FolderLock {
  public:
    explicit FolderLock(const std::string& path) {
        const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
        file_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (file_ >= 0) ::flock(file_, LOCK_EX);
    }
    ~FolderLock() {
        if (file_ >= 0) ::close(file_);
    }
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;

  private:
    int file_ = -1;
};

/// Tensors that go to one file.
template <typename Output>
struct File {
    TensorSpec spec;
    std::vector<std::pair<std::string, const Output*>> members;
};

/// The files of the outputs, each once, regardless of how paths are spelled.
template <typename Output>
std::vector<File<Output>> by_file(const std::vector<Output>& outputs) {
    std::vector<File<Output>> files;
    std::map<std::string, std::size_t> places;
    for (const Output& output : outputs) {
        const TensorSpec to = parse_tensor_spec(output.spec, output.default_name);
        std::error_code error;
        const auto whole = std::filesystem::weakly_canonical(to.path, error);
        const std::string place = to.is_standard() || error ? to.path : whole.string();
        const auto [found, is_new] = places.try_emplace(place, files.size());
        if (is_new) files.push_back({to, {}});
        File<Output>& file = files[found->second];
        const bool npy = to.format == TensorSpec::Format::npy;
        for (const auto& [name, member] : file.members) {
            if (name == to.name || npy || file.spec.format != to.format) {
                user_error("save", "expected a place of its own for each tensor but two go to `{}`",
                           output.spec);
            }
        }
        file.members.emplace_back(to.name, &output);
    }
    return files;
}

void check_npy_member(const TensorSpec& to, DType dtype) {
    if (to.format == TensorSpec::Format::npy)
        run::check_npy_dtype(to.is_standard() ? "- (.npy; -:NAME writes .safetensors)" : to.path,
                             dtype);
}

bool is_old_file(const TensorSpec& to) {
    return to.format == TensorSpec::Format::safetensors &&
           std::filesystem::is_regular_file(to.path);
}

}  // namespace

TensorSpec parse_tensor_spec(const std::string& spec, const std::string& default_name) {
    if (spec == "-") return {TensorSpec::Format::npy, spec, default_name};
    if (spec.starts_with("-:") && spec.size() > 2)
        return {TensorSpec::Format::safetensors, "-", spec.substr(2)};
    if (spec.ends_with(kNpy)) return {TensorSpec::Format::npy, spec, ""};
    if (spec.ends_with(kSafetensors)) {
        return {TensorSpec::Format::safetensors, spec, default_name};
    }
    // The last such colon: folders may contain it, but tensor names rarely contain `.safetensors:`.
    const std::string separator = std::string(kSafetensors) + ":";
    const std::size_t at = spec.rfind(separator);
    if (at == std::string::npos || at + separator.size() == spec.size()) {
        user_error("file",
                   "expected FILE.npy, FILE.safetensors, FILE.safetensors:NAME or - but got `{}`",
                   spec);
    }
    return {TensorSpec::Format::safetensors, spec.substr(0, at + kSafetensors.size()),
            spec.substr(at + separator.size())};
}

const std::string& StandardInput::bytes() {
    if (!is_read_) {
        if (&stream_ == &std::cin && isatty(STDIN_FILENO) != 0)
            user_error("load", "expected a file on standard input but it is a terminal");
        bytes_.assign(std::istreambuf_iterator<char>(stream_), {});
        is_read_ = true;
    }
    return bytes_;
}

void StandardInput::take_npy() {
    if (is_taken_)
        user_error("load",
                   "expected .npy on standard input for one option but two read `-`; .safetensors "
                   "holds several tensors, as -:NAME");
    is_taken_ = true;
}

Tensor load_tensor(const std::string& spec, const std::string& default_name, StandardInput* input) {
    const TensorSpec from = parse_tensor_spec(spec, default_name);
    if (from.is_standard()) {
        if (input == nullptr) user_error("load", "expected a file but got standard input");
        std::istringstream stream(input->bytes());
        ByteReader reader(stream, "standard input");
        if (from.format == TensorSpec::Format::safetensors ||
            !input->bytes().starts_with("\x93NUMPY"))
            return run::read_safetensors(reader, from.name);
        input->take_npy();
        return run::read_npy(reader);
    }
    std::ifstream stream = run::open_file("load", from.path);
    ByteReader reader(stream, from.path);
    if (from.format == TensorSpec::Format::npy) return run::read_npy(reader);
    return run::read_safetensors(reader, from.name);
}

void check_outputs(const std::vector<PlannedTensor>& outputs, const std::ostream* out) {
    for (const File<PlannedTensor>& file : by_file(outputs)) {
        for (const auto& [name, output] : file.members) {
            check_npy_member(file.spec, output->dtype);
            if (name == kReservedName)
                user_error("save", "expected another name for a tensor than {}", name);
        }
        if (file.spec.is_standard()) {
            if (out == &std::cout && isatty(STDOUT_FILENO) != 0)
                user_error("save", "expected a file or a pipe for - but it is a terminal");
            continue;
        }
        expect_writable("save", file.spec.path);
        if (is_old_file(file.spec)) {
            std::ifstream stream = run::open_file("load", file.spec.path);
            ByteReader reader(stream, file.spec.path);
            run::read_safetensors_index(reader);
        }
    }
}

void save_tensors(const std::vector<OutputTensor>& outputs, std::ostream* out) {
    const auto files = by_file(outputs);
    for (const File<OutputTensor>& file : files)
        for (const auto& [name, output] : file.members)
            check_npy_member(file.spec, output->tensor.dtype());
    for (const File<OutputTensor>& file : files) {
        const std::string& path = file.spec.path;
        std::vector<NamedTensor> tensors;
        for (const auto& [name, output] : file.members)
            tensors.push_back({name, output->tensor.contiguous()});
        const auto write = [&](std::ostream& stream, ByteReader* old) {
            if (file.spec.format == TensorSpec::Format::npy) {
                run::write_npy(stream, path, tensors.front().tensor);
            } else {
                run::write_safetensors(stream, tensors, old);
            }
        };
        if (file.spec.is_standard()) {
            if (out == nullptr) user_error("save", "expected a file but got standard output");
            write(*out, nullptr);
            continue;
        }
        const FolderLock lock(path);
        std::optional<std::ifstream> stream;
        std::optional<ByteReader> old;
        if (is_old_file(file.spec)) old.emplace(stream.emplace(run::open_file("load", path)), path);
        write_file("save", path, [&](std::ostream& to) { write(to, old ? &*old : nullptr); });
    }
}

bool use_standard_output(const std::vector<std::string>& specs) {
    return std::any_of(specs.begin(), specs.end(), [](const std::string& spec) {
        return !spec.empty() && parse_tensor_spec(spec, "").is_standard();
    });
}

Bindings load_bindings(const char* op, const std::vector<std::string>& texts,
                       StandardInput* input) {
    Bindings arrays;
    for (const std::string& text : texts) {
        const std::size_t equals = text.find('=');
        if (equals == 0 || equals == std::string::npos)
            user_error(op, "expected --bind name=FILE but got {}", text);
        const std::string name = text.substr(0, equals);
        if (!arrays.emplace(name, load_tensor(text.substr(equals + 1), name, input)).second)
            user_error(op, "expected each name of --bind once but got {} twice", name);
    }
    return arrays;
}

void expect_bindings_read(const char* op, const Bindings& arrays, const std::vector<Mod>& mods) {
    const auto reads = [](const Mod& mod, const std::string& name) {
        if (!mod.defined()) return false;
        const std::vector<Capture> captures = mod.captures();
        return std::any_of(captures.begin(), captures.end(),
                           [&](const Capture& capture) { return capture.name() == name; });
    };
    for (const auto& [name, tensor] : arrays) {
        if (std::none_of(mods.begin(), mods.end(),
                         [&](const Mod& mod) { return reads(mod, name); }))
            user_error(op, "expected a text that reads the array of --bind {} but none does", name);
    }
}

}  // namespace tilewright::cli
