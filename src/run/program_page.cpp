// A program in all its forms on one HTML page, linked line by line.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "cpu/bytecode.h"
#include "cpu/machine.h"
#include "cuda/codegen/launch_arguments.h"
#include "cuda/schedule/schedule.h"
#include "ir/parse.h"
#include "ir/passes/pipeline.h"
#include "ir/print.h"
#include "run/disassemble.h"
#include "run/page_assets.h"
#include "support/check.h"
#include "tilewright/program.h"

namespace tilewright {
namespace {

using Keys = std::set<int>;  // lines of the IR text

struct PageLine {
    std::string text;
    Keys keys = {};
    int number = 0;  ///< line number shown beside it; 0: none
    std::string heading = {};
};

struct Pane {
    std::string title;
    std::vector<PageLine> lines = {};
    std::string missing = {};        ///< why the pane is empty
    std::vector<Keys> by_line = {};  ///< keys by line number, if other panes refer to them
};

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

std::string escaped(std::string_view text) {
    std::string result;
    for (const char c : text) {
        switch (c) {
            case '&':
                result += "&amp;";
                break;
            case '<':
                result += "&lt;";
                break;
            case '>':
                result += "&gt;";
                break;
            case '"':
                result += "&quot;";
                break;
            default:
                result += c;
        }
    }
    return result;
}

/// A program whose instructions have their lines in the IR text as locations, and the user's source
/// location for each of those lines.
struct Linked {
    std::string text;
    ir::Function function;
    std::map<int, ir::Location> sources;  ///< by line of the IR text
};

Linked linked(std::string_view given) {
    const ir::Function original = ir::parse(given);
    Linked result{ir::print(original), {}, {}};
    result.function = ir::parse_by_lines(result.text);
    std::vector<ir::Location> locations;
    ir::walk(original.body,
             [&](const ir::Instruction& made) { locations.push_back(made.location); });
    std::size_t next = 0;
    ir::walk(result.function.body, [&](const ir::Instruction& made) {
        const ir::Location& source = locations.at(next++);
        if (!source.file.empty()) result.sources.try_emplace(made.location.line, source);
    });
    return result;
}

/// The lines that the program comes from, with their surroundings in the user's files.
Pane source_pane(const Linked& program) {
    constexpr int kAround = 3;
    Pane pane{"Source"};
    std::map<std::string, std::map<int, Keys>> files;
    for (const auto& [line, source] : program.sources)
        files[std::string(source.file)][source.line].insert(line);
    for (const auto& [name, used] : files) {
        std::error_code no_such_file;
        std::ifstream file;
        if (std::filesystem::is_regular_file(name, no_such_file)) file.open(name);
        std::vector<std::string> lines;
        for (std::string line; file && std::getline(file, line);) lines.push_back(line);
        std::string heading = lines.empty() ? name + " (not found here)" : name;
        int last = 0;
        for (auto at = used.begin(); at != used.end(); ++at) {
            if (lines.empty()) {
                pane.lines.push_back({"", at->second, at->first, std::exchange(heading, {})});
                continue;
            }
            const auto next = std::next(at);
            const int first = std::max(last + 1, at->first - kAround);
            int end = std::min(static_cast<int>(lines.size()), at->first + kAround);
            if (next != used.end()) end = std::min(end, next->first - 1);
            if (last != 0 && first > last + 1) pane.lines.push_back({"…"});
            for (int line = first; line <= end; ++line) {
                const auto found = used.find(line);
                pane.lines.push_back({lines[line - 1], found == used.end() ? Keys{} : found->second,
                                      line, std::exchange(heading, {})});
            }
            last = std::max(last, end);
        }
    }
    if (pane.lines.empty()) pane.missing = "The IR names no lines of a source.";
    return pane;
}

Pane ir_pane(const Linked& program) {
    Pane pane{"IR"};
    std::set<int> instructions;
    ir::walk(program.function.body,
             [&](const ir::Instruction& made) { instructions.insert(made.location.line); });
    int number = 0;
    for (const std::string& line : lines_of(program.text)) {
        ++number;
        pane.lines.push_back({line, instructions.contains(number) ? Keys{number} : Keys{}, number});
    }
    return pane;
}

Pane bytecode_pane(const Linked& linked) {
    Pane pane{"Bytecode"};
    ir::Function function = linked.function;
    ir::optimise(function);
    std::shared_ptr<const cpu::Program> program;
    try {
        program = cpu::compile(function);
    } catch (const UserError& error) {
        pane.missing = error.what();
        return pane;
    }
    const auto keys = [&](std::uint32_t line) {
        const ir::Location& location = program->locations[line];
        return location.line > 0 ? Keys{location.line} : Keys{};
    };
    for (std::size_t i = 0; i < program->code.size(); ++i) {
        const std::vector<std::string> lines = lines_of(cpu::to_string(*program, i));
        const auto* chain = std::get_if<cpu::Chain>(&program->code[i]);
        for (std::size_t k = 0; k < lines.size(); ++k) {
            PageLine line{k == 0 ? fmt::format("{:3}  {}", i, lines[k]) : lines[k]};
            line.keys = keys(program->lines[i]);
            if (chain != nullptr && k > 0) line.keys = keys(chain->ops[k - 1].line);
            if (chain != nullptr && k == 0) {
                for (const cpu::StripOp& op : chain->ops) line.keys.merge(keys(op.line));
            }
            pane.lines.push_back(std::move(line));
        }
    }
    return pane;
}

/// CUDA C++ without its "@N" comments, which give the IR line of what follows.
Pane cuda_pane(const cuda::Generated& generated) {
    Pane pane{"CUDA"};
    Keys now;
    std::size_t margin = 0;
    int number = 0;
    for (std::string line : lines_of(generated.source)) {
        const std::size_t text = line.find_first_not_of(' ');
        const std::size_t mark = line.find("// @");
        bool only_mark = false;
        if (mark != std::string::npos && mark == text) {
            std::size_t end = mark + 4;
            int key = 0;
            for (; end < line.size() && line[end] >= '0' && line[end] <= '9'; ++end)
                key = key * 10 + (line[end] - '0');
            now = {key};
            margin = text;
            line.replace(mark + 3, std::min(line.size(), end + 1) - mark - 3, "");
            only_mark = line.find_last_not_of(" /") == std::string::npos;
        } else if (text != std::string::npos && text < margin) {
            now.clear();  // the enclosing block ends
        }
        pane.by_line.push_back(text == std::string::npos ? Keys{} : now);
        ++number;
        if (!only_mark) pane.lines.push_back({line, pane.by_line.back(), number});
    }
    return pane;
}

/// The last line number in `text` that follows `before`, as in `"file", line 12`.
int last_line_in(const std::string& text, const std::string& before) {
    const std::size_t at = text.rfind(before);
    return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + before.size());
}

const Keys& keys_at(const Pane& cuda, int line) {
    static const Keys none;
    const bool known = line >= 1 && line <= std::ssize(cuda.by_line);
    return known ? cuda.by_line[line - 1] : none;
}

Pane ptx_pane(const std::string& ptx, const std::string& source, const Pane& cuda) {
    Pane pane{"PTX"};
    std::string file = "1";  // number that .file gives the source
    for (const std::string& line : lines_of(ptx)) {
        const std::size_t at = line.find(".file");
        if (at != std::string::npos && line.find(source) != std::string::npos)
            file = std::to_string(std::atoi(line.c_str() + at + 5));
    }
    Keys now;
    for (const std::string& line : lines_of(ptx)) {
        const std::size_t text = line.find_first_not_of(" \t");
        if (text == std::string::npos || line.compare(text, 2, "//") == 0) continue;
        if (line.compare(text, 4, ".loc") == 0) {
            const int inlined = last_line_in(line, fmt::format("inlined_at {} ", file));
            const int direct = last_line_in(line, fmt::format(".loc\t{} ", file)) +
                               last_line_in(line, fmt::format(".loc {} ", file));
            if (inlined != 0 || direct != 0) now = keys_at(cuda, inlined != 0 ? inlined : direct);
            continue;
        }
        if (line.compare(text, 8, ".section") == 0) break;  // debug information
        // Constants of the device headers are not shown.
        if (line.compare(text, 5, ".file") == 0 || line.compare(text, 7, ".global") == 0) continue;
        const bool code = line[text] != '.' || line.find(".pragma") != std::string::npos;
        pane.lines.push_back({line, code ? now : Keys{}});
    }
    return pane;
}

Pane sass_pane(const std::string& sass, const std::string& source, const Pane& cuda) {
    Pane pane{"SASS"};
    Keys now;
    for (const std::string& line : lines_of(sass)) {
        if (line.find("//##") != std::string::npos) {
            const int at = last_line_in(line, fmt::format("{}\", line ", source)) +
                           last_line_in(line, fmt::format("{}\",line ", source));
            if (at != 0) now = keys_at(cuda, at);
            continue;
        }
        const std::size_t text = line.find_first_not_of(" \t");
        if (text == std::string::npos) continue;
        if (line.compare(text, 2, "/*") == 0) {
            // "/*0000*/", followed by a column for predicates.
            constexpr std::size_t kAddress = 8, kGap = 12;
            std::string shown = line.substr(text);
            if (shown.compare(kAddress, kGap, std::string(kGap, ' ')) == 0)
                shown.erase(kAddress, kGap);
            pane.lines.push_back({std::move(shown), now});
        } else if (line.back() == ':') {
            pane.lines.push_back({line.substr(text)});
        }
    }
    return pane;
}

/// CUDA C++, PTX and machine code, or the reason why one is missing.
std::vector<Pane> gpu_panes(const Linked& program, const std::string& arch, std::string& head) {
    std::vector<Pane> panes{{"CUDA"}, {"PTX"}, {"SASS"}};
    const auto missing = [&](std::size_t from, const std::string& why) {
        for (std::size_t i = from; i < panes.size(); ++i) panes[i].missing = why;
    };
    cuda::Target target = cuda::target_of(arch);
    target.facts = cuda::facts_of_dense(program.function,
                                        cuda::schedule::may_copy(program.function, target.arch));
    target.mark_lines = true;
    cuda::Generated generated;
    try {
        generated = cuda::schedule::generate_best(program.function, target);
    } catch (const UserError& error) {
        missing(0, error.what());
        return panes;
    }
    panes[0] = cuda_pane(generated);
    cuda::CompileRequest request = compile_request(generated, arch);
    request.options.emplace_back("-lineinfo");
    try {
        const cuda::Compiled compiled = cuda::compile(request);
        head += fmt::format(
            " &middot; {} threads, {} registers, {} bytes of shared memory, {} bytes spilled",
            generated.threads, compiled.registers, generated.shared_bytes, compiled.spill_bytes);
        panes[1] = ptx_pane(compiled.ptx, request.name, panes[0]);
        panes[2] = sass_pane(run::disassembled(compiled.cubin, true), request.name, panes[0]);
    } catch (const UserError& error) {
        missing(panes[1].lines.empty() ? 1 : 2, error.what());
    }
    return panes;
}

/// A colour for each source line, or for each IR line if there is no source.
std::map<int, int> hues(const Linked& program) {
    std::map<int, int> result;
    std::map<std::pair<std::string_view, int>, int> known;
    int next = 0;
    ir::walk(program.function.body, [&](const ir::Instruction& made) {
        const int line = made.location.line;
        const auto source = program.sources.find(line);
        const std::pair<std::string_view, int> place =
            source == program.sources.end() ? std::pair<std::string_view, int>{"", line}
                                            : std::pair{source->second.file, source->second.line};
        const auto [found, fresh] = known.try_emplace(place, next);
        if (fresh) next = (next + 137) % 360;  // far from neighbouring colours
        result.try_emplace(line, found->second);
    });
    return result;
}

std::string pane_text(const Pane& pane, const std::map<int, int>& hue) {
    std::string text = fmt::format(
        "<section class=\"pane\" data-name=\"{0}\"><h2>{0}</h2><div class=\"code\">", pane.title);
    if (!pane.missing.empty())
        text += fmt::format("<p class=\"missing\">{}</p>", escaped(pane.missing));
    for (const PageLine& line : pane.lines) {
        if (!line.heading.empty())
            text += fmt::format("<div class=\"file\">{}</div>", escaped(line.heading));
        std::string attributes;
        if (!line.keys.empty()) {
            const auto found = hue.find(*line.keys.begin());
            attributes = fmt::format(" data-k=\"{}\" style=\"--h:{}\"", fmt::join(line.keys, " "),
                                     found == hue.end() ? 0 : found->second);
        }
        text += fmt::format("<div class=\"l\"{}><i>{}</i>{}</div>", attributes,
                            line.number > 0 ? std::to_string(line.number) : "", escaped(line.text));
    }
    return text + "</div></section>\n";
}

std::vector<Finding> findings_of(std::string_view ir, std::string_view arch) {
    try {
        return explain_program(ir, arch);
    } catch (const UserError& error) {
        return {{"it does not run there", error.what(), {}}};
    }
}

std::string findings_text(const std::vector<Finding>& findings, std::string_view where) {
    std::string text = fmt::format("<dt>{}</dt>", where);
    if (findings.empty()) text += "<dd>nothing found that slows it down</dd>";
    for (const Finding& finding : findings) {
        text += fmt::format("<dd>{}{}, since {}</dd>", escaped(finding.what),
                            finding.source.empty()
                                ? ""
                                : fmt::format(" <code>({})</code>", escaped(finding.source)),
                            escaped(finding.reason));
    }
    return text;
}

}  // namespace

