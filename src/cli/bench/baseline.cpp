// Helper processes and dlopened libraries for `bench --baseline`.
#include "cli/bench/baseline.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "support/check.h"

namespace tilewright::cli {
namespace {

namespace fs = std::filesystem;

/// A child process that answers each line written to it with one line. It runs several jobs in
/// sequence, because starting it takes seconds.
class HelperProcess {
  public:
    explicit HelperProcess(const std::vector<std::string>& command) {
        int to_child[2], from_child[2];
        // Close-on-exec: a helper must not keep the pipes of another one open.
        if (pipe2(to_child, O_CLOEXEC) != 0 || pipe2(from_child, O_CLOEXEC) != 0)
            user_error("bench", "expected to open a pipe to the baseline but the system refused");
        pid_ = fork();
        if (pid_ == 0) {
            dup2(to_child[0], STDIN_FILENO);
            dup2(from_child[1], STDOUT_FILENO);
            // Idle OpenMP workers must not spin, which would slow down other variants.
            setenv("OMP_WAIT_POLICY", "passive", 1);
            // Each helper compiles on one thread, because many may be prepared at once.
            setenv("TORCHINDUCTOR_COMPILE_THREADS", "1", 0);
            std::vector<char*> arguments;
            for (const std::string& word : command)
                arguments.push_back(const_cast<char*>(word.c_str()));
            arguments.push_back(nullptr);
            execvp(arguments[0], arguments.data());
            _exit(127);
        }
        close(to_child[0]);
        close(from_child[1]);
        // If a helper dies, the answer is empty and no signal is raised.
        signal(SIGPIPE, SIG_IGN);
        input_ = fdopen(to_child[1], "w");
        output_ = fdopen(from_child[0], "r");
    }
    HelperProcess(const HelperProcess&) = delete;
    HelperProcess& operator=(const HelperProcess&) = delete;
    ~HelperProcess() {
        fclose(input_);
        fclose(output_);
        waitpid(pid_, nullptr, 0);
    }

    void tell(const std::string& line) {
        fmt::print(input_, "{}\n", line);
        fflush(input_);
    }
    /// The next answer without its newline; empty if the helper has ended.
    std::string answer() {
        std::string result;
        int c = fgetc(output_);
        for (; c != EOF && c != '\n'; c = fgetc(output_)) result += static_cast<char>(c);
        ended_ = c == EOF;
        return result;
    }
    std::string ask(const std::string& line) {
        tell(line);
        return answer();
    }
    bool ended() const { return ended_; }
    pid_t id() const { return pid_; }

