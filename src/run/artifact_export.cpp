// Writes artifacts: records what an operation launches and compiles it ahead of time.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "cuda/codegen/launch_arguments.h"
#include "cuda/schedule/schedule.h"
#include "ir/parse.h"
#include "ir/passes/effects.h"
#include "ir/print.h"
#include "run/artifact_format.h"
#include "run/byte_reader.h"
#include "run/recorder.h"
#include "support/check.h"
#include "support/write_file.h"
#include "tilewright/version.h"

namespace tilewright {
namespace run {

std::vector<bool> written_refs(const ir::Function& kernel) {
    std::set<ir::Value> writes;
    for (const ir::Instruction& instruction : kernel.body.body)
        writes.merge(ir::effects(instruction).writes);
    std::vector<bool> result;
    for (const ir::Value value : kernel.parameters()) {
        if (kernel.is_ref(value) && kernel.ref_type(value).space == ir::Space::global)
            result.push_back(ir::may_write(kernel, writes, value));
    }
    return result;
}

}  // namespace run

namespace {

namespace fs = std::filesystem;
using run::Json;
using run::RecordedLaunch;
using run::RecordedPlace;

constexpr const char* kOp = "export";

/// What an operation launched, with its inputs followed by its results.
struct Recorded {
    std::vector<RecordedLaunch> launches;
    std::int64_t memory_bytes = 0;
    std::vector<Tensor> results;
};

Recorded record(const std::vector<Tensor>& inputs, const ExportedOperation& operation) {
    run::interrupt_recording();  // of an enclosing operation
    run::Recorder recorder(inputs, run::Recorder::By::address);
    Recorded recorded;
    {
        const run::RecorderScope scope(&recorder);
        recorded.results = operation(inputs);
    }
    if (!recorder.complete())
        user_error(kOp,
                   "expected an operation that only launches kernels on its arrays, on new memory "
                   "and on arrays that were there before, but the host reads or writes elements "
                   "in it, or it launches nothing; build masks before it (create_block_mask)");
    for (std::size_t i = 0; i < recorded.results.size(); ++i)
        recorder.adopt(kOp, fmt::format("result {}", i), recorded.results[i]);
    recorded.memory_bytes = recorder.memory_bytes();
    recorded.launches = recorder.take_launches();
    return recorded;
}

/// The elements in reverse order: other values in the same range.
Tensor reversed(const Tensor& tensor) {
    Tensor result = tensor.clone();
    const std::int64_t size = size_of(result.dtype());
    auto* const bytes = static_cast<std::byte*>(result.raw());
    for (std::int64_t i = 0, j = result.size() - 1; i < j; ++i, --j)
        std::swap_ranges(bytes + i * size, bytes + (i + 1) * size, bytes + j * size);
    return result;
}

bool equal_constants(const RecordedLaunch& a, const RecordedLaunch& b) {
    return std::equal(a.constants.begin(), a.constants.end(), b.constants.begin(),
                      b.constants.end(), [](const Tensor& x, const Tensor& y) {
                          return x.dtype() == y.dtype() && x.shape() == y.shape() &&
                                 x.fingerprint() == y.fingerprint();
                      });
}

/// Records on the inputs, after a run that chooses and builds what calls keep, and on other inputs,
/// which reveals what the host computed from their elements.
Recorded record_checked(const std::vector<Tensor>& inputs, const ExportedOperation& operation) {
    std::vector<Tensor> own, other;
    for (const Tensor& input : inputs) {
        own.push_back(input.clone());
        other.push_back(reversed(input));
    }
    operation(own);
    Recorded recorded = record(own, operation);
    const Recorded again = record(other, operation);
    if (!std::equal(recorded.launches.begin(), recorded.launches.end(), again.launches.begin(),
                    again.launches.end(), equal_constants))
        user_error(kOp,
                   "expected an operation whose kernels read its arrays, but the host computes "
                   "other arrays from them, which an artifact would keep as they are now");
    return recorded;
}

/// A folder that is being written.
class Writer {
  public:
    Writer(const std::string& folder, const std::vector<Tensor>& arrays)
        : folder_(folder), arrays_(arrays), written_(arrays.size()) {}

    void add_target(const char* target, const Recorded& recorded,
                    const std::vector<std::string>& archs) {
        Json steps = Json::array();
        for (std::size_t i = 0; i < recorded.launches.size(); ++i) {
            const std::string stem = fmt::format("{}_{}", target, i);
            steps.push_back(step(recorded.launches[i], stem, archs));
        }
        targets_[target] = {{"memory_bytes", recorded.memory_bytes}, {"steps", steps}};
    }

