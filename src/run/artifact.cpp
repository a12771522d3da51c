// Loads artifacts, checks them against the device and runs them.
#include "tilewright/artifact.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

#include "cuda/runtime/cubin.h"
#include "cuda/runtime/device.h"
#include "ir/parse.h"
#include "run/artifact_format.h"
#include "run/byte_reader.h"
#include "run/cuda_executable.h"
#include "run/executable.h"
#include "run/overlap.h"
#include "support/check.h"
#include "tilewright/version.h"

namespace tilewright {
namespace {

namespace fs = std::filesystem;
using run::Json;

constexpr const char* kOp = "artifact";

/// Where a Ref of a step starts.
struct Place {
    enum class In : std::uint8_t { array, memory, constant };
    In in = In::array;
    std::size_t index = 0;
    std::int64_t offset = 0;  ///< bytes
};

struct Step {
    std::shared_ptr<const run::Executable> executable;
    ir::Arguments arguments;
    std::vector<Place> places;
};

/// "0.1" of "0.1.0".
std::string minor_version(const std::string& version) {
    return version.substr(0, version.rfind('.'));
}

/// The files of a folder, checked against the manifest.
class Files {
  public:
    explicit Files(std::string folder) : folder_(std::move(folder)) {
        std::error_code error;
        if (!fs::is_directory(folder_, error))
            user_error(kOp, "expected the folder of an artifact but there is no folder `{}`",
                       folder_);
        if (!fs::is_regular_file(fs::path(folder_) / run::kManifest, error))
            user_error(kOp, "expected the folder of an artifact but `{}` has no {}", folder_,
                       run::kManifest);
        manifest_ = Json::parse(read(run::kManifest), nullptr, false);
        if (!manifest_.is_object() || manifest_.value("format", Json()) != run::kArtifactFormat)
            damaged(run::kManifest, "it is no manifest of an artifact");
        if (const Json version = manifest_.value("version", Json());
            version != run::kArtifactVersion)
            user_error(kOp,
                       "expected version {} of the format but `{}` has version {}; export it "
                       "again with Tilewright {}",
                       run::kArtifactVersion, folder_, version.dump(), TILEWRIGHT_VERSION);
        if (const Json made = manifest_.value("tilewright", Json());
            !made.is_string() ||
            minor_version(made.get<std::string>()) != minor_version(TILEWRIGHT_VERSION))
            user_error(kOp,
                       "expected an artifact of Tilewright {} but `{}` was exported by {}; export "
                       "it again",
                       minor_version(TILEWRIGHT_VERSION), folder_, made.dump());
        if (manifest_.value(run::kChecksum, Json()) != run::manifest_checksum(manifest_))
            damaged(run::kManifest, "its checksum is another one");
    }

    const Json& manifest() const { return manifest_; }
    const std::string& folder() const { return folder_; }

    [[noreturn]] void damaged(const std::string& file, const std::string& reason) const {
        user_error(kOp, "expected `{}` as it was exported but {}",
                   (fs::path(folder_) / file).string(), reason);
    }

    /// The bytes of a file that the manifest lists.
    std::string checked(const Json& name) const {
        const std::string& file = name.get_ref<const std::string&>();
        if (fs::path(file).filename() != file) damaged(run::kManifest, "it names other folders");
        const Json& listed = manifest_.at("files").at(file);
        std::error_code error;
        if (!fs::is_regular_file(fs::path(folder_) / file, error)) damaged(file, "it is missing");
        std::string bytes = read(file);
        if (bytes.size() != listed.at("bytes").get<std::uint64_t>())
            damaged(file, fmt::format("it has {} bytes, not {}", bytes.size(),
                                      listed.at("bytes").dump()));
        if (content_hash(bytes) != listed.at("hash").get_ref<const std::string&>())
            damaged(file, "its checksum is another one");
        return bytes;
    }

  private:
    std::string read(const std::string& file) const {
        std::ifstream stream = run::open_file(kOp, (fs::path(folder_) / file).string());
        return {std::istreambuf_iterator<char>(stream), {}};
    }