  private:
    pid_t pid_ = -1;
    FILE* input_ = nullptr;
    FILE* output_ = nullptr;
    bool ended_ = false;
};

constexpr const char* kTorchScript = "torch_baseline.py";

fs::path own_program() {
    std::error_code ignored;
    return fs::read_symlink("/proc/self/exe", ignored);
}

std::optional<fs::path> find_checkout(const fs::path& program, const fs::path& current) {
    const auto has_helpers = [](const fs::path& folder) {
        std::error_code ignored;
        return fs::exists(folder / "bench" / kTorchScript, ignored);
    };
    for (fs::path folder = program; folder.has_relative_path(); folder = folder.parent_path())
        if (has_helpers(folder)) return folder;
    if (has_helpers(current)) return current;
    return std::nullopt;
}

std::string no_checkout(const std::string& name, const fs::path& program, const fs::path& current) {
    return fmt::format(
        "expected --baseline {} in a checkout of Tilewright, whose bench/ it runs, but there "
        "is none above {} or at {}; run a checkout's `build/tilewright`, or this program in "
        "its folder",
        name, program.string(), current.string());
}

std::string python(const fs::path& root) {
    if (const char* chosen = std::getenv("TILEWRIGHT_PYTHON")) return chosen;
    for (const fs::path& folder : {fs::current_path(), root})
        if (fs::path candidate = folder / ".venv" / "bin" / "python"; fs::exists(candidate))
            return candidate.string();
    return "python3";
}

/// A helper with a job, and its answer.
struct PreparedHelper {
    std::shared_ptr<HelperProcess> process;
    std::string answer;
};

/// A helper, idle or new, that has been given the job. It becomes idle when the last reference to
/// it is gone, for further jobs of the same interpreter and `owner`.
std::shared_ptr<HelperProcess> with_job(const fs::path& root, const nlohmann::json& job,
                                        const std::string& script, const std::string& owner = {}) {
    static std::multimap<std::string, std::unique_ptr<HelperProcess>> idle;
    const std::string program = python(root);
    const std::string key = fmt::format("{} {} {}", program, script, owner);
    std::unique_ptr<HelperProcess> helper;
    if (auto found = idle.find(key); found != idle.end()) {
        helper = std::move(found->second);
        idle.erase(found);
    } else {
        helper = std::make_unique<HelperProcess>(
            std::vector<std::string>{program, (root / "bench" / script).string()});
    }
    helper->tell(job.dump());
    return {helper.release(), [key](HelperProcess* done) {
                std::unique_ptr<HelperProcess> back(done);
                if (!back->ended()) idle.emplace(key, std::move(back));
            }};
}

/// Runs the job that the helper is ready for.
Variant timed_helper(std::string name, std::shared_ptr<HelperProcess> helper) {
    auto repeats = std::make_shared<int>(0);
    const pid_t process = helper->id();
    return {std::move(name),
            [helper = std::move(helper), repeats] {
                const auto run = [&](int count) {
                    const std::string text = helper->ask(fmt::format("run {}", count));
                    if (text.empty()) user_error("bench", "expected a time but the baseline ended");
                    return std::stod(text);
                };
                if (*repeats == 0) {
                    run(1);
                    *repeats = static_cast<int>(std::clamp(0.01 / run(1) + 1, 1.0, 1e6));
                }
                return run(*repeats);
            },
            process};
}

/// Prepared helpers by job.
std::map<std::string, PreparedHelper>& prepared_helpers() {
    static std::map<std::string, PreparedHelper> helpers;
    return helpers;
}

/// A function of oneDNN's shared library.
void* onednn_function(const char* name) {
    setenv("OMP_WAIT_POLICY", "passive", 0);
    void* library = nullptr;
    for (const char* file : {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"})
        if (!library) library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        user_error("bench",
                   "expected libdnnl for --baseline onednn but found none; Debian's package "
                   "is libdnnl-dev");
    void* const function = dlsym(library, name);
    if (!function) user_error("bench", "expected {} in libdnnl but it has no such function", name);
    return function;
}

/// The matrices of a product of `In` that gives `Out`.
template <typename In, typename Out>
struct Matrices {
    Matrices(std::int64_t m, std::int64_t n, std::int64_t k)
        : a(static_cast<std::size_t>(m * k), In{1}),
          b(static_cast<std::size_t>(k * n), In{2}),
          c(static_cast<std::size_t>(m * n)) {}
    std::vector<In> a, b;
    std::vector<Out> c;
};

}  // namespace

fs::path baseline_checkout(const std::string& name, const fs::path& program,
                           const fs::path& current) {
    const std::optional<fs::path> found = find_checkout(program, current);
    if (!found) user_error("bench", "{}", no_checkout(name, program, current));
    return *found;
}

std::string no_baseline_checkout(const std::string& name) {
    const fs::path program = own_program(), current = fs::current_path();
    return find_checkout(program, current) ? std::string() : no_checkout(name, program, current);
}

void prepare_torch_baselines(const std::vector<nlohmann::json>& jobs) {
    const std::optional<fs::path> root = find_checkout(own_program(), fs::current_path());
    if (!root) return;  // python_baseline reports it
    std::map<std::string, PreparedHelper>& helpers = prepared_helpers();
    for (const nlohmann::json& job : jobs)
        helpers[job.dump()] = {with_job(*root, job, kTorchScript), {}};
    for (const nlohmann::json& job : jobs) {
        PreparedHelper& helper = helpers.at(job.dump());
        helper.answer = helper.process->answer();
    }
}

Baseline try_python_baseline(const nlohmann::json& job, const std::string& name) {
    const bool xla = name == "xla" || name == "pallas" || name == "pallas-mgpu";
    const fs::path program = own_program(), current = fs::current_path();
    const std::optional<fs::path> found_root = find_checkout(program, current);
    if (!found_root) return {{}, no_checkout(name, program, current), true};
    const fs::path& root = *found_root;
    PreparedHelper prepared;
    if (auto found = prepared_helpers().extract(job.dump())) {
        prepared = std::move(found.mapped());
    } else {
        prepared.process = with_job(root, job, xla ? "xla_baseline.py" : kTorchScript);
        prepared.answer = prepared.process->answer();
    }
    const std::shared_ptr<HelperProcess> helper = prepared.process;
    const std::string& answer = prepared.answer;
    if (answer != "ready") {
        const bool is_missing = answer.empty() ||
                                answer.find("ModuleNotFoundError") != std::string::npos ||
                                answer.find("ImportError") != std::string::npos;
        if (!is_missing) {
            return {{},
                    fmt::format("expected --baseline {} to run this case but got \"{}\"", name,
                                answer)};
        }
        const char* const package = xla ? "jax" : "torch";
        const bool chosen = std::getenv("TILEWRIGHT_PYTHON") != nullptr;
        std::string refusal = fmt::format(
            "expected --baseline {} to run in {} but got \"{}\"; {}", name, python(root),
            answer.empty() ? "no answer" : answer,
            chosen ? fmt::format("TILEWRIGHT_PYTHON must name a Python with {}", package)
                   : fmt::format("`./dev python {}` in {} installs it", package, root.string()));
        return {{}, std::move(refusal), answer.find("No module named") != std::string::npos};
    }
    return {timed_helper(name, helper), {}};
}

Variant python_baseline(const nlohmann::json& job, const std::string& name) {
    Baseline baseline = try_python_baseline(job, name);
    if (!baseline.variant) user_error("bench", "{}", baseline.refusal);
    return *std::move(baseline.variant);
}

std::vector<HelperAnswer> run_helpers(const std::string& script,
                                      const std::vector<HelperJob>& jobs) {
    const fs::path root = baseline_checkout("none", own_program(), fs::current_path());
    std::vector<std::shared_ptr<HelperProcess>> helpers;
    for (const HelperJob& job : jobs) helpers.push_back(with_job(root, job.job, script, job.name));
    std::vector<HelperAnswer> answers;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        std::string text = helpers[i]->answer();
        answers.push_back({std::move(text), timed_helper(jobs[i].name, helpers[i])});
    }
    return answers;
}

Variant onednn_matmul(std::int64_t m, std::int64_t n, std::int64_t k) {
    using Sgemm = int (*)(char, char, std::int64_t, std::int64_t, std::int64_t, float, const float*,
                          std::int64_t, const float*, std::int64_t, float, float*, std::int64_t);
    const auto sgemm = reinterpret_cast<Sgemm>(onednn_function("dnnl_sgemm"));
    auto arrays = std::make_shared<Matrices<float, float>>(m, n, k);
    return timed("onednn", [=] {
        sgemm('N', 'N', m, n, k, 1, arrays->a.data(), k, arrays->b.data(), n, 0, arrays->c.data(),
              n);
    });
}

Variant onednn_matmul_s8(std::int64_t m, std::int64_t n, std::int64_t k) {
    using Gemm =
        int (*)(char, char, char, std::int64_t, std::int64_t, std::int64_t, float,
                const std::int8_t*, std::int64_t, std::int8_t, const std::int8_t*, std::int64_t,
                std::int8_t, float, std::int32_t*, std::int64_t, const std::int32_t*);
    const auto gemm = reinterpret_cast<Gemm>(onednn_function("dnnl_gemm_s8s8s32"));
    auto arrays = std::make_shared<Matrices<std::int8_t, std::int32_t>>(m, n, k);
    return timed("onednn", [=] {
        const std::int32_t offset = 0;
        gemm('N', 'N', 'F', m, n, k, 1, arrays->a.data(), k, 0, arrays->b.data(), n, 0, 0,
             arrays->c.data(), n, &offset);
    });
}

}  // namespace tilewright::cli