    /// Replaces the contents of the folder; writes the manifest last.
    void finish(const std::string& name, const std::vector<std::string>& names,
                const std::vector<bool>& results) {
        std::vector<Artifact::Parameter> parameters;
        Json listed = Json::array(), files;
        for (std::size_t i = 0; i < arrays_.size(); ++i) {
            const Tensor& array = arrays_[i];
            parameters.push_back(
                {names[i], {array.dtype(), array.shape()}, written_[i], results[i]});
            listed.push_back({{"name", names[i]},
                              {"dtype", tilewright::name(array.dtype())},
                              {"shape", array.shape()},
                              {"written", static_cast<bool>(written_[i])},
                              {"result", static_cast<bool>(results[i])}});
        }
        for (const auto& [file, bytes] : files_)
            files[file] = {{"bytes", bytes.size()}, {"hash", content_hash(bytes)}};
        Json manifest = {{"format", run::kArtifactFormat},
                         {"version", run::kArtifactVersion},
                         {"tilewright", TILEWRIGHT_VERSION},
                         {"name", name},
                         {"parameters", listed},
                         {"constants", constants_},
                         {"targets", targets_},
                         {"files", files}};
        const std::string checksum = run::manifest_checksum(manifest);
        manifest[run::kChecksum] = checksum;
        clear_folder();
        for (const auto& [file, bytes] : files_) write(file, bytes);
        write(run::identifier(name) + ".h", run::launcher_header(name, checksum, parameters));
        write(run::kManifest, manifest.dump(1) + "\n");
    }

  private:
    Json step(const RecordedLaunch& launch, const std::string& stem,
              const std::vector<std::string>& archs) {
        const ir::Function* const traced = launch.executable->traced();
        if (traced == nullptr)
            user_error(kOp,
                       "expected kernels that the CPU runs; unset TILEWRIGHT_DEVICE and "
                       "TILEWRIGHT_CHECKED");
        Json refs = Json::array();
        ir::Arguments arguments = launch.arguments;
        const std::vector<bool> written = run::written_refs(*traced);
        std::size_t next_constant = 0;
        for (std::size_t i = 0; i < launch.places.size(); ++i) {
            RecordedPlace place = launch.places[i];
            ir::RefArgument& ref = arguments.refs[i];
            const char* in = place.in == RecordedPlace::In::array ? "array" : "memory";
            if (place.in == RecordedPlace::In::constant) {
                in = "constant";
                const Tensor constant = launch.constants[next_constant++].contiguous();
                place.array = keep(constant);
                place.offset = 0;
                std::copy(constant.strides().begin(), constant.strides().end(),
                          ref.strides.begin());
            }
            if (place.in == RecordedPlace::In::array && written[i]) written_[place.array] = true;
            const auto rank = static_cast<std::ptrdiff_t>(rank_of(*traced, i));
            refs.push_back(
                {{"in", in},
                 {"index", place.array},
                 {"offset", place.offset},
                 {"extents", std::vector(ref.extents.begin(), ref.extents.begin() + rank)},
                 {"strides", std::vector(ref.strides.begin(), ref.strides.begin() + rank)}});
            // Arrays and memory start at addresses aligned for any access.
            ref.data = reinterpret_cast<void*>(place.offset);  // NOLINT(performance-no-int-to-ptr)
        }
        Json step = {{"refs", refs}, {"scalars", arguments.scalars}, {"grid", arguments.grid}};
        if (archs.empty()) {
            step["program"] = add(stem + ".ir", ir::print(*traced));
            return step;
        }
        const ir::Function prepared = cuda::prepare(*traced);
        step["program"] = add(stem + ".ir", ir::print(prepared));
        const std::vector<cuda::RefFacts> known = cuda::facts_of(prepared, arguments);
        const std::vector<cuda::RefFacts> unknown(known.size());
        Json& kernels = step["kernels"] = Json::array();
        for (const std::string& arch : archs) {
            kernels.push_back(kernel(*traced, arch, known, stem));
            if (known != unknown) kernels.push_back(kernel(*traced, arch, unknown, stem + "_any"));
        }
        return step;
    }

    static int rank_of(const ir::Function& kernel, std::size_t index) {
        for (const ir::Value value : kernel.parameters()) {
            if (!kernel.is_ref(value) || kernel.ref_type(value).space != ir::Space::global)
                continue;
            if (index-- == 0) return kernel.ref_type(value).rank();
        }
        TW_ASSERT(false, "a launch with more arrays than Refs");
        return 0;
    }

