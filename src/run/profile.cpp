// Profiles of programs: the table, the Chrome trace and TILEWRIGHT_PROFILE.
#include "run/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "cpu/bytecode.h"
#include "cpu/slow_paths.h"
#include "ir/builder.h"
#include "ir/parse.h"
#include "nlohmann/json.hpp"
#include "support/check.h"
#include "support/write_file.h"

namespace tilewright {

/// The events of a trace and the names of the instructions.
struct Profile::Events {
    std::vector<cpu::ProfileEvent> events;
    std::vector<std::string> names;  ///< by instruction
    std::int64_t left_out = 0;
};

namespace run {
namespace {

double milliseconds(std::int64_t nanoseconds) {
    return static_cast<double>(nanoseconds) * 1e-6;
}

/// The shortest time in seconds of a program with grid {16} on arrays of these sizes.
double least_seconds(const std::string& text, const std::vector<std::vector<std::int64_t>>& arrays,
                     int element) {
    const auto program = cpu::compile(ir::parse(text));
    std::vector<std::vector<std::byte>> memory;
    ir::Arguments arguments;
    arguments.grid = {16};
    for (const std::vector<std::int64_t>& shape : arrays) {
        std::int64_t count = element;
        for (const std::int64_t extent : shape) count *= extent;
        memory.emplace_back(static_cast<std::size_t>(count));
        ir::RefArgument ref;
        ref.data = memory.back().data();
        std::int64_t stride = 1;
        for (std::size_t d = shape.size(); d-- > 0;) {
            ref.extents[d] = shape[d];
            ref.strides[d] = stride;
            stride *= shape[d];
        }
        arguments.refs.push_back(ref);
    }
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 8; ++i) {  // the first run touches new pages, others may be disturbed
        const auto start = std::chrono::steady_clock::now();
        cpu::run(*program, arguments);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        least = std::min(least, seconds.count());
    }
    return least;
}

/// Operations per second of matrix products in this dtype, on all threads; measured once.
double peak_flops(DType dtype) {
    static std::mutex mutex;
    static std::map<DType, double> known;
    const std::scoped_lock lock(mutex);
    const auto found = known.find(dtype);
    if (found != known.end()) return found->second;
    const std::string text = fmt::format(
        "func @peak(%x: ref<{0}[512, 512]>, %y: ref<{0}[512, 512]>, %z: ref<{1}[512, 512]>) grid "
        "[16] {{\n"
        "  %i = program_id axis 0 : i64\n  %n = constant 32 : i64\n  %r = mul %i, %n : i64\n"
        "  %o = constant 0 : i64\n  %a = load %x[%r : 32, %o : 512] : {0}[32, 512]\n"
        "  %b = load %y[%o : 512, %o : 512] : {0}[512, 512]\n  %c = dot %a, %b : {1}[32, 512]\n"
        "  store %z[%r : 32, %o : 512], %c\n  yield\n}}\n",
        name(dtype), name(ir::dot_result(dtype)));
    const std::vector<std::int64_t> shape{512, 512};
    const double seconds = least_seconds(text, {shape, shape, shape}, 8);
    return known[dtype] = 2.0 * 512 * 512 * 512 / seconds;
}

/// Bytes per second of a copy larger than the caches, on all threads; measured once.
double peak_bytes() {
    static const double peak = [] {
        const char* const text =
            "func @copy(%x: ref<f32[16, 1048576]>, %z: ref<f32[16, 1048576]>) grid [16] {\n"
            "  %i = program_id axis 0 : i64\n  %o = constant 0 : i64\n"
            "  %a = load %x[%i, %o : 1048576] : f32[1048576]\n"
            "  store %z[%i, %o : 1048576], %a\n  yield\n}\n";
        const std::vector<std::int64_t> shape{16, 1048576};
        return 2.0 * 16 * 1048576 * 4 / least_seconds(text, {shape, shape}, 4);
    }();
    return peak;
}

/// "file.py:12, 14": the lines that an instruction comes from.
std::string source_of(const cpu::Program& program, std::size_t instruction) {
    std::set<std::uint32_t> lines{program.lines[instruction]};
    if (const auto* chain = std::get_if<cpu::Chain>(&program.code[instruction])) {
        for (const cpu::StripOp& op : chain->ops) lines.insert(op.line);
    }
    return cpu::source_text(program, lines);
}

/// The listing of an instruction on one line; for a chain, its operations.
std::string text_of(const cpu::Program& program, std::size_t instruction) {
    const auto* chain = std::get_if<cpu::Chain>(&program.code[instruction]);
    if (chain == nullptr) return cpu::to_string(program, instruction);
    std::vector<std::string> names;
    for (const cpu::StripOp& op : chain->ops) {
        if (op.function != nullptr || op.super != cpu::Super::none)
            names.emplace_back(op.kind == cpu::StripOp::Kind::map ? op.name()
                                                                  : ir::name(op.reduction));
    }
    return fmt::format("strips {} x {}: {}", chain->rows, chain->lanes, fmt::join(names, " "));
}

/// TILEWRIGHT_PROFILE: empty, "1", or the file for a trace.
const std::string& wanted() {
    static const std::string text = [] {
        const char* const value = std::getenv("TILEWRIGHT_PROFILE");
        const std::string given = value == nullptr ? "" : value;
        return given == "0" ? std::string() : given;
    }();
    return text;
}

/// Prints when the process ends.
class AtExit {
  public:
    AtExit() {
        wanted();
        peak_flops(DType::f32);  // measured now: no thread can start when the process ends
        peak_bytes();
    }
    AtExit(const AtExit&) = delete;
    AtExit& operator=(const AtExit&) = delete;
    ~AtExit() {
        try {
            print();
        } catch (...) {  // errors can only be printed now
            std::fputs("[profile] expected to print profiles but failed\n", stderr);
        }
    }

