// Writes the machine code of scans with the user's function.
#include "cpu/simd/scan_compiler.h"

#if defined(__x86_64__) && defined(__linux__)

#include <algorithm>
#include <cstddef>
#include <optional>

#include "cpu/simd/executable_code.h"
#include "cpu/simd/x86_encoder.h"
#include "cpu/simd/x86_opcodes.h"
#include "support/memo.h"

namespace tilewright::cpu {
namespace {

using namespace x86;  // opcodes
using ir::Op;

constexpr Opcode kAlign{3, 1, 0x03}, kPermute{2, 1, 0x36}, kFix{3, 1, 0x54};
constexpr int kLanes = 16;
constexpr int kEqual = 0x84, kNotEqual = 0x85;
// Mask registers: lanes in the row, and those that the four steps change.
constexpr int kInRow = 1, kReach = 2;
constexpr int kReaches[] = {1, 2, 4, 8};

class ScanCompiler {
  public:
    explicit ScanCompiler(const ScanShape& shape) : shape_(shape), encoder_(true) {
        const int n = shape.values;
        for (int i = 0; i < n; ++i) {
            now_.push_back(i);
            carry_.push_back(n + i);
            moved_.push_back(2 * n + i);
        }
        last_lane_ = 3 * n;
        nan_first_ = last_lane_ + 1;
        first_splat_ = nan_first_ + 1;
        first_temporary_ = first_splat_ + shape.splats;
    }

    const std::vector<std::uint8_t>& code() const { return encoder_.code(); }

    /// False where an op is not known, or registers are too few.
    bool compile() {
        using enum Gpr;
        constexpr Gpr kSaved[] = {rbx, rbp, r14, r15};
        for (const Gpr reg : kSaved) encoder_.push(reg);
        for (std::size_t i = 0; i < count(); ++i) {
            encoder_.load(kIn[i], rdi, offset(offsetof(ScanArguments, in), i, 8));
            encoder_.load(kOut[i], rdi, offset(offsetof(ScanArguments, out), i, 8));
            encoder_.vector_memory(kLoad, carry_[i], 0, rdi,
                                   offset(offsetof(ScanArguments, carries), i, 64));
        }
        for (int i = 0; i < shape_.splats; ++i) {
            encoder_.load(rax, rdi,
                          offset(offsetof(ScanArguments, splats), static_cast<std::size_t>(i), 8));
            encoder_.vector_at(kBroadcast, first_splat_ + i, 0, rax);
        }
        encoder_.load(rcx, rdi, offsetof(ScanArguments, vectors));
        encoder_.load(rsi, rdi, offsetof(ScanArguments, is_first));
        for (int step = 0; step < 4; ++step) {
            const int reach = kReaches[step];
            set_mask(kReach + step, shape_.reverse ? 0xFFFF >> reach : 0xFFFF << reach & 0xFFFF);
        }
        encoder_.fixed({0xB8});  // mov eax, the last lane
        encoder_.word(kLanes - 1);
        encoder_.move_word(last_lane_, rax);
        encoder_.vector(kBroadcastLane, last_lane_, 0, last_lane_);
        encoder_.fixed({0xB8});  // mov eax, the table of vfixupimmps: NaN of the first operand
        encoder_.word(0x11);
        encoder_.move_word(nan_first_, rax);
        encoder_.vector(kBroadcastLane, nan_first_, 0, nan_first_);
        encoder_.load(rax, rdi, offsetof(ScanArguments, lanes));
        encoder_.fixed({0xC5, 0xF8, 0x92, 0xC0 | kInRow << 3});  // kmovw mask, eax
        encoder_.load(rdx, rdi, offsetof(ScanArguments, streams));
        encoder_.fixed({0x31, 0xC0});        // xor eax, eax
        encoder_.fixed({0x48, 0x85, 0xD2});  // test rdx, rdx
        const std::size_t plain = encoder_.jump_ahead(kEqual);
        if (!loop(true)) return false;
        const std::size_t end = encoder_.jump_ahead(kEqual);
        encoder_.land(plain);
        loop(false);
        encoder_.land(end);
        for (std::size_t i = 0; i < count(); ++i)
            encoder_.vector_memory(kStore, carry_[i], 0, rdi,
                                   offset(offsetof(ScanArguments, carries), i, 64));
        encoder_.fixed({0xC5, 0xF8, 0x77});  // vzeroupper
        for (std::size_t i = std::size(kSaved); i-- > 0;) encoder_.pop(kSaved[i]);
        encoder_.fixed({0xC3});
        return true;
    }

  private:
    static constexpr Gpr kIn[] = {Gpr::r8, Gpr::r9, Gpr::r10, Gpr::r11};
    static constexpr Gpr kOut[] = {Gpr::rbx, Gpr::rbp, Gpr::r14, Gpr::r15};