    /// The kernel for one architecture, given what is known about its arrays.
    Json kernel(const ir::Function& traced, const std::string& arch,
                const std::vector<cuda::RefFacts>& facts, const std::string& stem) {
        cuda::Target target = cuda::target_of(arch);
        target.facts = facts;
        auto scheduled = cuda::schedule::generate_scheduled(traced, target);
        const cuda::Generated generated =
            scheduled ? *std::move(scheduled) : cuda::generate(cuda::prepare(traced, arch), target);
        Json listed = Json::array(), maps = Json::array();
        for (const cuda::RefFacts& fact : facts)
            listed.push_back({fact.vectors, fact.dense, fact.tensor});
        for (const cuda::MapParameter& map : generated.maps)
            maps.push_back({{"ref", map.ref}, {"box", map.box}, {"tf32", map.tf32}});
        const std::string& cubin = *cuda::cubin_of(compile_request(generated, arch));
        return {{"arch", arch},
                {"facts", listed},
                {"cubin", add(fmt::format("{}_{}.cubin", stem, arch), cubin)},
                {"name", generated.name},
                {"threads", generated.threads},
                {"shared_bytes", generated.shared_bytes},
                {"workspace_bytes", generated.workspace_bytes},
                {"persistent", generated.is_persistent},
                {"has_rows", generated.has_rows},
                {"cluster", generated.cluster},
                {"grid", generated.grid},
                {"maps", maps}};
    }

    /// The index of a constant among those that are saved, each once.
    std::size_t keep(const Tensor& constant) {
        const auto bytes = run::bytes_of(constant);
        Json entry = {{"dtype", tilewright::name(constant.dtype())}, {"shape", constant.shape()}};
        const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        for (std::size_t i = 0; i < constants_.size(); ++i) {
            const std::string& file = constants_[i]["file"].get_ref<const std::string&>();
            entry["file"] = file;
            if (constants_[i] == entry && files_.at(file) == text) return i;
        }
        entry["file"] = add(fmt::format("constant_{}.bin", constants_.size()), text);
        constants_.push_back(entry);
        return constants_.size() - 1;
    }

    std::string add(const std::string& file, std::string bytes) {
        files_[file] = std::move(bytes);
        return file;
    }

    /// Removes only what an earlier export wrote.
    void clear_folder() const {
        std::error_code error;
        const fs::path manifest = fs::path(folder_) / run::kManifest;
        if (fs::exists(folder_, error) && !fs::is_directory(folder_, error))
            user_error(kOp, "expected `{}` to be a folder but it is a file", folder_);
        if (fs::exists(manifest, error)) {
            std::ifstream file(manifest, std::ios::binary);
            const Json old = Json::parse(file, nullptr, false);
            if (old.is_object() && old.value("format", Json()) == run::kArtifactFormat) {
                if (const auto files = old.find("files"); files != old.end())
                    for (const auto& [name, ignored] : files->items())
                        fs::remove(fs::path(folder_) / fs::path(name).filename(), error);
                fs::remove(
                    fs::path(folder_) / (run::identifier(old.value("name", std::string())) + ".h"),
                    error);
                fs::remove(manifest, error);
            }
        }
        if (fs::exists(folder_, error) && !fs::is_empty(folder_, error))
            user_error(kOp,
                       "expected `{}` to be a new folder, an empty one or one of an earlier "
                       "export, but it holds other files",
                       folder_);
        if (fs::create_directories(folder_, error); error)
            user_error(kOp, "expected to make the folder `{}` but: {}", folder_, error.message());
    }

    void write(const std::string& file, const std::string& bytes) const {
        write_file(kOp, (fs::path(folder_) / file).string(), [&](std::ostream& stream) {
            stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        });
    }

    std::string folder_;
    const std::vector<Tensor>& arrays_;
    std::vector<bool> written_;
    std::map<std::string, std::string> files_;
    Json constants_ = Json::array(), targets_ = Json::object();
};

void check_inputs(const std::vector<Tensor>& inputs, const ExportOptions& options) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (!inputs[i].defined() || inputs[i].device() != Device())
            user_error(kOp,
                       "expected input {} in CPU memory, whatever the artifact is for, but "
                       "got {}",
                       i, inputs[i].defined() ? inputs[i].type_name() + " on a GPU" : "none");
    }
    if (!options.cpu && options.archs.empty())
        user_error(kOp, "expected the CPU or an architecture to export for but got neither");
    if (options.cpu && options.gpu_operation && options.archs.empty())
        user_error(kOp, "expected architectures with gpu_operation but got none");
}

