// Other libraries on the kernels of `tilewright bench cpu`, in helper processes.
#include "cli/bench/cpu_peers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/bench/baseline.h"
#include "cli/progress.h"
#include "cpu/machine.h"
#include "support/check.h"

namespace tilewright::cli {
namespace {

constexpr const char* kScript = "cpu_peers.py";

/// A file in memory, which helper processes open by its path. It is gone when this process ends.
class SharedFile {
  public:
    explicit SharedFile(std::int64_t bytes)
        : file_(memfd_create("tilewright-bench", MFD_CLOEXEC)), bytes_(bytes) {
        if (file_ < 0 || ftruncate(file_, bytes) != 0)
            user_error("bench cpu", "expected {} bytes of memory but the system refused", bytes);
    }
    SharedFile(const SharedFile&) = delete;
    SharedFile& operator=(const SharedFile&) = delete;
    ~SharedFile() { close(file_); }

    std::string path() const { return fmt::format("/proc/{}/fd/{}", getpid(), file_); }
    void write(const void* data) const {
        for (std::int64_t at = 0; at < bytes_;) {
            const ssize_t count = pwrite(file_, static_cast<const char*>(data) + at,
                                         static_cast<std::size_t>(bytes_ - at), at);
            if (count <= 0)
                user_error("bench cpu", "expected {} bytes of memory but the system refused",
                           bytes_);
            at += count;
        }
    }
    /// The file's bytes, as many as there are.
    void read(void* data) const {
        for (std::int64_t at = 0; at < bytes_;) {
            const ssize_t count = pread(file_, static_cast<char*>(data) + at,
                                        static_cast<std::size_t>(bytes_ - at), at);
            if (count <= 0) return;
            at += count;
        }
    }

  private:
    int file_;
    std::int64_t bytes_;
};

nlohmann::json description(const SharedFile& file, const Tensor& tensor) {
    return {file.path(), name(tensor.dtype()), tensor.shape()};
}

/// What a job of every library has in common.
nlohmann::json job_of(const std::string& library) {
    return {{"library", library}, {"threads", cpu::num_threads()}};
}

/// Why a library does not run: the part of its answer after "error: ModuleNotFoundError: ".
std::string reason(const std::string& answer) {
    if (answer.empty()) return "no answer from Python";
    const std::string kind = "error: ModuleNotFoundError: ";
    return answer.starts_with(kind) ? answer.substr(kind.size()) : answer;
}

}  // namespace

const std::vector<std::string>& Peers::names() {
    static const std::vector<std::string> kNames = {"onednn", "torch", "torch-compile", "numba",
                                                    "halide"};
    return kNames;
}

Peers::Peers(const std::string& choice, std::ostream* out) : out_(out) {
    if (choice.empty()) return;
    const bool all = choice == "auto";
    if (!all && std::find(names().begin(), names().end(), choice) == names().end())
        user_error("bench cpu", "expected --baseline {} or none but got {}",
                   fmt::join(names(), ", "), choice);
    const std::vector<std::string> wanted = all ? names() : std::vector{choice};
    constexpr std::int64_t kVersionBytes = 64;
    std::vector<std::unique_ptr<SharedFile>> texts;
    std::vector<HelperJob> jobs;
    for (const std::string& library : wanted) {
        texts.push_back(std::make_unique<SharedFile>(kVersionBytes));
        nlohmann::json job = job_of(library);
        job["output"] = {texts.back()->path()};
        jobs.push_back({library, std::move(job)});
    }
    if (const std::string refusal = no_baseline_checkout("none"); all && !refusal.empty()) {
        for (const std::string& library : wanted) versions_[library] = "not installed: no checkout";
        if (out_) *out_ << "no other libraries: " << refusal << '\n';
        return;
    }
    std::vector<HelperAnswer> answers;
    {
        const Elapsed elapsed("starting other libraries");
        answers = run_helpers(kScript, jobs);
    }
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        if (answers[i].text == "ready") {
            std::string version(kVersionBytes, '\0');
            texts[i]->read(version.data());
            versions_[wanted[i]] = version.c_str();
            installed_.push_back(wanted[i]);
            continue;
        }
        const std::string why = reason(answers[i].text);
        if (!all)
            user_error("bench cpu", "expected --baseline {} to be installed but got \"{}\"", choice,
                       why);
        versions_[wanted[i]] = "not installed: " + why;
        if (out_) *out_ << fmt::format("no rows of {}: {}\n", wanted[i], why);
    }
    if (out_ && installed_.size() < wanted.size())
        *out_ << "`./dev python peers` in the checkout installs all of them\n";
}

std::vector<Peer> Peers::prepare(const SuiteCase& c) {
    if (installed_.empty()) return {};
    std::vector<std::unique_ptr<SharedFile>> inputs, outputs;
    nlohmann::json files = nlohmann::json::array();
    for (const Tensor& input : c.inputs) {
        inputs.push_back(std::make_unique<SharedFile>(input.nbytes()));
        inputs.back()->write(input.raw());
        files.push_back(description(*inputs.back(), input));
    }
    std::vector<HelperJob> jobs;
    for (const std::string& library : installed_) {
        outputs.push_back(std::make_unique<SharedFile>(c.output.nbytes()));
        nlohmann::json job = job_of(library);
        job["kernel"] = c.call.kernel().name();
        job["sizes"] = c.sizes;
        job["inputs"] = files;
        job["output"] = description(*outputs.back(), c.output);
        jobs.push_back({library, std::move(job)});
    }
    const Elapsed elapsed(c.name + ": other libraries compile");
    std::vector<HelperAnswer> answers = run_helpers(kScript, jobs);
    std::vector<Peer> peers;
    for (std::size_t i = 0; i < installed_.size(); ++i) {
        HelperAnswer& answer = answers[i];
        if (answer.text.starts_with("error: NotImplementedError")) continue;
        if (answer.text != "ready") {
            if (out_)
                *out_ << fmt::format("{}: no row of {}: {}\n", c.name, installed_[i],
                                     reason(answer.text).substr(0, 200));
            continue;
        }
        Peer& peer = peers.emplace_back();
        peer.variant = std::move(answer.variant);
        peer.output = Tensor::zeros(c.output.dtype(), c.output.shape());
        outputs[i]->read(peer.output.raw());
    }
    return peers;
}

}  // namespace tilewright::cli
