// Machine code for fused runs of arithmetic on f32 and i32.
#include "cpu/simd/run_code.h"

#include <algorithm>
#include <map>

#include "cpu/simd/x86_opcodes.h"

namespace tilewright::cpu {
namespace {

using namespace x86;  // opcodes
using ir::Op;
using Kind = FusedPlace::Kind;

constexpr int kAtOnce = kVectorsAtOnce;

constexpr Opcode kBlend{3, 1, 0x4A}, kAlign{3, 1, 0x03};
constexpr int kUnordered = 3, kOrdered = 7;

bool is_extreme(const FusedKey& key) {
    return key.in == DType::f32 && (key.op == Op::min || key.op == Op::max);
}

std::optional<Opcode> binary_opcode(const FusedKey& key) {
    return key.out == key.in ? arithmetic_opcode(key.op, key.in) : std::nullopt;
}

/// Where a step finds an operand while it works on its vectors.
struct Source {
    bool in_memory = false;
    Gpr base = Gpr::rax;      ///< in_memory
    int first = 0, step = 0;  ///< registers otherwise: the first, and from one vector to the next
    /// Lanes from lane `shift` of each vector on, the rest from the next one; the register after
    /// the last vector is `after`, and `scratch` takes them.
    int shift = 0, after = 0, scratch = 0;
    int of(int i) const { return first + i * step; }
};

/// Rows that operands read a few lanes apart: vectors are loaded once, and one more of which only
/// the lanes that are read.
struct Window {
    int most = 0;  ///< the largest shift
    std::size_t last_step = 0;
    int mask = 0;           ///< register
    int group = -1;         ///< of registers, while it is loaded
    std::size_t after = 0;  ///< number of the single register
};

/// Writes the code of one run.
class RunCompiler {
  public:
    struct Registers {
        int groups = 0, singles = 0;
    };

    /// `registers` for the block's value, what it keeps and windows, as `used` of a compiler tells
    /// that was given none. `streams`: stores go past the caches. `windows`: shared lanes are
    /// loaded once.
    RunCompiler(std::span<const FusedShape> shapes, bool wide, bool streams, bool windows,
                std::optional<Registers> registers)
        : shapes_(shapes), wide_(wide), streams_(streams), encoder_(wide) {
        scratch_ = (wide ? 32 : 16) - kScratch;
        first_single_ = registers ? kAtOnce * registers->groups : 0;
        next_splat_ = registers ? first_single_ + registers->singles : scratch_;
        for (std::size_t step = 0; step < shapes.size(); ++step) {
            first_operand_.push_back(places_.size());
            for (FusedPlace place : shapes[step].place) {
                if (place.kind == Kind::none) continue;
                if (!windows) place.base = -1;
                if (place.base >= 0) {
                    Window& window = windows_[place.base];
                    window.most = std::max(window.most, place.shift);
                    window.last_step = step;
                }
                places_.push_back(place);
            }
        }
    }

    /// Groups are the first registers, single ones follow.
    Registers used() const {
        return {static_cast<int>(references_.size()), static_cast<int>(singles_.size())};
    }
    bool has_windows() const { return !windows_.empty(); }
    bool fits() const { return kAtOnce * used().groups + used().singles <= scratch_; }
    const std::vector<std::uint8_t>& code() const { return encoder_.code(); }