std::vector<std::string> checked_names(std::vector<std::string> names, std::size_t inputs,
                                       std::size_t results) {
    if (names.empty()) {
        for (std::size_t i = 0; i < inputs; ++i) names.push_back(fmt::format("x{}", i));
        for (std::size_t i = 0; i < results; ++i) names.push_back(fmt::format("y{}", i));
    }
    if (names.size() != inputs + results)
        user_error(kOp, "expected {} names, for {} inputs and {} results, but got {}",
                   inputs + results, inputs, results, names.size());
    std::set<std::string> seen;
    for (const std::string& name : names)
        if (!seen.insert(run::identifier(name)).second)
            user_error(kOp, "expected different names of arrays but got `{}` twice", name);
    return names;
}

}  // namespace

void export_operation(const std::string& folder, const std::vector<Tensor>& inputs,
                      const ExportedOperation& operation, const ExportOptions& options) {
    check_inputs(inputs, options);
    for (const std::string& arch : options.archs) cuda::target_of(arch);
    const Recorded recorded = record_checked(inputs, operation);
    std::vector<Tensor> arrays = inputs;
    arrays.insert(arrays.end(), recorded.results.begin(), recorded.results.end());
    Writer writer(folder, arrays);
    if (options.cpu) writer.add_target("cpu", recorded, {});
    if (!options.archs.empty()) {
        const Recorded gpu =
            options.gpu_operation ? record_checked(inputs, options.gpu_operation) : Recorded();
        const auto same_type = [](const Tensor& a, const Tensor& b) {
            return a.dtype() == b.dtype() && a.shape() == b.shape();
        };
        if (options.gpu_operation &&
            !std::equal(gpu.results.begin(), gpu.results.end(), recorded.results.begin(),
                        recorded.results.end(), same_type))
            user_error(kOp,
                       "expected gpu_operation to give the results of the operation but they "
                       "differ in number, dtype or shape");
        writer.add_target("cuda", options.gpu_operation ? gpu : recorded, options.archs);
    }
    std::vector<bool> results(arrays.size());
    std::fill(results.begin() + inputs.size(), results.end(), true);
    const std::string& first = recorded.launches.front().executable->traced() == nullptr
                                   ? options.name
                                   : recorded.launches.front().executable->traced()->name;
    writer.finish(options.name.empty() ? first : options.name,
                  checked_names(options.names, inputs.size(), recorded.results.size()), results);
}

void export_program(const std::string& folder, std::string_view ir, const ExportOptions& options) {
    const Program program(ir);
    std::vector<Tensor> arrays, refs;
    std::vector<std::string> names;
    std::vector<bool> results;
    std::map<int, std::size_t> of_group;
    for (const Program::Parameter& parameter : program.parameters()) {
        const auto found = of_group.find(parameter.alias_group);
        if (found != of_group.end()) {
            refs.push_back(arrays[found->second]);
            continue;
        }
        for (const std::int64_t extent : parameter.type.shape)
            if (extent < 0)
                user_error(kOp, "expected `{}` to have static extents but got {}", parameter.name,
                           to_string(parameter.type));
        if (parameter.alias_group >= 0) of_group[parameter.alias_group] = arrays.size();
        names.push_back(parameter.name);
        results.push_back(parameter.written && parameter.alias_group < 0);
        arrays.push_back(Tensor::zeros(parameter.type.dtype, parameter.type.shape));
        refs.push_back(arrays.back());
    }
    ExportOptions named = options;
    check_inputs(arrays, named);
    if (named.gpu_operation)
        user_error(kOp, "expected no gpu_operation with a program but got one");
    for (const std::string& arch : options.archs) cuda::target_of(arch);
    const Recorded recorded = record(arrays, [&](const std::vector<Tensor>&) {
        program.run(refs);
        return std::vector<Tensor>();
    });
    Writer writer(folder, arrays);
    if (options.cpu) writer.add_target("cpu", recorded, {});
    if (!options.archs.empty()) writer.add_target("cuda", recorded, options.archs);
    writer.finish(options.name.empty() ? program.name() : options.name,
                  checked_names(options.names.empty() ? names : options.names, arrays.size(), 0),
                  results);
}

}  // namespace tilewright
