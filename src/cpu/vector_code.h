// Straight-line code on vectors that have no registers yet, for AVX-512 and AVX2.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cpu/simd/x86_opcodes.h"
#include "cpu/small_tile_code.h"

namespace tilewright::cpu {

/// Steps on vectors of 16 words (AVX-512) or 8 (AVX2) and on masks, in the order of the program.
/// What memory holds is known from the steps before: loads of what was stored are the values
/// themselves, and stores that later ones cover are left out. Registers are found when all steps
/// are there.
class VectorCode {
  public:
    /// A vector, or a mask: the step that makes it.
    using Value = int;
    using Words = ConstantPool::Words;
    /// Where code finds memory: rdi is the arena, rsi the slots, rdx the constants.
    struct Address {
        x86::Gpr base = x86::rdi;
        std::int32_t offset = 0;
    };
    /// Memory that instructions on general registers read.
    struct Range {
        Address at;
        std::int64_t bytes = 0;
    };
    /// Instructions on general registers, before the one on vectors that needs them.
    struct Setup {
        std::vector<std::uint8_t> code;
        std::vector<Range> reads;
    };

    VectorCode(ConstantPool& pool, int lanes) : pool_(pool), lanes_(lanes) {}

    /// Of a vector.
    int lanes() const { return lanes_; }
    std::size_t size() const { return steps_.size(); }
    /// Whether steps that follow are few and others wait for them: those without memory come as
    /// soon as their operands are known, before the many steps that were there first.
    void set_early(bool early) { early_ = early; }

    // ---- Vectors.

    Value constant(Words words);
    Value splat(std::int32_t word);
    /// The first `lanes` words there; others are of no interest.
    Value load(Address from, int lanes);
    Value broadcast(Address from);
    Value unary(x86::Opcode opcode, Value a, int immediate = kNone);
    Value binary(x86::Opcode opcode, Value a, Value b, int immediate = kNone);
    Value fma(Value a, Value b, Value c);
    Value blend(Value mask, Value yes, Value no);
    /// a with zeros after the first `lanes` lanes.
    Value first_lanes(Value a, int lanes);
    Value add_zero(Value a);  ///< -0 becomes 0
    /// Lane `lane` of a in all lanes.
    Value lane(Value a, int lane);
    /// Words in memory, `stride` words apart, as a vector; nullopt unless all are known and in the
    /// same lane of their vectors.
    std::optional<Value> gathered(Address first, std::int64_t stride, int lanes);
    /// rcx of the setup in all lanes.
    Value form(Setup setup);
    /// What base + offset + 4 * rax of the setup points at, or zero if rcx is 0 and not -1.
    Value indexed_load(Setup setup, Address from, bool scalar);
    /// The same with r8 in place of rax, at the places `places` from there, in words.
    Value indexed_gather(Setup setup, Address from, const Words& places, int lanes);

    /// Where lanes of a view of an array, or of the copy that stands for it, are: in one row, side
    /// by side.
    struct InView {
        std::uint32_t view = 0;
        int row_axis = -1;  ///< of the view; -1: every row is the same
        std::int64_t row = 0, lane = 0;
    };
    /// Other lanes are zero, and not read.
    Value load(const InView& from, int lanes);

    // ---- Masks.

    Value mask(int lanes);
    Value mask_of_bits(int bits);
    Value compare(x86::Opcode opcode, Value a, Value b, int predicate);
    Value signs(Value a);
    enum class Logic : std::uint8_t { both, either, one };
    Value logic(Logic logic, Value a, Value b);
    Value load_mask(Address from, int lanes);
    Value broadcast_mask(Address from);

    // ---- Memory.

    void store(Address to, Value value, int lanes);
    void store(const InView& to, Value value, int lanes);
    void store_element(Address to, Value value);
    /// 64 bits, of which the value gives the lower half.
    void store_slot(std::int32_t offset, Value value);
    void store_slot_bits(std::int32_t offset, std::uint64_t bits);
    void store_mask(Address to, Value mask, int lanes);
    /// Instructions on general registers that write 8 bytes.
    void general(Setup setup, Address to);

