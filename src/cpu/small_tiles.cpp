// Replaces chains on small tiles, and the scalars between them, by machine code.
#include "cpu/small_tiles.h"

#if defined(__x86_64__) && defined(__linux__)

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "cpu/simd/executable_code.h"
#include "cpu/simd/x86_encoder.h"
#include "cpu/small_tile_code.h"
#include "support/memo.h"

namespace tilewright::cpu {
namespace {

using x86::Encoder;
using enum x86::Gpr;

std::optional<std::vector<std::uint8_t>> code_of(const Program& program,
                                                 const Instruction& instruction, ConstantPool& pool,
                                                 bool wide) {
    if (const auto* chain = std::get_if<Chain>(&instruction))
        return wide ? small_tile_code(program, *chain, pool)
                    : small_tile_code_avx2(program, *chain, pool);
    if (const auto* pick = std::get_if<Pick>(&instruction))
        return pick_code(program, *pick, pool, wide);
    if (const auto* op = std::get_if<ScalarOp>(&instruction)) return scalar_code(*op, wide);
    if (const auto* move = std::get_if<ScalarMove>(&instruction)) {
        Encoder encoder(wide);
        encoder.load(rax, rsi, 8 * static_cast<std::int32_t>(move->from));
        encoder.store(rsi, 8 * static_cast<std::int32_t>(move->to), rax);
        return encoder.code();
    }
    return std::nullopt;
}

using Function = decltype(MachineCode::function);

/// Equal code is kept once, until the process ends: programs refer to it.
Function executable(std::vector<std::uint8_t> code) {
    constexpr std::size_t kMost = 4096;
    static auto* const kKnown =
        new Memo<std::string, const ExecutableCode*>("machine code of small tiles", kMost);
    code.insert(code.end(), {0xC5, 0xF8, 0x77, 0xC3});  // vzeroupper, ret
    const std::string key(code.begin(), code.end());
    const ExecutableCode* kept = kKnown->find(key).value_or(nullptr);
    if (kept == nullptr) {
        if (kKnown->size() >= kMost) return nullptr;
        const auto* const made = new ExecutableCode(code);
        kept = kKnown->put(key, made);
        if (kept != made) delete made;  // another thread was first
    }
    return reinterpret_cast<Function>(kept->data());
}

void set_targets(Program& program, const std::vector<std::size_t>& moved) {
    for (Instruction& instruction : program.code) {
        if (auto* jump = std::get_if<Jump>(&instruction)) jump->target = moved[jump->target];
        if (auto* jump = std::get_if<JumpUnless>(&instruction)) jump->target = moved[jump->target];
        if (auto* test = std::get_if<LoopTest>(&instruction)) test->target = moved[test->target];
        if (auto* next = std::get_if<LoopNext>(&instruction)) next->target = moved[next->target];
    }
}

std::set<std::size_t> targets_of(const Program& program) {
    std::set<std::size_t> targets;
    for (const Instruction& instruction : program.code) {
        if (const auto* jump = std::get_if<Jump>(&instruction)) targets.insert(jump->target);
        if (const auto* jump = std::get_if<JumpUnless>(&instruction)) targets.insert(jump->target);
        if (const auto* test = std::get_if<LoopTest>(&instruction)) targets.insert(test->target);
        if (const auto* next = std::get_if<LoopNext>(&instruction)) targets.insert(next->target);
    }
    return targets;
}

}  // namespace

void compile_small_tiles(Program& program) {
    const bool wide = program.kernels->vector_bytes == 64;
    if (!wants_machine_code() || (!wide && program.kernels->vector_bytes != 32)) return;
    const std::set<std::size_t> targets = targets_of(program);
    std::map<std::size_t, MachineCode> found;  // by the first instruction
    ConstantPool pool(program);
    for (std::size_t first = 0; first < program.code.size();) {
        std::vector<std::uint8_t> code;
        bool has_chain = false;
        std::size_t last = first;
        for (; last < program.code.size() && (last == first || !targets.contains(last)); ++last) {
            const auto part = code_of(program, program.code[last], pool, wide);
            if (!part) break;
            has_chain |= std::holds_alternative<Chain>(program.code[last]) ||
                         std::holds_alternative<Pick>(program.code[last]);
            code.insert(code.end(), part->begin(), part->end());
        }
        if (has_chain) {
            if (const Function function = executable(std::move(code)))
                found[first] = {function, last - first};
        }
        first = std::max(last, first + 1);
    }
    if (found.empty()) return;
    std::vector<Instruction> code;
    std::vector<std::uint32_t> lines;
    std::vector<std::size_t> moved;
    for (std::size_t i = 0; i < program.code.size(); ++i) {
        moved.push_back(code.size());
        if (const auto here = found.find(i); here != found.end()) {
            code.emplace_back(here->second);
            lines.push_back(program.lines[i]);
        }
        code.push_back(std::move(program.code[i]));
        lines.push_back(program.lines[i]);
    }
    program.code = std::move(code);
    program.lines = std::move(lines);
    set_targets(program, moved);
}

}  // namespace tilewright::cpu

#else

namespace tilewright::cpu {

void compile_small_tiles(Program&) {}

}  // namespace tilewright::cpu

#endif