std::string program_page(std::string_view ir, std::string_view arch) {
    const Linked program = linked(ir);
    const std::map<int, int> hue = hues(program);
    std::string head = fmt::format("{}", arch);
    std::vector<Pane> panes{source_pane(program), ir_pane(program), bytecode_pane(program)};
    for (Pane& pane : gpu_panes(program, std::string(arch), head)) panes.push_back(std::move(pane));
    std::string body, buttons;
    for (const Pane& pane : panes) {
        body += pane_text(pane, hue);
        buttons += fmt::format("<label><input type=\"checkbox\" value=\"{0}\"{1}>{0}</label>",
                               pane.title, pane.missing.empty() ? " checked" : "");
    }
    const std::vector<Finding> on_cpu = findings_of(ir, {}), on_gpu = findings_of(ir, arch);
    const std::string summary =
        fmt::format("Findings: {} on the CPU, {} on {}", on_cpu.size(), on_gpu.size(), arch);
    const std::string findings = findings_text(on_cpu, "CPU") + findings_text(on_gpu, arch);
    const std::string name = escaped(program.function.name);
    return fmt::format(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
        "<meta name=\"viewport\" content=\"width=device-width\"><title>{0}</title>\n"
        "<style>{1}</style></head>\n<body><header><h1>{0}</h1><span>{2}</span>"
        "<nav>{3}</nav></header>\n<details><summary>{4}</summary><dl>{5}</dl></details>\n"
        "<main>{6}</main>\n<script>{7}</script></body></html>\n",
        name, run::kPageStyle, head, buttons, summary, findings, body, run::kPageScript);
}

}  // namespace tilewright