    /// False where a step is not known.
    bool compile() {
        using enum Gpr;
        constexpr Gpr kSaved[] = {rbx, rbp, r12, r13, r14, r15};
        for (const Gpr reg : kSaved) encoder_.push(reg);
        std::vector<Gpr> free = {r15, r14, r13, r12, rbp, rbx, r9, r8};
        pointers_.resize(places_.size());
        splats_.assign(places_.size(), -1);
        for (std::size_t k = 0; k < places_.size(); ++k) {
            if (is_shifted(k)) continue;
            if (places_[k].kind == Kind::lanes && !free.empty()) {
                pointers_[k] = free.back();
                free.pop_back();
                encoder_.load(*pointers_[k], rdi, slot(k));
            } else if (places_[k].kind == Kind::splat && next_splat_ < scratch_) {
                splats_[k] = next_splat_++;
            }
        }
        constexpr int kFirstMask = 2, kLastMask = 7;
        int mask = kFirstMask;
        for (auto& [base, window] : windows_) {
            if (mask > kLastMask) return false;
            window.mask = mask++;
            encoder_.fixed({0xB8});  // mov eax, lanes of the vector after the last
            encoder_.word((1 << window.most) - 1);
            encoder_.fixed({0xC5, 0xF8, 0x92, 0xC0 | window.mask << 3});  // kmovw mask, eax
        }
        const std::size_t row = encoder_.here();
        for (std::size_t k = 0; k < places_.size(); ++k) {
            if (splats_[k] < 0) continue;
            encoder_.load(r11, rdi, slot(k));
            encoder_.vector_at(kBroadcast, splats_[k], 0, r11);
        }
        const std::size_t same_splats = encoder_.here();
        encoder_.fixed({0x31, 0xC0});  // xor eax, eax
        // Groups of 4 vectors, then of 2 and 1, which rax leads by those that they lack: rcx is the
        // last place for all.
        std::size_t lanes = 0;
        for (int vectors = kAtOnce; vectors > 0; vectors /= 2) {
            if (vectors < kAtOnce)
                move_on(-vectors);
            else
                compare_lane();
            const std::size_t none = encoder_.jump_ahead(kGreater);
            lanes = encoder_.here();
            if (!compile_steps(vectors)) return false;
            move_on(vectors);
            encoder_.jump_back(kLessOrEqual, lanes);
            encoder_.land(none);
        }
        move_on(-1);
        encoder_.fixed({0x48, 0x0F, 0x4C, 0xC1});  // cmovl rax, rcx
        encoder_.jump_back(kLess, lanes);
        for (std::size_t k = 0; k < places_.size(); ++k) {
            if (pointers_[k]) {
                encoder_.add(*pointers_[k], rsi, slot(k));
            } else if (places_[k].kind != Kind::temporary && !is_shifted(k)) {
                encoder_.load(r11, rsi, slot(k));
                encoder_.add_to(rdi, slot(k), r11);
            }
        }
        encoder_.fixed({0x48, 0xFF, 0xCA});  // dec rdx
        const std::size_t end = encoder_.jump_ahead(kEqual);
        encoder_.load(r11, rsi, slot(places_.size()));
        encoder_.fixed({0x4D, 0x85, 0xDB});  // test r11, r11
        encoder_.jump_back(kEqual, same_splats);
        encoder_.jump_back(kNotEqual, row);
        encoder_.land(end);
        encoder_.fixed({0xC5, 0xF8, 0x77});  // vzeroupper
        for (std::size_t i = std::size(kSaved); i-- > 0;) encoder_.pop(kSaved[i]);
        encoder_.fixed({0xC3});
        return true;
    }

  private:
    /// The last registers: operands that have to be in a register, masks.
    static constexpr int kScratch = 3;

    // Conditions of jumps.
    static constexpr int kEqual = 0x84, kNotEqual = 0x85, kLess = 0x8C, kLessOrEqual = 0x8E,
                         kGreater = 0x8F;

    int vector_bytes() const { return wide_ ? 64 : 32; }
    static std::int32_t slot(std::size_t operand) { return static_cast<std::int32_t>(8 * operand); }
    /// Fewer vectors are the last ones of a group.
    std::int32_t offset(int i) const { return (kAtOnce - at_once_ + i) * vector_bytes(); }