    /// nullopt if there is too much of it.
    std::optional<std::vector<std::uint8_t>> encode();

  private:
    static constexpr int kNone = -1;
    enum class Kind : std::uint8_t {
        constant,
        load,
        broadcast,
        unary,
        binary,
        masked,  ///< unary or binary where the mask in[3] is set, in[2] (or zero) elsewhere
        fma,
        blend,
        lane,
        form,
        load_view,
        indexed_load,
        indexed_gather,
        mask,
        compare,
        signs,
        logic,
        load_mask,
        broadcast_mask,
        store,
        store_element,
        store_slot,
        store_bits,
        store_mask,
        store_view,
        general
    };
    struct Step {
        Kind kind = Kind::constant;
        x86::Opcode opcode{};
        std::array<Value, 4> in{kNone, kNone, kNone, kNone};
        int immediate = kNone;
        Address at;
        int bytes = 0;  ///< that it reads or writes there
        int lanes = 0;  ///< that a gather reads
        std::uint64_t bits = 0;
        int setup = kNone;
        bool uniform = false;  ///< all lanes are equal
        bool early = false;    ///< comes as soon as its operands are known
        bool zeros_are_positive = false;

        bool is_mask() const { return kind >= Kind::mask && kind <= Kind::broadcast_mask; }
        bool writes() const { return kind >= Kind::store; }
        /// Is known where it is read: has no register before.
        bool is_constant() const { return kind == Kind::constant || kind == Kind::mask; }
        /// Reads memory at `at`, whatever its setup reads.
        bool reads() const {
            return kind == Kind::load || kind == Kind::broadcast || kind == Kind::load_mask ||
                   kind == Kind::broadcast_mask;
        }
    };
    /// What memory from some place on holds.
    enum class Form : std::uint8_t { vector, word, mask, flag };
    struct Content {
        Form form;
        Value value;
        int lanes, bytes;
    };
    using Key = std::tuple<Kind, int, std::array<Value, 4>, int, int>;
    using Place = std::pair<int, std::int32_t>;

    using Column = std::vector<Value>;

    const Step& step_of(Value value) const { return steps_[static_cast<std::size_t>(value)]; }
    bool has_masks() const { return lanes_ == 16; }  ///< mask registers
    int all() const { return (1 << lanes_) - 1; }
    Value add(Step step);
    Value add_known(Step step);             ///< or the same step before
    const Words* words(Value value) const;  ///< nullptr unless they are known
    std::optional<int> mask_bits(Value value) const;
    bool is_uniform(Value value) const { return step_of(value).uniform; }
    Value remembered(Address at, Form form, int lanes) const;
    /// The vector that covers a word in memory, and its lane.
    std::optional<std::pair<Value, int>> lane_at(Address at) const;
    void remember(Address at, Content content);
    void forget(Address at, std::int64_t bytes);
    int add_setup(Setup setup);
    Step view_step(Kind kind, const InView& place, int lanes);
    static bool is_elementwise(const Step& step);
    Value column(Column from, int at, int depth);
    Value shuffled(Column from, int at);

    /// Where a lane of a vector comes from, through blends whose masks are known.
    std::pair<Value, int> origin(Value value, int lane) const;
    std::optional<Address> stored_place(Value value) const;

    void join_blends();
    void choose_lanes();
    void drop_unread();
    void find_order();

    ConstantPool& pool_;
    int lanes_;
    std::vector<Step> steps_;
    std::vector<Setup> setups_;
    std::vector<Words> constants_;
    std::map<Words, Value> known_constants_;
    std::map<Key, Value> known_;
    std::map<std::string, Value> known_forms_;  ///< by their setup
    std::map<Place, std::vector<Content>> contents_;
    std::set<Value> stored_;           ///< at any time
    std::map<Value, Address> places_;  ///< where vectors were stored last
    bool early_ = false, has_views_ = false;
    std::vector<bool> used_;
    std::vector<Value> order_;  ///< of the steps that are used

    friend class VectorEncoder;
};

}  // namespace tilewright::cpu