    std::size_t count() const { return static_cast<std::size_t>(shape_.values); }
    static std::int32_t offset(std::size_t first, std::size_t i, std::size_t bytes) {
        return static_cast<std::int32_t>(first + i * bytes);
    }
    void set_mask(int mask, int lanes) {
        encoder_.fixed({0xB8});  // mov eax, lanes
        encoder_.word(lanes);
        encoder_.fixed({0xC5, 0xF8, 0x92, 0xC0 | mask << 3});  // kmovw mask, eax
    }

    /// All vectors; ends with equality.
    bool loop(bool streams) {
        const std::size_t start = encoder_.here();
        for (std::size_t i = 0; i < count(); ++i)
            encoder_.vector_lanes(kLoad, now_[i], 0, kIn[i], 0, kInRow | kZeros);
        for (int step = 0; step < 4; ++step) {
            for (std::size_t i = 0; i < count(); ++i) {
                encoder_.vector(kAlign, moved_[i], now_[i], now_[i]);
                encoder_.immediate(shape_.reverse ? kReaches[step] : kLanes - kReaches[step]);
            }
            if (!combine(moved_, kReach + step)) return false;
        }
        encoder_.fixed({0x48, 0x85, 0xF6});  // test rsi, rsi
        const std::size_t first = encoder_.jump_ahead(kNotEqual);
        combine(carry_, 0);
        encoder_.land(first);
        encoder_.fixed({0x31, 0xF6});  // xor esi, esi
        for (std::size_t i = 0; i < count(); ++i) {
            if (shape_.reverse)
                encoder_.vector(kBroadcastLane, carry_[i], 0, now_[i]);
            else
                encoder_.vector(kPermute, carry_[i], last_lane_, now_[i]);
        }
        for (std::size_t i = 0; i < count(); ++i) {
            if (!shape_.kept[i]) continue;
            if (streams)
                encoder_.vector_lanes(kStream, now_[i], 0, kOut[i], 0);
            else
                encoder_.vector_lanes(kStore, now_[i], 0, kOut[i], 0, kInRow);
        }
        encoder_.fixed({0x48, 0x05});  // add rax, lanes
        encoder_.word(shape_.reverse ? -kLanes : kLanes);
        encoder_.fixed({0x48, 0xFF, 0xC9});  // dec rcx
        encoder_.jump_back(kNotEqual, start);
        return true;
    }

    /// Replaces the lanes of `mask` (0: all) by what the function makes of `before` and them.
    bool combine(const std::vector<int>& before, int mask) {
        const std::size_t n = count();
        std::vector<int> place(2 * n + static_cast<std::size_t>(shape_.splats) + shape_.ops.size());
        for (std::size_t i = 0; i < n; ++i) {
            place[i] = before[i];
            place[n + i] = now_[i];
        }
        for (int i = 0; i < shape_.splats; ++i)
            place[2 * n + static_cast<std::size_t>(i)] = first_splat_ + i;
        next_temporary_ = first_temporary_;
        std::vector<bool> done(shape_.ops.size());
        std::vector<bool> replaced(n);
        for (std::size_t left = shape_.ops.size(); left > 0; --left) {
            // An op that may write where its result belongs goes first.
            std::optional<std::size_t> next;
            int result = -1;
            for (std::size_t k = 0; k < shape_.ops.size(); ++k) {
                if (done[k] || !is_ready(k, done)) continue;
                const int own = free_result(k, done, replaced);
                if (!next || (result < 0 && own >= 0)) {
                    next = k;
                    result = own;
                }
            }
            const std::size_t k = *next;
            int to = result >= 0 ? now_[static_cast<std::size_t>(result)] : temporary();
            if (to < 0 || !emit(shape_.ops[k], place, to, result >= 0 ? mask : 0, result >= 0))
                return false;
            if (result >= 0) replaced[static_cast<std::size_t>(result)] = true;
            done[k] = true;
            place[first_op() + k] = to;
        }
        for (std::size_t i = 0; i < n; ++i) {
            const int from = place[static_cast<std::size_t>(shape_.results[i])];
            if (!replaced[i] && from != now_[i]) encoder_.vector(kMove, now_[i], 0, from, mask);
        }
        return true;
    }

    std::size_t first_op() const { return 2 * count() + static_cast<std::size_t>(shape_.splats); }
    bool is_ready(std::size_t op, const std::vector<bool>& done) const {
        const ScanShape::Op& made = shape_.ops[op];
        return std::all_of(made.in.begin(), made.in.begin() + made.num_inputs, [&](int in) {
            const auto value = static_cast<std::size_t>(in);
            return value < first_op() || done[value - first_op()];
        });
    }
    /// The result that an op makes, if no other op nor result needs the element in its place any
    /// more; else -1.
    int free_result(std::size_t op, const std::vector<bool>& done,
                    const std::vector<bool>& replaced) const {
        const auto value = static_cast<int>(first_op() + op);
        for (std::size_t i = 0; i < count(); ++i) {
            if (shape_.results[i] != value || replaced[i]) continue;
            const auto element = static_cast<int>(count() + i);
            bool needed = false;
            for (std::size_t k = 0; k < shape_.ops.size(); ++k) {
                const ScanShape::Op& other = shape_.ops[k];
                needed |= k != op && !done[k] &&
                          std::find(other.in.begin(), other.in.begin() + other.num_inputs,
                                    element) != other.in.begin() + other.num_inputs;
            }
            for (const int other : shape_.results) needed |= other == element;
            if (!needed) return static_cast<int>(i);
        }
        return -1;
    }
    int temporary() { return next_temporary_ < 32 ? next_temporary_++ : -1; }