    void add(std::shared_ptr<const TakenProfile> taken) {
        for (const cpu::Work& work : cpu::work_of(*taken->program)) {
            if (work.dot) peak_flops(*work.dot);
        }
        const std::scoped_lock lock(mutex_);
        taken_.push_back(std::move(taken));
    }

  private:
    void print() const {
        nlohmann::json events = nlohmann::json::array();
        for (const auto& taken : taken_) {
            if (taken->runs == 0) continue;
            const Profile profile = profile_of(*taken);
            std::fputs(profile.table().c_str(), stderr);
            if (wanted() == "1") continue;
            const auto trace = nlohmann::json::parse(profile.chrome_trace());
            for (const auto& event : trace.at("traceEvents")) events.push_back(event);
        }
        if (wanted() == "1" || taken_.empty()) return;
        try {
            write_file("profile", wanted(), [&](std::ostream& out) {
                out << nlohmann::json{{"traceEvents", events}}.dump();
            });
        } catch (const UserError& error) {
            std::fprintf(stderr, "%s\n", error.what());
        }
    }

    std::mutex mutex_;
    std::vector<std::shared_ptr<const TakenProfile>> taken_;
};

}  // namespace

TakenProfile::TakenProfile(std::shared_ptr<const cpu::Program> compiled)
    : program(std::move(compiled)), profile(program->code.size()) {}

Profile profile_of(const TakenProfile& taken) {
    const cpu::Program& program = *taken.program;
    const cpu::Profile::Totals totals = taken.profile.totals();
    const std::vector<cpu::Work> work = cpu::work_of(program);
    Profile result;
    result.kernel = program.kernel.name;
    result.runs = taken.runs;
    result.programs = totals.programs;
    result.wall_ms = milliseconds(taken.nanoseconds);
    result.thread_ms = milliseconds(totals.nanoseconds);
    result.threads = cpu::num_threads();
    auto events = std::make_shared<Profile::Events>();
    events->events = totals.events;
    events->left_out = totals.left_out;
    std::int64_t tiles = 0;
    for (std::size_t i = 0; i < program.code.size(); ++i) {
        events->names.push_back(text_of(program, i));
        const cpu::Timing& timing = totals.timings[i];
        if (timing.executions == 0) continue;
        tiles += timing.nanoseconds;
        ProfileLine line;
        line.instruction = static_cast<int>(i);
        line.text = events->names.back();
        line.source = source_of(program, i);
        line.executions = timing.executions;
        line.ms = milliseconds(timing.nanoseconds);
        const auto times = static_cast<double>(timing.executions);
        line.flops = times * work[i].flops;
        line.bytes = times * work[i].bytes;
        if (const auto* view = std::get_if<cpu::LoadView>(&program.code[i])) {
            line.bytes = static_cast<double>(timing.copies) *
                         static_cast<double>(view->access.shape.size()) *
                         size_of(view->access.dtype);
        }
        double seconds = 0;
        if (line.flops > 0) seconds = line.flops / peak_flops(work[i].dot.value_or(DType::f32));
        if (line.bytes > 0) seconds = std::max(seconds, line.bytes / peak_bytes());
        // The peaks are for all threads, while the time is summed over threads.
        if (line.ms > 0) line.roof = seconds * result.threads / (line.ms * 1e-3);
        result.lines.push_back(std::move(line));
    }
    result.scalar_ms = milliseconds(totals.nanoseconds - tiles);
    result.events = std::move(events);
    return result;
}

bool profiles_all() {
    return !wanted().empty();
}

void print_at_exit(std::shared_ptr<const TakenProfile> taken) {
    static AtExit at_exit;
    at_exit.add(std::move(taken));
}

}  // namespace run