    /// All steps, on so many vectors.
    bool compile_steps(int vectors) {
        at_once_ = vectors;
        value_ = -1;
        std::ranges::fill(references_, 0);
        singles_.assign(singles_.size(), false);
        for (auto& [base, window] : windows_) window.group = -1;
        for (step_ = 0; step_ < shapes_.size(); ++step_) {
            if (!compile_step()) return false;
        }
        return true;
    }
    /// Moves on by so many vectors and compares the lane with the last place.
    void move_on(int vectors) {
        encoder_.fixed({0x48, 0x05});  // add rax, lanes
        encoder_.word(vectors * vector_bytes() / 4);
        compare_lane();
    }
    void compare_lane() {
        encoder_.fixed({0x48, 0x39, 0xC8});  // cmp rax, rcx
    }

    // ---- Groups of registers. The value and temporaries may share one.

    int take() {
        const auto free = std::find(references_.begin(), references_.end(), 0);
        const auto group = static_cast<int>(free - references_.begin());
        if (free == references_.end()) references_.push_back(0);
        references_[group] = 1;
        return group;
    }
    void drop(int group) {
        if (group >= 0) --references_[group];
    }
    /// Where a step that reads the value may write: the value's registers where nobody else needs
    /// them.
    int result_group() { return references_[value_] == 1 ? value_ : take(); }
    void set_value(int group) {
        if (group == value_) return;
        drop(value_);
        value_ = group;
    }
    int reg(int group, int i) const { return group * kAtOnce + i; }

    // ---- Windows.

    /// True for operands that are found in another one's vectors.
    bool is_shifted(std::size_t operand) const {
        const int base = places_[operand].base;
        return base >= 0 && base != static_cast<int>(operand);
    }
    Source in_window(const FusedPlace& place, Gpr pointer, std::size_t k) {
        Window& window = windows_.at(place.base);
        if (window.group < 0) {
            window.group = take();
            const auto base = static_cast<std::size_t>(place.base);
            const Gpr at = pointers_[base].value_or(pointer);
            if (!pointers_[base]) encoder_.load(at, Gpr::rdi, slot(base));
            for (int i = 0; i < at_once_; ++i)
                encoder_.vector_lanes(kLoad, reg(window.group, i), 0, at, offset(i));
            window.after = static_cast<std::size_t>(
                std::find(singles_.begin(), singles_.end(), false) - singles_.begin());
            if (window.after == singles_.size()) singles_.push_back(false);
            singles_[window.after] = true;
            constexpr int kZeros = 0x80;  // in lanes that are not read
            encoder_.vector_lanes(kLoad, single(window.after), 0, at, offset(at_once_),
                                  window.mask | kZeros);
        }
        return {.first = reg(window.group, 0),
                .step = 1,
                .shift = place.shift,
                .after = single(window.after),
                .scratch = scratch_ + static_cast<int>(k)};
    }
    int single(std::size_t i) const { return first_single_ + static_cast<int>(i); }
    void align(int to, const Source& source, int i) {
        const int next = i + 1 < at_once_ ? source.of(i + 1) : source.after;
        encoder_.vector(kAlign, to, next, source.of(i));
        encoder_.immediate(source.shift);
    }
    void end_windows() {
        for (auto& [base, window] : windows_) {
            if (window.last_step != step_ || window.group < 0) continue;
            drop(window.group);
            singles_[window.after] = false;
        }
    }

    // ---- Operands.