    std::string folder_;
    Json manifest_;
};

TensorType type_of(const Json& entry, const Files& files) {
    const auto dtype = parse_dtype(entry.at("dtype").get_ref<const std::string&>());
    if (!dtype) files.damaged(run::kManifest, "it names a dtype that there is not");
    return {*dtype, entry.at("shape").get<std::vector<std::int64_t>>()};
}

/// Ranks the device's own architecture above others whose cubins it runs: those of older GPUs of
/// the same major version, without architecture-specific features.
int rank_of_arch(const std::string& arch, const cuda::DeviceInfo& info) {
    if (arch == info.arch()) return std::numeric_limits<int>::max();
    int number = 0;
    const char* const end = arch.data() + arch.size();
    const auto [stop, error] =
        std::from_chars(arch.data() + std::min<std::size_t>(3, arch.size()), end, number);
    const bool fits = error == std::errc{} && stop == end && number / 10 == info.major &&
                      number % 10 <= info.minor;
    return fits ? number : -1;
}

std::string best_arch(const Json& kernels, const cuda::DeviceInfo& info,
                      const std::string& folder) {
    std::string best, all;
    for (const Json& kernel : kernels) {
        const auto arch = kernel.at("arch").get<std::string>();
        if (all.find(arch) == std::string::npos) all += (all.empty() ? "" : ", ") + arch;
        if (rank_of_arch(arch, info) > (best.empty() ? -1 : rank_of_arch(best, info))) best = arch;
    }
    if (best.empty())
        user_error(kOp,
                   "expected cubins for {} ({}) in `{}` but it has those of {}; export it "
                   "with --arch {}",
                   info.arch(), info.name, folder, all, info.arch());
    return best;
}

cuda::Generated generated_of(const Json& kernel) {
    cuda::Generated result;
    result.name = kernel.at("name").get<std::string>();
    result.threads = kernel.at("threads").get<int>();
    result.shared_bytes = kernel.at("shared_bytes").get<int>();
    result.workspace_bytes = kernel.at("workspace_bytes").get<std::int64_t>();
    result.is_persistent = kernel.at("persistent").get<bool>();
    result.has_rows = kernel.value("has_rows", false);
    result.cluster = kernel.value("cluster", 1);
    result.grid = kernel.at("grid").get<std::vector<std::int64_t>>();
    for (const Json& map : kernel.at("maps"))
        result.maps.push_back({map.at("ref").get<int>(),
                               map.at("box").get<std::vector<std::int64_t>>(),
                               map.value("tf32", false)});
    return result;
}

std::unique_ptr<run::Executable> executable_of(const Json& step, const Files& files,
                                               Device device) {
    ir::Function program = ir::parse(files.checked(step.at("program")));
    if (device.kind == Device::Kind::cpu)
        return run::make_executable(std::move(program), run::Machine::native, {}, device);
    const Json& kernels = step.at("kernels");
    const std::string arch = best_arch(kernels, cuda::device_info(device.index), files.folder());
    std::vector<run::CudaVariant> variants;
    for (const Json& kernel : kernels) {
        if (kernel.at("arch") != arch) continue;
        run::CudaVariant variant;
        for (const Json& fact : kernel.at("facts"))
            variant.facts.push_back(
                {fact.at(0).get<bool>(), fact.at(1).get<bool>(), fact.at(2).get<bool>()});
        variant.generated = generated_of(kernel);
        variant.kernel = cuda::load_cubin(
            files.checked(kernel.at("cubin")), kernel.at("cubin").get<std::string>(),
            variant.generated.name.c_str(), variant.generated.shared_bytes, device.index);
        variants.push_back(std::move(variant));
    }
    return run::make_prebuilt_cuda_executable(std::move(program), std::move(variants),
                                              device.index);
}

/// Whether the elements of a Ref are within this many bytes.
bool lies_within(const ir::RefArgument& ref, std::size_t rank, std::int64_t offset, DType dtype,
                 std::int64_t bytes) {
    __int128 low = offset, high = offset;
    for (std::size_t d = 0; d < rank; ++d) {
        if (ref.extents[d] < 0) return false;
        if (ref.extents[d] == 0) return true;
        const __int128 reach =
            static_cast<__int128>(ref.extents[d] - 1) * ref.strides[d] * size_of(dtype);
        (reach < 0 ? low : high) += reach;
    }
    return low >= 0 && high + size_of(dtype) <= bytes;
}

}  // namespace

struct Artifact::State {
    std::string name, checksum;
    Device device;
    std::vector<Parameter> parameters;
    std::vector<Step> steps;
    std::vector<Tensor> constants;
    std::int64_t memory_bytes = 0;