    /// One op; what is in `to` may be one of its operands, and stays in the lanes that `mask`
    /// leaves out if it is `kept`.
    bool emit(const ScanShape::Op& op, const std::vector<int>& place, int to, int mask, bool kept) {
        std::array<int, 3> in{};
        for (int k = 0; k < op.num_inputs; ++k)
            in[static_cast<std::size_t>(k)] =
                place[static_cast<std::size_t>(op.in[static_cast<std::size_t>(k)])];
        if (op.op == Op::fma && op.dtype == DType::f32) {
            if (in[2] == to && in[0] != to && in[1] != to) {
                encoder_.vector(kFma231, to, in[0], in[1], mask);
                return true;
            }
            const int sum = kept ? temporary() : to;
            if (sum < 0) return false;
            encoder_.vector(kMove, sum, 0, in[2]);
            encoder_.vector(kFma231, sum, in[0], in[1]);
            if (kept) encoder_.vector(kMove, to, 0, sum, mask);
            return true;
        }
        if (op.op == Op::sqrt && op.dtype == DType::f32) {
            encoder_.vector(kSqrt, to, 0, in[0], mask);
            return true;
        }
        const auto opcode = op.num_inputs == 2 ? arithmetic_opcode(op.op, op.dtype) : std::nullopt;
        if (!opcode) return false;
        const bool extreme = op.dtype == DType::f32 && (op.op == Op::min || op.op == Op::max);
        if (!extreme) {
            encoder_.vector(*opcode, to, in[0], in[1], mask);
            return true;
        }
        // The instruction gives the second operand where one is NaN: not where the first is.
        const bool direct = in[0] != to;
        const int work = direct ? to : temporary();
        if (work < 0) return false;
        encoder_.vector(*opcode, work, in[0], in[1], direct ? mask : 0);
        encoder_.vector(kFix, work, in[0], nan_first_, direct ? mask : 0);
        encoder_.immediate(0);
        if (!direct) encoder_.vector(kMove, to, 0, work, mask);
        return true;
    }

    const ScanShape& shape_;
    Encoder encoder_;
    std::vector<int> now_, carry_, moved_;  ///< registers of each value
    int last_lane_ = 0, nan_first_ = 0, first_splat_ = 0, first_temporary_ = 0, next_temporary_ = 0;
};

std::vector<int> key_of(const ScanShape& shape) {
    std::vector<int> key{shape.values, shape.splats, shape.reverse};
    for (const bool kept : shape.kept) key.push_back(kept);
    key.insert(key.end(), shape.results.begin(), shape.results.end());
    for (const ScanShape::Op& op : shape.ops) {
        key.push_back(static_cast<int>(op.op));
        key.push_back(static_cast<int>(op.dtype));
        key.insert(key.end(), op.in.begin(), op.in.end());
    }
    return key;
}

struct CompiledScan {
    std::optional<ExecutableCode> code;
    void (*function)(void* arguments) = nullptr;
};

}  // namespace

void (*compile_scan(const ScanShape& shape))(void* arguments) {
    constexpr int kMostRegisters = 24;
    if (!wants_machine_code() || shape.values > ScanShape::kMostValues ||
        shape.splats > ScanArguments::kMostSplats ||
        3 * shape.values + 2 + shape.splats > kMostRegisters)
        return nullptr;
    constexpr std::size_t kMostScans = 1024;
    static auto* const kScans =
        new Memo<std::vector<int>, const CompiledScan*>("machine code of scans", kMostScans);
    const std::vector<int> key = key_of(shape);
    if (const auto known = kScans->find(key)) return (*known)->function;
    if (kScans->size() >= kMostScans) return nullptr;
    auto* const made = new CompiledScan;
    ScanCompiler compiler(shape);
    if (compiler.compile()) {
        std::byte* const memory = made->code.emplace(compiler.code()).data();
        made->function = reinterpret_cast<void (*)(void*)>(memory);
    }
    const CompiledScan* const kept = kScans->put(key, made);
    if (kept != made) delete made;  // another thread was first
    return kept->function;
}

}  // namespace tilewright::cpu

#else

namespace tilewright::cpu {

void (*compile_scan(const ScanShape&))(void* arguments) {
    return nullptr;
}

}  // namespace tilewright::cpu

#endif
