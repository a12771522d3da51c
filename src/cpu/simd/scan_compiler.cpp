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
/// Vectors of a column, if registers suffice.
constexpr int kColumnVectors[] = {8, 4, 2};
constexpr int kEqual = 0x84, kNotEqual = 0x85;
// Mask registers: lanes in the row, and those that the four steps change.
constexpr int kInRow = 1, kReach = 2;
constexpr int kReaches[] = {1, 2, 4, 8};

class ScanCompiler {
  public:
    /// `columns`: vectors side by side in a scan down rows.
    explicit ScanCompiler(const ScanShape& shape, int columns = 1)
        : shape_(shape), encoder_(true), all_(count(), true) {
        const int n = shape.values;
        // The first 16 registers take words from general ones.
        last_lane_ = n;
        nan_first_ = n + 1;
        for (int i = 0; i < n; ++i) {
            now_.push_back(i);
            carry_.push_back(carry_of(static_cast<std::size_t>(i), 0));
            moved_.push_back(carry_of(static_cast<std::size_t>(i), 1));
        }
        first_splat_ = carry_of(0, std::max(2, columns));
        first_temporary_ = first_splat_ + shape.splats;
    }

    const std::vector<std::uint8_t>& code() const { return encoder_.code(); }

    /// False where an op is not known, or registers are too few.
    bool compile() {
        using enum Gpr;
        for (const Gpr reg : kSaved) encoder_.push(reg);
        for (std::size_t i = 0; i < count(); ++i) {
            encoder_.load(kIn[i], rdi, offset(offsetof(ScanArguments, in), i, 8));
            encoder_.load(kOut[i], rdi, offset(offsetof(ScanArguments, out), i, 8));
            encoder_.vector_memory(kLoad, carry_[i], 0, rdi,
                                   offset(offsetof(ScanArguments, carries), i, 64));
        }
        load_splats(offsetof(ScanArguments, splats));
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
        load_constants(offsetof(ScanArguments, lanes));
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
        finish();
        return true;
    }

    /// The same for a scan down rows, of ScanDownArguments: row by row, or `columns` vectors of
    /// each.
    bool compile_down(int columns) {
        using enum Gpr;
        for (const Gpr reg : kSaved) encoder_.push(reg);
        for (std::size_t i = 0; i < count(); ++i) {
            encoder_.load(kIn[i], rdi, offset(offsetof(ScanDownArguments, in), i, 8));
            encoder_.load(kOut[i], rdi, offset(offsetof(ScanDownArguments, out), i, 8));
        }
        load_splats(offsetof(ScanDownArguments, splats));
        load_constants(offsetof(ScanDownArguments, lanes));
        encoder_.load(rsi, rdi, offsetof(ScanDownArguments, carries));
        encoder_.load(rdx, rdi, offsetof(ScanDownArguments, rows));
        move_columns(kLoad, columns);
        encoder_.load(rax, rdi, offsetof(ScanDownArguments, streams));
        encoder_.fixed({0x48, 0x85, 0xC0});  // test rax, rax
        const std::size_t plain = encoder_.jump_ahead(kEqual);
        if (!down(true, columns)) return false;
        const std::size_t end = encoder_.jump_ahead(kEqual);
        encoder_.land(plain);
        down(false, columns);
        encoder_.land(end);
        move_columns(kStore, columns);
        finish();
        return true;
    }

  private:
    static constexpr Gpr kSaved[] = {Gpr::rbx, Gpr::rbp, Gpr::r14, Gpr::r15};
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

    void load_splats(std::size_t first) {
        for (int i = 0; i < shape_.splats; ++i) {
            encoder_.load(Gpr::rax, Gpr::rdi, offset(first, static_cast<std::size_t>(i), 8));
            encoder_.vector_at(kBroadcast, first_splat_ + i, 0, Gpr::rax);
        }
    }
    void load_constants(std::size_t lanes) {
        encoder_.fixed({0xB8});  // mov eax, the table of vfixupimmps: NaN of the first operand
        encoder_.word(0x11);
        encoder_.move_word(nan_first_, Gpr::rax);
        encoder_.vector(kBroadcastLane, nan_first_, 0, nan_first_);
        encoder_.load(Gpr::rax, Gpr::rdi, static_cast<std::int32_t>(lanes));
        encoder_.fixed({0xC5, 0xF8, 0x92, 0xC0 | kInRow << 3});  // kmovw mask, eax
    }
    void finish() {
        encoder_.fixed({0xC5, 0xF8, 0x77});  // vzeroupper
        for (std::size_t i = std::size(kSaved); i-- > 0;) encoder_.pop(kSaved[i]);
        encoder_.fixed({0xC3});
    }

    // ---- Down rows.