    void load(const Files& files);
    void add_step(const Json& given, const Files& files);
    std::int64_t bytes_at(const Place& place) const;
};

std::int64_t Artifact::State::bytes_at(const Place& place) const {
    if (place.in == Place::In::memory) return memory_bytes;
    if (place.in == Place::In::constant) return constants.at(place.index).nbytes();
    const TensorType& type = parameters.at(place.index).type;
    return static_cast<std::int64_t>(run::checked_bytes(kOp, type.dtype, type.shape));
}

void Artifact::State::add_step(const Json& given, const Files& files) {
    Step step;
    step.arguments.scalars = given.at("scalars").get<std::vector<std::uint64_t>>();
    step.arguments.grid = given.at("grid").get<std::vector<std::int64_t>>();
    const ir::Function program = ir::parse(files.checked(given.at("program")));
    std::size_t next = 0;
    for (const ir::Value value : program.parameters()) {
        if (!program.is_ref(value) || program.ref_type(value).space != ir::Space::global) continue;
        const ir::RefType& type = program.ref_type(value);
        const Json& ref = given.at("refs").at(next++);
        const std::string& in = ref.at("in").get_ref<const std::string&>();
        Place place;
        place.index = ref.at("index").get<std::size_t>();
        std::size_t count = place.index + 1;
        if (in == "array") {
            count = parameters.size();
        } else if (in == "constant") {
            place.in = Place::In::constant;
            count = constants.size();
        } else if (in == "memory") {
            place.in = Place::In::memory;
        } else {
            files.damaged(run::kManifest, "it names a place that there is not");
        }
        if (place.index >= count)
            files.damaged(run::kManifest, "it names an array that there is not");
        place.offset = ref.at("offset").get<std::int64_t>();
        ir::RefArgument argument;
        const auto extents = ref.at("extents").get<std::vector<std::int64_t>>();
        const auto strides = ref.at("strides").get<std::vector<std::int64_t>>();
        const std::size_t rank = type.rank();
        if (extents.size() != rank || strides.size() != rank)
            files.damaged(run::kManifest, "a rank is not that of its program");
        std::copy(extents.begin(), extents.end(), argument.extents.begin());
        std::copy(strides.begin(), strides.end(), argument.strides.begin());
        for (std::size_t d = 0; d < rank; ++d)
            if (type.extents[d] >= 0 && type.extents[d] != extents[d])
                files.damaged(run::kManifest, "an extent is not that of its program");
        if (!lies_within(argument, rank, place.offset, type.dtype, bytes_at(place)))
            files.damaged(run::kManifest, "a program reaches beyond its arrays");
        step.arguments.refs.push_back(argument);
        step.places.push_back(place);
    }
    if (next != given.at("refs").size())
        files.damaged(run::kManifest, "it has more arrays than its program");
    step.executable = executable_of(given, files, device);
    steps.push_back(std::move(step));
}

void Artifact::State::load(const Files& files) {
    const Json& manifest = files.manifest();
    name = manifest.at("name").get<std::string>();
    checksum = manifest.at(run::kChecksum).get<std::string>();
    for (const Json& entry : manifest.at("parameters"))
        parameters.push_back({entry.at("name").get<std::string>(), type_of(entry, files),
                              entry.at("written").get<bool>(), entry.at("result").get<bool>()});
    const bool on_gpu = device.kind == Device::Kind::cuda;
    const auto target = manifest.at("targets").find(on_gpu ? "cuda" : "cpu");
    if (target == manifest.at("targets").end())
        user_error(kOp, "expected an artifact for {} but `{}` was exported for {} alone",
                   on_gpu ? "GPUs" : "CPUs", files.folder(), on_gpu ? "CPUs" : "GPUs");
    for (const Json& entry : manifest.at("constants")) {
        const TensorType type = type_of(entry, files);
        const std::string bytes = files.checked(entry.at("file"));
        if (bytes.size() != run::checked_bytes(run::kManifest, type.dtype, type.shape))
            files.damaged(run::kManifest, "a constant has another size");
        const Tensor constant = Tensor::empty(type.dtype, type.shape);
        std::copy(bytes.begin(), bytes.end(), static_cast<char*>(constant.raw()));
        constants.push_back(constant.to(device));
    }
    memory_bytes = target->at("memory_bytes").get<std::int64_t>();
    for (const Json& step : target->at("steps")) add_step(step, files);
}

Artifact::Artifact(const std::string& folder, Device device, std::string_view checksum) {
    const Files files(folder);
    auto state = std::make_shared<State>();
    state->device = device;
    if (device.kind == Device::Kind::cuda) cuda::device_info(device.index);  // fails if missing
    try {
        state->load(files);
    } catch (const Json::exception& error) {
        files.damaged(run::kManifest, fmt::format("an entry does not fit: {}", error.what()));
    }
    if (!checksum.empty() && checksum != state->checksum)
        user_error(kOp,
                   "expected the export with checksum {} in `{}` but it has {}; compile with the "
                   "header in that folder",
                   checksum, folder, state->checksum);
    state_ = std::move(state);
}

void Artifact::run(std::span<const Tensor> arrays) const {
    const State& s = *state_;
    if (arrays.size() != s.parameters.size())
        user_error(s.name, "expected {} arrays but got {}", s.parameters.size(), arrays.size());
    for (std::size_t i = 0; i < arrays.size(); ++i) {
        const Parameter& parameter = s.parameters[i];
        const Tensor& array = arrays[i];
        if (!array.defined() || array.dtype() != parameter.type.dtype ||
            array.shape() != parameter.type.shape)
            user_error(s.name, "expected `{}` to be {} but got {}", parameter.name,
                       to_string(parameter.type), array.type_name());
        if (!(array.device() == s.device))
            user_error(s.name, "expected `{}` on {} but it is on {}", parameter.name,
                       to_string(s.device), to_string(array.device()));
        if (!array.is_contiguous())
            user_error(s.name, "expected `{}` to be row-major without gaps but its strides are {}",
                       parameter.name, fmt::join(array.strides(), ", "));
        if (parameter.written)
            run::check_writable(s.name, fmt::format("`{}`", parameter.name), array);
        for (std::size_t j = 0; j < i; ++j)
            if ((parameter.written || s.parameters[j].written) && run::overlap(array, arrays[j]))
                user_error(s.name, "expected `{}` apart from `{}` but they share memory",
                           parameter.name, s.parameters[j].name);
    }
    const Tensor memory =
        s.memory_bytes > 0 ? Tensor::empty(u8, {s.memory_bytes}, s.device) : Tensor();
    for (const Step& step : s.steps) {
        ir::Arguments arguments = step.arguments;
        for (std::size_t i = 0; i < step.places.size(); ++i) {
            const Place& place = step.places[i];
            const Tensor& start = place.in == Place::In::array    ? arrays[place.index]
                                  : place.in == Place::In::memory ? memory
                                                                  : s.constants[place.index];
            arguments.refs[i].data = static_cast<std::byte*>(start.raw()) + place.offset;
        }
        step.executable->run(arguments);
    }
}

std::vector<Tensor> Artifact::operator()(std::span<const Tensor> inputs) const {
    const auto& parameters = state_->parameters;
    const auto wanted = std::count_if(parameters.begin(), parameters.end(),
                                      [](const Parameter& p) { return !p.result; });
    if (static_cast<std::size_t>(wanted) != inputs.size())
        user_error(state_->name, "expected {} inputs but got {}", wanted, inputs.size());
    std::vector<Tensor> arrays, results;
    std::size_t next = 0;
    for (const Parameter& parameter : parameters) {
        if (parameter.result)
            results.push_back(
                Tensor::empty(parameter.type.dtype, parameter.type.shape, state_->device));
        arrays.push_back(parameter.result ? results.back() : inputs[next++]);
    }
    run(arrays);
    return results;
}

const std::vector<Artifact::Parameter>& Artifact::parameters() const {
    return state_->parameters;
}

const std::string& Artifact::name() const {
    return state_->name;
}

const std::string& Artifact::checksum() const {
    return state_->checksum;
}

Device Artifact::device() const {
    return state_->device;
}

}  // namespace tilewright
