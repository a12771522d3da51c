// Compiles fused runs of arithmetic on f32 and i32, and keeps their code.
#include "cpu/simd/run_compiler.h"

#if defined(__x86_64__) && defined(__linux__)

#include <algorithm>
#include <optional>
#include <vector>

#include "cpu/simd/executable_code.h"
#include "cpu/simd/run_code.h"
#include "cpu/simd/x86_encoder.h"
#include "support/memo.h"

namespace tilewright::cpu {
namespace {

using ir::Op;
using x86::Encoder;
using x86::Gpr;
using Kind = FusedPlace::Kind;

/// A run with its code.
struct CompiledRun {
    std::int64_t vector_bytes = 0;
    std::vector<std::size_t> stores;  ///< operands
    Rows plain = nullptr, streaming = nullptr;
    void (*function)(const FusedCall& call) = nullptr;
    std::optional<ExecutableCode> code;
};

void run_rows(const FusedCall& call, const CompiledRun& run) {
    std::array<std::byte*, FusedCall::kMaxOperands> at;
    std::array<std::int64_t, FusedCall::kMaxOperands + 1> row_bytes;
    std::int64_t moves = 0;
    for (std::size_t k = 0; k < call.num_operands; ++k) {
        const FusedOperand& operand = call.operands[k];
        at[k] = operand.data;
        row_bytes[k] = operand.row_bytes;
        if (operand.lane_bytes == 0) moves |= operand.row_bytes;
    }
    row_bytes[call.num_operands] = moves;
    const std::int64_t last = call.lanes - kVectorsAtOnce * run.vector_bytes / 4;
    const bool streams = std::all_of(run.stores.begin(), run.stores.end(), [&](std::size_t k) {
        const FusedOperand& to = call.operands[k];
        return to.streams && 4 * last % run.vector_bytes == 0 &&
               to.row_bytes % run.vector_bytes == 0 &&
               reinterpret_cast<std::intptr_t>(to.data) % run.vector_bytes == 0;
    });
    const Rows rows = streams ? run.streaming : run.plain;
    if (call.num_prefetches == 0) return rows(at.data(), row_bytes.data(), call.rows, last);
    constexpr std::int64_t kLine = 64;
    // Fewer rows at a time than are fetched ahead.
    constexpr std::int64_t kShortRow = 1024;
    const std::int64_t at_a_time = call.lanes <= kShortRow ? 4 : 1;
    for (std::int64_t row = 0; row < call.rows; row += at_a_time) {
        const std::int64_t count = std::min(at_a_time, call.rows - row);
        for (std::size_t k = 0; k < call.num_operands; ++k)
            at[k] = call.operands[k].data + row * row_bytes[k];
        for (std::size_t p = 0; p < call.num_prefetches; ++p) {
            const FusedPrefetch& next = call.prefetches[p];
            const std::byte* first = at[next.operand] + next.ahead;
            for (std::int64_t i = 0; i < count; ++i, first += row_bytes[next.operand]) {
                for (std::int64_t byte = 0; byte < call.blocks * next.block_bytes; byte += kLine)
                    __builtin_prefetch(first + byte, 0, 2);
            }
        }
        rows(at.data(), row_bytes.data(), count, last);
    }
}

bool compile_code(CompiledRun& run, std::span<const FusedShape> shapes) {
    const bool wide = run.vector_bytes == 64;
    const auto plain = rows_code(shapes, wide, false);
    if (!plain) return false;
    const auto streaming = rows_code(shapes, wide, true);
    std::size_t operands = 0;
    for (const FusedShape& shape : shapes) {
        const bool stores = shape.key.op == Op::store && shape.place[0].kind == Kind::lanes;
        if (stores) run.stores.push_back(operands);
        operands += static_cast<std::size_t>(
            std::count_if(shape.place.begin(), shape.place.end(),
                          [](const FusedPlace& place) { return place.kind != Kind::none; }));
    }
    if (operands > FusedCall::kMaxOperands) return false;
    // What callers see: it hands over the run.
    Encoder entry(wide);
    entry.load_constant(Gpr::rsi, reinterpret_cast<std::uint64_t>(&run));
    entry.load_constant(Gpr::rax, reinterpret_cast<std::uint64_t>(&run_rows));
    entry.fixed({0xFF, 0xE0});  // jmp rax
    std::vector<std::uint8_t> code;
    const auto append = [&](const std::vector<std::uint8_t>& part) {
        constexpr std::size_t kAlignment = 64;
        code.resize((code.size() + kAlignment - 1) / kAlignment * kAlignment);
        code.insert(code.end(), part.begin(), part.end());
        return code.size() - part.size();
    };
    append(entry.code());
    const std::size_t first = append(*plain), second = append(*streaming);
    std::byte* const memory = run.code.emplace(code).data();
    if (memory == nullptr) return false;
    run.function = reinterpret_cast<void (*)(const FusedCall&)>(memory);
    run.plain = reinterpret_cast<Rows>(memory + first);
    run.streaming = reinterpret_cast<Rows>(memory + second);
    return true;
}

/// The numbers that tell runs apart. Only AVX-512 code depends on lanes that operands share.
std::vector<int> key_of(std::span<const FusedShape> shapes, int vector_bytes) {
    const bool shares = vector_bytes == 64;
    std::vector<int> key{vector_bytes};
    for (const FusedShape& shape : shapes) {
        const FusedKey& what = shape.key;
        key.insert(key.end(),
                   {static_cast<int>(what.op), static_cast<int>(what.in),
                    static_cast<int>(what.out), what.value, static_cast<int>(what.reduction)});
        for (const FusedPlace& place : shape.place) {
            key.push_back(static_cast<int>(place.kind));
            key.push_back(place.temporary);
            key.push_back(shares ? place.base : -1);
            key.push_back(shares ? place.shift : 0);
        }
    }
    return key;
}

}  // namespace

void (*compile_run(std::span<const FusedShape> shapes, int vector_bytes))(const FusedCall& call) {
    if (!wants_machine_code()) return nullptr;
    // Runs differ by their steps, not by constants or sizes. Programs refer to the code of a run,
    // so none is evicted; what comes later goes step by step.
    constexpr std::size_t kMostRuns = 4096;
    static auto* const kRuns =
        new Memo<std::vector<int>, const CompiledRun*>("machine code of CPU programs", kMostRuns);
    const std::vector<int> key = key_of(shapes, vector_bytes);
    if (const auto known = kRuns->find(key)) return (*known)->function;
    if (kRuns->size() >= kMostRuns) return nullptr;
    auto* const run = new CompiledRun;
    run->vector_bytes = vector_bytes;
    if (!compile_code(*run, shapes)) run->function = nullptr;
    const CompiledRun* const kept = kRuns->put(key, run);
    if (kept != run) delete run;  // another thread was first
    return kept->function;
}

}  // namespace tilewright::cpu

#else

namespace tilewright::cpu {

void (*compile_run(std::span<const FusedShape>, int))(const FusedCall& call) {
    return nullptr;
}

}  // namespace tilewright::cpu

#endif