    /// Operand k of the step; which of the two decides what registers it may need.
    Source source(std::size_t k) {
        using enum Gpr;
        const std::size_t operand = first_operand_[step_] + k;
        const FusedPlace& place = places_[operand];
        const Gpr pointer = k == 0 ? r10 : r11;
        switch (place.kind) {
            case Kind::temporary:
                return {false, rax, reg(temporaries_[place.temporary], 0), 1};
            case Kind::splat:
                if (splats_[operand] >= 0) return {false, rax, splats_[operand], 0};
                encoder_.load(pointer, rdi, slot(operand));
                encoder_.vector_at(kBroadcast, scratch_ + static_cast<int>(k), 0, pointer);
                return {false, rax, scratch_ + static_cast<int>(k), 0};
            default:
                if (place.base >= 0) return in_window(place, pointer, k);
                if (pointers_[operand]) return {true, *pointers_[operand]};
                encoder_.load(pointer, rdi, slot(operand));
                return {true, pointer};
        }
    }
    /// The vector in a register: its own, or this one.
    int in_register(const Source& source, int i, int scratch) {
        if (source.shift > 0) {
            align(source.scratch, source, i);
            return source.scratch;
        }
        if (!source.in_memory) return source.of(i);
        encoder_.vector_lanes(kLoad, scratch, 0, source.base, offset(i));
        return scratch;
    }
    /// reg = op(second, source).
    void apply(Opcode op, int reg, int second, const Source& source, int i) {
        if (source.in_memory) {
            encoder_.vector_lanes(op, reg, second, source.base, offset(i));
        } else {
            encoder_.vector(op, reg, second, in_register(source, i, scratch_));
        }
    }
    /// True when no later step reads a temporary.
    bool ends_here(int temporary) const {
        return std::none_of(shapes_.begin() + static_cast<std::ptrdiff_t>(step_) + 1, shapes_.end(),
                            [&](const FusedShape& shape) {
                                return std::any_of(shape.place.begin(), shape.place.end(),
                                                   [&](const FusedPlace& place) {
                                                       return place.kind == Kind::temporary &&
                                                              place.temporary == temporary;
                                                   });
                            });
    }

    // ---- Steps.

    bool compile_step();
    void load_step(const FusedShape& shape);
    void store_step(const FusedShape& shape);
    void binary_step(const FusedShape& shape, Opcode op);
    void extreme(Opcode op, int to, int a, const Source& b, int i);
    void fma_step(const FusedShape& shape);

