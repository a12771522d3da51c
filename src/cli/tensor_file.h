// Tensors in files: formats, and reading and writing by specification.
#pragma once

#include <cstdint>
#include <istream>
#include <ostream>
#include <string>
#include <vector>

#include "tilewright/mod.h"
#include "tilewright/tensor.h"

namespace tilewright::cli {

/// Standard input, read once as a whole if `-` asks for it.
class StandardInput {
  public:
    explicit StandardInput(std::istream& stream) : stream_(stream) {}
    /// All of it. UserError for a terminal.
    const std::string& bytes();
    /// UserError from the second call on: only one option may use an .npy array.
    void take_npy();

  private:
    std::istream& stream_;
    std::string bytes_;
    bool is_read_ = false, is_taken_ = false;
};

/// Reads the tensor that `spec` names: `FILE.npy`, `FILE.safetensors` or `FILE.safetensors:NAME`,
/// where NAME defaults to `default_name`; `-` and `-:NAME` are standard input, in either format.
/// The result is row-major. UserError if there is no such file or tensor, if the file is malformed,
/// or for `-` without `input`.
Tensor load_tensor(const std::string& spec, const std::string& default_name,
                   StandardInput* input = nullptr);

/// A tensor to write to a file; `spec` and `default_name` as in load_tensor.
struct OutputTensor {
    std::string spec;
    std::string default_name;
    Tensor tensor;  ///< with any strides, on the CPU
};

/// Writes tensors; several may go to one .safetensors file. Its tensors with other names are kept,
/// even if several processes add to it. `-` is `out` as .npy, `-:NAME` as .safetensors. Every file
/// appears under its name complete or not at all. UserError as from `check_outputs`, and if a file
/// cannot be written or added to.
void save_tensors(const std::vector<OutputTensor>& outputs, std::ostream* out = nullptr);

/// A tensor that has not been computed yet.
struct PlannedTensor {
    std::string spec;
    std::string default_name;
    DType dtype = DType::f32;
};

/// UserError if save_tensors would certainly refuse them: two tensors have the same destination, a
/// format cannot hold a dtype, a folder cannot be written, a .safetensors file is malformed.
void check_outputs(const std::vector<PlannedTensor>& outputs, const std::ostream* out = nullptr);

/// True if one of the specifications writes to standard output.
bool use_standard_output(const std::vector<std::string>& specs);

/// The arrays of options --bind NAME=FILE. UserError "[op] ..." for other forms and repeated names.
Bindings load_bindings(const char* op, const std::vector<std::string>& texts,
                       StandardInput* input = nullptr);
/// UserError "[op] ..." for an array that none of the defined mods reads.
void expect_bindings_read(const char* op, const Bindings& arrays, const std::vector<Mod>& mods);

/// A parsed specification; `name` is empty for .npy, `path` is `-` for standard input and output.
struct TensorSpec {
    enum class Format : std::uint8_t { npy, safetensors };
    Format format = Format::npy;
    std::string path;
    std::string name;

    bool is_standard() const { return path == "-"; }
};
TensorSpec parse_tensor_spec(const std::string& spec, const std::string& default_name);

}  // namespace tilewright::cli