std::string Profile::table(std::size_t most) const {
    std::vector<const ProfileLine*> sorted;
    for (const ProfileLine& line : lines) sorted.push_back(&line);
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto* a, const auto* b) { return a->ms > b->ms; });
    std::string text =
        fmt::format("{}: {} runs, {} programs, {:.3f} ms; {:.3f} ms of {} thread{}\n", kernel, runs,
                    programs, wall_ms, thread_ms, threads, threads == 1 ? "" : "s");
    text += fmt::format("{:>5} {:>10} {:>6} {:>9} {:>9} {:>9} {:>6}  {}\n", "line", "ms", "share",
                        "times", "MB", "GFLOP/s", "roof", "instruction");
    const auto share = [&](double ms) {
        return thread_ms > 0 ? fmt::format("{:.1f}%", 100 * ms / thread_ms) : std::string("-");
    };
    double rest = 0;
    for (std::size_t i = 0; i < sorted.size(); ++i) {
        const ProfileLine& line = *sorted[i];
        if (i >= most) {
            rest += line.ms;
            continue;
        }
        const double seconds = line.ms * 1e-3;
        text += fmt::format(
            "{:>5} {:>10.3f} {:>6} {:>9} {:>9} {:>9} {:>6}  {}{}\n", line.instruction, line.ms,
            share(line.ms), line.executions,
            line.bytes > 0 ? fmt::format("{:.3f}", line.bytes * 1e-6) : "-",
            line.flops > 0 && seconds > 0 ? fmt::format("{:.1f}", line.flops / seconds * 1e-9)
                                          : "-",
            line.roof > 0 ? fmt::format("{:.0f}%", 100 * line.roof) : "-", line.text,
            line.source.empty() ? "" : fmt::format("  ({})", line.source));
    }
    const auto more = [&](const char* what, double ms) {
        text += fmt::format("{:>5} {:>10.3f} {:>6} {:>9} {:>9} {:>9} {:>6}  {}\n", "", ms,
                            share(ms), "", "", "", "", what);
    };
    if (sorted.size() > most) more("other instructions", rest);
    more("scalars, jumps, the clock", scalar_ms);
    return text;
}

std::string Profile::chrome_trace() const {
    nlohmann::json list = nlohmann::json::array();
    if (events != nullptr) {
        for (const cpu::ProfileEvent& event : events->events) {
            const bool whole = event.instruction == cpu::ProfileEvent::kProgram;
            nlohmann::json entry{{"ph", "X"},
                                 {"pid", 1},
                                 {"tid", event.thread},
                                 {"ts", static_cast<double>(event.start) * 1e-3},
                                 {"dur", static_cast<double>(event.end - event.start) * 1e-3},
                                 {"cat", whole ? "program" : "instruction"},
                                 {"name", whole ? kernel : events->names[event.instruction]}};
            if (!whole) entry["args"] = {{"line", event.instruction}};
            list.push_back(std::move(entry));
        }
        for (const ProfileLine& line : lines) {
            if (line.source.empty()) continue;
            list.push_back({{"ph", "M"},
                            {"pid", 1},
                            {"name", "source"},
                            {"args", {{"line", line.instruction}, {"source", line.source}}}});
        }
    }
    return nlohmann::json{{"traceEvents", list},
                          {"displayTimeUnit", "ns"},
                          {"left_out", events == nullptr ? 0 : events->left_out}}
        .dump();
}

}  // namespace tilewright