    std::span<const FusedShape> shapes_;
    bool wide_, streams_;
    Encoder encoder_;
    int scratch_ = 0, first_single_ = 0, next_splat_ = 0;
    std::vector<std::size_t> first_operand_;  ///< of each step
    std::vector<FusedPlace> places_;          ///< of all operands
    std::vector<std::optional<Gpr>> pointers_;
    std::vector<int> splats_;        ///< registers of operands, -1: none
    std::vector<int> references_;    ///< of each group
    std::vector<bool> singles_;      ///< registers of windows: taken
    std::map<int, Window> windows_;  ///< by their first operands
    std::vector<int> temporaries_;   ///< their groups
    int value_ = -1;
    int at_once_ = kAtOnce;  ///< vectors that steps work on
    std::size_t step_ = 0;
};

bool RunCompiler::compile_step() {
    const FusedShape& shape = shapes_[step_];
    const FusedKey& key = shape.key;
    if (key.op == Op::load) {
        if (key.in != DType::f32 && key.in != DType::i32) return false;
        load_step(shape);
    } else if (value_ < 0) {
        return false;
    } else if (key.op == Op::store) {
        if (key.in != DType::f32 && key.in != DType::i32) return false;
        store_step(shape);
        return true;
    } else if (key.op == Op::fma && key.in == DType::f32) {
        fma_step(shape);
    } else if (key.op == Op::sqrt && key.in == DType::f32) {
        const int to = result_group();
        for (int i = 0; i < at_once_; ++i) encoder_.vector(kSqrt, reg(to, i), 0, reg(value_, i));
        set_value(to);
    } else if (const auto opcode = binary_opcode(key)) {
        binary_step(shape, *opcode);
    } else {
        return false;
    }
    for (const FusedPlace& place : shape.place) {
        if (place.kind == Kind::temporary && ends_here(place.temporary))
            drop(temporaries_[place.temporary]);
    }
    end_windows();
    return true;
}

void RunCompiler::load_step(const FusedShape& shape) {
    if (shape.place[0].kind == Kind::temporary) {
        const int group = temporaries_[shape.place[0].temporary];
        ++references_[group];
        drop(value_);
        value_ = group;
        return;
    }
    drop(value_);
    value_ = take();
    const Source from = source(0);
    for (int i = 0; i < at_once_; ++i) {
        if (from.shift > 0) {
            align(reg(value_, i), from, i);
        } else {
            apply(from.in_memory ? kLoad : kMove, reg(value_, i), 0, from, i);
        }
    }
}

void RunCompiler::store_step(const FusedShape& shape) {
    const FusedPlace& place = shape.place[0];
    if (place.kind == Kind::temporary) {
        temporaries_.resize(std::max(temporaries_.size(), std::size_t(place.temporary) + 1), -1);
        temporaries_[place.temporary] = value_;
        if (!ends_here(place.temporary)) ++references_[value_];
        return;
    }
    const Source to = source(0);
    for (int i = 0; i < at_once_; ++i) apply(streams_ ? kStream : kStore, reg(value_, i), 0, to, i);
}

void RunCompiler::binary_step(const FusedShape& shape, Opcode op) {
    const FusedKey& key = shape.key;
    const Source value{false, Gpr::rax, reg(value_, 0), 1};
    const Source other = key.value == FusedKey::kBoth ? value : source(0);
    const bool commutes = key.op == Op::add || key.op == Op::mul;
    const bool value_first = key.value != 1 || commutes;
    const int group = result_group();
    for (int i = 0; i < at_once_; ++i) {
        const int to = reg(group, i);
        const int first = value_first ? value.of(i) : in_register(other, i, scratch_);
        const Source& second = value_first ? other : value;
        if (is_extreme(key)) {
            extreme(op, to, first, second, i);
        } else {
            apply(op, to, first, second, i);
        }
    }
    set_value(group);
}

/// x86's minima and maxima are the second operand where one is NaN: where the first is NaN, that is
/// put in its place.
void RunCompiler::extreme(Opcode op, int to, int a, const Source& b, int i) {
    const int second = scratch_ + 1, third = scratch_ + 2;
    if (!wide_) {
        encoder_.vector(kCompareFloats, second, a, a);
        encoder_.immediate(kUnordered);
        apply(op, third, a, b, i);
        encoder_.vector(kBlend, to, third, a);
        encoder_.immediate(second << 4);
        return;
    }
    constexpr int kMask = 1;
    encoder_.vector(kCompareFloats, kMask, a, a);
    encoder_.immediate(kOrdered);
    const int other = in_register(b, i, scratch_);
    const int work = to == other ? third : to;
    if (work != a) encoder_.vector(kMove, work, 0, a);
    encoder_.vector(op, work, work, other, kMask);
    if (work != to) encoder_.vector(kMove, to, 0, work);
}

void RunCompiler::fma_step(const FusedShape& shape) {
    Source x = source(0), y = source(1);
    const bool adds_value = shape.key.value == 2;
    // Of two factors either may be in memory.
    if (adds_value && x.in_memory && !y.in_memory) std::swap(x, y);
    const int group = result_group();
    for (int i = 0; i < at_once_; ++i) {
        const int to = reg(group, i);
        if (group != value_) encoder_.vector(kMove, to, 0, reg(value_, i));
        if (!adds_value && x.in_memory && !y.in_memory) {
            apply(kFma132, to, in_register(y, i, scratch_), x, i);
        } else {
            apply(adds_value ? kFma231 : kFma213, to, in_register(x, i, scratch_), y, i);
        }
    }
    set_value(group);
}

}  // namespace

std::optional<std::vector<std::uint8_t>> rows_code(std::span<const FusedShape> shapes, bool wide,
                                                   bool streams) {
    for (const bool windows : {true, false}) {
        if (windows && !wide) continue;
        RunCompiler counting(shapes, wide, streams, windows, std::nullopt);
        if (!counting.compile() || !counting.fits()) {
            if (windows && counting.has_windows()) continue;
            return std::nullopt;
        }
        RunCompiler compiler(shapes, wide, streams, windows, counting.used());
        compiler.compile();
        return compiler.code();
    }
    return std::nullopt;
}

}  // namespace tilewright::cpu