    /// Where the carry of a value is.
    static std::int32_t carry_at(std::size_t value, int column) {
        return static_cast<std::int32_t>(static_cast<std::int64_t>(value) *
                                         ScanDownArguments::kCarryBytes) +
               64 * column;
    }
    int carry_of(std::size_t value, int column) const {
        return nan_first_ + 1 +
               static_cast<int>(count() * static_cast<std::size_t>(column) + value);
    }
    /// Carries to or from registers.
    void move_columns(Opcode op, int columns) {
        for (int c = 0; columns > 1 && c < columns; ++c) {
            for (std::size_t i = 0; i < count(); ++i) {
                if (shape_.carried[i])
                    encoder_.vector_memory(op, carry_of(i, c), 0, Gpr::rsi, carry_at(i, c));
            }
        }
    }
    /// All rows; ends with equality.
    bool down(bool streams, int columns) {
        using enum Gpr;
        if (columns > 1) encoder_.load(rax, rdi, offsetof(ScanDownArguments, ahead));
        const std::size_t row = encoder_.here();
        if (columns == 1) {
            encoder_.load(rax, rdi, offsetof(ScanDownArguments, first));
            encoder_.load(rcx, rdi, offsetof(ScanDownArguments, vectors));
            const std::size_t vector = encoder_.here();
            for (std::size_t i = 0; i < count(); ++i) {
                if (shape_.carried[i])
                    encoder_.vector_lanes(kLoad, carry_[i], 0, rsi, carry_at(i, 0));
                encoder_.vector_lanes(kLoad, now_[i], 0, kIn[i], 0, kInRow | kZeros);
            }
            if (!combine(carry_, 0, shape_.carried)) return false;
            for (std::size_t i = 0; i < count(); ++i) {
                if (!shape_.carried[i]) continue;
                encoder_.vector_lanes(kStore, now_[i], 0, rsi, carry_at(i, 0));
                store_result(i, streams);
            }
            next_vector();
            encoder_.jump_back(kNotEqual, vector);
        }
        for (int c = 0; columns > 1 && c < columns; ++c) {
            std::vector<int> carry;
            for (std::size_t i = 0; i < count(); ++i) {
                carry.push_back(carry_of(i, c));
                // prefetcht0 [in + 4 * rax + 64 * c]
                encoder_.fixed({0x41, 0x0F, 0x18, 0x8C, 0x80 | (kIn[i] & 7)});
                encoder_.word(64 * c);
                encoder_.vector_memory(kLoad, now_[i], 0, kIn[i], 64 * c);
            }
            if (!combine(carry, 0, shape_.carried)) return false;
            for (std::size_t i = 0; i < count(); ++i) {
                if (!shape_.carried[i]) continue;
                encoder_.vector(kMove, carry[i], 0, now_[i]);
                if (shape_.kept[i])
                    encoder_.vector_memory(streams ? kStream : kStore, now_[i], 0, kOut[i], 64 * c);
            }
        }
        for (std::size_t i = 0; i < count(); ++i) {
            encoder_.add(kIn[i], rdi, offset(offsetof(ScanDownArguments, in_step), i, 8));
            encoder_.add(kOut[i], rdi, offset(offsetof(ScanDownArguments, out_step), i, 8));
        }
        encoder_.fixed({0x48, 0xFF, 0xCA});  // dec rdx
        encoder_.jump_back(kNotEqual, row);
        return true;
    }
    /// Stores the vector of a result that is wanted: past the caches, or its lanes in the row.
    void store_result(std::size_t i, bool streams) {
        if (!shape_.kept[i]) return;
        if (streams)
            encoder_.vector_lanes(kStream, now_[i], 0, kOut[i], 0);
        else
            encoder_.vector_lanes(kStore, now_[i], 0, kOut[i], 0, kInRow);
    }
    /// Ends with equality after the last one.
    void next_vector() {
        encoder_.fixed({0x48, 0x05});  // add rax, lanes
        encoder_.word(shape_.reverse ? -kLanes : kLanes);
        encoder_.fixed({0x48, 0xFF, 0xC9});  // dec rcx
    }

