// The public functions for .npy and .safetensors files.
#include "tilewright/files.h"

#include <filesystem>
#include <fstream>
#include <vector>

#include "run/npy.h"
#include "run/safetensors.h"
#include "support/check.h"
#include "support/write_file.h"

namespace tilewright {

namespace {

/// Runs `read` on the bytes of a file.
template <typename Read>
auto read_file(const char* op, const std::string& path, Read&& read) {
    std::ifstream stream = run::open_file(op, path);
    run::ByteReader reader(stream, path);
    return read(reader);
}

Tensor on_host(const char* op, const Tensor& tensor) {
    if (!tensor.defined()) user_error(op, "expected a tensor but got an undefined one");
    return tensor.to(Device{}).contiguous();
}

}  // namespace

Tensor load_npy(const std::string& path) {
    return read_file("load_npy", path, run::read_npy);
}

void save_npy(const std::string& path, const Tensor& tensor) {
    const Tensor dense = on_host("save_npy", tensor);
    run::check_npy_dtype(path, dense.dtype());
    write_file("save_npy", path,
               [&](std::ostream& stream) { run::write_npy(stream, path, dense); });
}

std::map<std::string, Tensor> load_safetensors(const std::string& path) {
    return read_file("load_safetensors", path, [](run::ByteReader& file) {
        std::map<std::string, Tensor> tensors;
        for (const auto& [name, entry] : run::read_safetensors_index(file).tensors)
            tensors.emplace(name, run::read_safetensors(file, name));
        return tensors;
    });
}

Tensor load_safetensors(const std::string& path, const std::string& name) {
    return read_file("load_safetensors", path,
                     [&](run::ByteReader& file) { return run::read_safetensors(file, name); });
}

void save_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors) {
    std::vector<run::NamedTensor> members;
    for (const auto& [name, tensor] : tensors)
        members.push_back({name, on_host("save_safetensors", tensor)});
    write_file("save_safetensors", path,
               [&](std::ostream& stream) { run::write_safetensors(stream, members); });
}

}  // namespace tilewright