    // ---- Along lanes.

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
            if (!combine(moved_, kReach + step, all_)) return false;
        }
        encoder_.fixed({0x48, 0x85, 0xF6});  // test rsi, rsi
        const std::size_t first = encoder_.jump_ahead(kNotEqual);
        combine(carry_, 0, shape_.carried);
        encoder_.land(first);
        encoder_.fixed({0x31, 0xF6});  // xor esi, esi
        for (std::size_t i = 0; i < count(); ++i) {
            if (!shape_.carried[i]) continue;
            if (shape_.reverse)
                encoder_.vector(kBroadcastLane, carry_[i], 0, now_[i]);
            else
                encoder_.vector(kPermute, carry_[i], last_lane_, now_[i]);
        }
        for (std::size_t i = 0; i < count(); ++i) store_result(i, streams);
        next_vector();
        encoder_.jump_back(kNotEqual, start);
        return true;
    }

    /// Replaces the lanes of `mask` (0: all) by what the function makes of `before` and them: the
    /// `wanted` results.
    bool combine(const std::vector<int>& before, int mask, const std::vector<bool>& wanted) {
        const std::size_t n = count();
        std::vector<int> place(2 * n + static_cast<std::size_t>(shape_.splats) + shape_.ops.size());
        for (std::size_t i = 0; i < n; ++i) {
            place[i] = before[i];
            place[n + i] = now_[i];
        }
        for (int i = 0; i < shape_.splats; ++i)
            place[2 * n + static_cast<std::size_t>(i)] = first_splat_ + i;
        next_temporary_ = first_temporary_;
        // Ops that nothing needs are done.
        std::vector<bool> done(shape_.ops.size(), true);
        const auto need = [&](int value) {
            if (value >= static_cast<int>(first_op()))
                done[static_cast<std::size_t>(value) - first_op()] = false;
        };
        for (std::size_t i = 0; i < n; ++i) {
            if (wanted[i]) need(shape_.results[i]);
        }
        for (std::size_t k = shape_.ops.size(); k-- > 0;) {
            const ScanShape::Op& op = shape_.ops[k];
            if (!done[k]) std::for_each(op.in.begin(), op.in.begin() + op.num_inputs, need);
        }
        // Results that are not wanted need no place.
        std::vector<bool> replaced = wanted;
        replaced.flip();
        for (auto left = std::count(done.begin(), done.end(), false); left > 0; --left) {
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
            for (std::size_t k = 0; k < count(); ++k)
                needed |= !replaced[k] && shape_.results[k] == element;
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
    std::vector<bool> all_;
    std::vector<int> now_, carry_, moved_;  ///< registers of each value
    int last_lane_ = 0, nan_first_ = 0, first_splat_ = 0, first_temporary_ = 0, next_temporary_ = 0;
};

std::vector<int> key_of(const ScanShape& shape) {
    std::vector<int> key{shape.values, shape.splats, shape.reverse};
    for (const bool kept : shape.kept) key.push_back(kept);
    for (const bool carried : shape.carried) key.push_back(carried);
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

/// The code that `compile` makes for a way to scan; nullptr if it makes none.
template <typename Compile>
void (*kept_code(const ScanShape& shape, int way, Compile&& compile))(void* arguments) {
    constexpr std::size_t kMostScans = 1024;
    static auto* const kScans =
        new Memo<std::vector<int>, const CompiledScan*>("machine code of scans", kMostScans);
    std::vector<int> key = key_of(shape);
    key.push_back(way);
    if (const auto known = kScans->find(key)) return (*known)->function;
    if (kScans->size() >= kMostScans) return nullptr;
    auto* const made = new CompiledScan;
    if (const std::optional<std::vector<std::uint8_t>> code = compile()) {
        std::byte* const memory = made->code.emplace(*code).data();
        made->function = reinterpret_cast<void (*)(void*)>(memory);
    }
    const CompiledScan* const kept = kScans->put(key, made);
    if (kept != made) delete made;  // another thread was first
    return kept->function;
}

bool may_compile(const ScanShape& shape) {
    constexpr int kMostRegisters = 24;
    return wants_machine_code() && shape.values <= ScanShape::kMostValues &&
           shape.splats <= ScanArguments::kMostSplats &&
           3 * shape.values + 2 + shape.splats <= kMostRegisters;
}

using Code = std::optional<std::vector<std::uint8_t>>;

}  // namespace

void (*compile_scan(const ScanShape& shape))(void* arguments) {
    if (!may_compile(shape)) return nullptr;
    return kept_code(shape, 0, [&]() -> Code {
        ScanCompiler compiler(shape);
        return compiler.compile() ? Code(compiler.code()) : std::nullopt;
    });
}

ScanDown compile_scan_down(const ScanShape& shape) {
    ScanDown down;
    if (!may_compile(shape)) return down;
    const auto compiled = [&](int columns) {
        return kept_code(shape, columns, [&]() -> Code {
            ScanCompiler compiler(shape, columns);
            return compiler.compile_down(columns) ? Code(compiler.code()) : std::nullopt;
        });
    };
    down.rows = compiled(1);
    for (const int columns : kColumnVectors) {
        down.columns = compiled(columns);
        down.column_lanes = columns * kLanes;
        if (down.columns != nullptr) break;
    }
    return down;
}

}  // namespace tilewright::cpu

#else

namespace tilewright::cpu {

void (*compile_scan(const ScanShape&))(void* arguments) {
    return nullptr;
}

ScanDown compile_scan_down(const ScanShape&) {
    return {};
}

}  // namespace tilewright::cpu

#endif
