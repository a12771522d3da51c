// Steps on vectors, and what memory holds between them.
#include "cpu/vector_code.h"

#include <algorithm>
#include <cstddef>

#include "cpu/execute.h"

namespace tilewright::cpu {
namespace {

using namespace x86;  // opcodes and registers

constexpr int kWord = 4, kVector = 64, kSlot = 8;
constexpr int kMostDepth = 4;

bool compares(std::int32_t a, std::int32_t b, int predicate) {
    switch (predicate) {
        case 0:
            return a == b;
        case 1:
            return a < b;
        case 2:
            return a <= b;
        case 4:
            return a != b;
        case 5:
            return a >= b;
        default:
            return a > b;
    }
}

}  // namespace

VectorCode::Value VectorCode::add(Step step) {
    step.early |= early_ && !step.writes() && !step.reads() && step.setup == kNone;
    steps_.push_back(step);
    return static_cast<Value>(steps_.size()) - 1;
}

VectorCode::Value VectorCode::add_known(Step step) {
    const int opcode = step.opcode.map << 16 | step.opcode.prefix << 8 | step.opcode.byte;
    const Key key{step.kind, opcode, step.in, step.immediate, static_cast<int>(step.bits)};
    const auto [found, inserted] = known_.try_emplace(key, 0);
    if (inserted) found->second = add(step);
    return found->second;
}

const VectorCode::Words* VectorCode::words(Value value) const {
    const Step& step = step_of(value);
    return step.kind == Kind::constant ? &constants_[static_cast<std::size_t>(step.bits)] : nullptr;
}

std::optional<int> VectorCode::mask_bits(Value value) const {
    const Step& step = step_of(value);
    return step.kind == Kind::mask ? std::optional(static_cast<int>(step.bits)) : std::nullopt;
}

int VectorCode::add_setup(Setup setup) {
    setups_.push_back(std::move(setup));
    return static_cast<int>(setups_.size()) - 1;
}

// ---- Memory.

void VectorCode::remember(Address at, Content content) {
    contents_[{at.base, at.offset}].push_back(content);
}

VectorCode::Value VectorCode::remembered(Address at, Form form, int lanes) const {
    const auto found = contents_.find({at.base, at.offset});
    if (found == contents_.end()) return kNone;
    for (const Content& content : found->second) {
        if (content.form == form && content.lanes >= lanes) return content.value;
    }
    return kNone;
}

std::optional<std::pair<VectorCode::Value, int>> VectorCode::lane_at(Address at) const {
    for (int lane = 0; lane < lanes_; ++lane) {
        const Value value = remembered({at.base, at.offset - kWord * lane}, Form::vector, lane + 1);
        if (value != kNone) return std::pair{value, lane};
    }
    return {};
}

void VectorCode::forget(Address at, std::int64_t bytes) {
    auto place = contents_.lower_bound({at.base, at.offset - kVector + 1});
    while (place != contents_.end() && place->first.first == at.base &&
           place->first.second < at.offset + bytes) {
        const std::int32_t start = place->first.second;
        std::erase_if(place->second,
                      [&](const Content& content) { return start + content.bytes > at.offset; });
        place = place->second.empty() ? contents_.erase(place) : std::next(place);
    }
    if (at.base == rsi) known_forms_.clear();
}

// ---- Vectors.

VectorCode::Value VectorCode::constant(Words words) {
    std::fill(words.begin() + lanes_, words.end(), 0);
    const auto [found, inserted] = known_constants_.try_emplace(words, 0);
    if (inserted) {
        Step step;
        step.kind = Kind::constant;
        step.bits = constants_.size();
        step.uniform = std::all_of(words.begin(), words.begin() + lanes_,
                                   [&](std::int32_t word) { return word == words[0]; });
        constants_.push_back(words);
        found->second = add(step);
    }
    return found->second;
}

VectorCode::Value VectorCode::splat(std::int32_t word) {
    Words words;
    words.fill(word);
    return constant(words);
}

VectorCode::Value VectorCode::load(Address from, int lanes) {
    if (const Value value = remembered(from, Form::vector, lanes); value != kNone) return value;
    Step step;
    step.kind = Kind::load;
    step.at = from;
    step.bytes = kWord * lanes;
    const Value value = add(step);
    remember(from, {Form::vector, value, lanes, kWord * lanes});
    return value;
}

std::pair<VectorCode::Value, int> VectorCode::origin(Value value, int lane) const {
    for (const Step* step = &step_of(value); step->kind == Kind::blend; step = &step_of(value)) {
        const auto bits = mask_bits(step->in[0]);
        if (!bits) break;
        value = step->in[(*bits >> lane & 1) != 0 ? 1 : 2];
    }
    return {value, lane};
}

std::optional<VectorCode::Address> VectorCode::stored_place(Value value) const {
    const auto found = places_.find(value);
    if (found == places_.end()) return {};
    return remembered(found->second, Form::vector, lanes_) == value ? std::optional(found->second)
                                                                    : std::nullopt;
}

VectorCode::Value VectorCode::broadcast(Address from) {
    if (const Value value = remembered(from, Form::word, 1); value != kNone) return lane(value, 0);
    Step step;
    step.kind = Kind::broadcast;
    step.at = from;
    step.bytes = kWord;
    step.uniform = true;
    if (const auto covered = lane_at(from)) {
        const auto [value, at] = origin(covered->first, covered->second);
        if (const Words* known = words(value)) return splat((*known)[static_cast<std::size_t>(at)]);
        if (is_uniform(value)) return value;
        if (value != covered->first) {
            if (const auto place = stored_place(value))
                step.at = {place->base, place->offset + kWord * at};
        }
        step.in[0] = value;
        step.immediate = at;
        return add_known(step);
    }
    const Value value = add(step);
    remember(from, {Form::word, value, 1, kWord});
    return value;
}

VectorCode::Value VectorCode::unary(Opcode opcode, Value a, int immediate) {
    Step step;
    step.kind = Kind::unary;
    step.opcode = opcode;
    step.in[0] = a;
    step.immediate = immediate;
    step.uniform = is_uniform(a);
    return add_known(step);
}

VectorCode::Value VectorCode::binary(Opcode opcode, Value a, Value b, int immediate) {
    if (is(opcode, kAddWords) && words(a) != nullptr && words(b) != nullptr) {
        Words sum;
        for (std::size_t l = 0; l < sum.size(); ++l)
            sum[l] = static_cast<std::int32_t>(static_cast<std::uint32_t>((*words(a))[l]) +
                                               static_cast<std::uint32_t>((*words(b))[l]));
        return constant(sum);
    }
    Step step;
    step.kind = Kind::binary;
    step.opcode = opcode;
    step.in = {a, b, kNone, kNone};
    step.immediate = immediate;
    // Shuffles of two vectors have words of both.
    const bool both = is_uniform(a) && (a == b || is_elementwise(step));
    step.uniform = is_uniform(b) && (both || is(opcode, kPermute));
    return add_known(step);
}

VectorCode::Value VectorCode::fma(Value a, Value b, Value c) {
    Step step;
    step.kind = Kind::fma;
    step.in = {a, b, c, kNone};
    step.uniform = is_uniform(a) && is_uniform(b) && is_uniform(c);
    return add_known(step);
}

VectorCode::Value VectorCode::blend(Value mask, Value yes, Value no) {
    if (const auto bits = mask_bits(mask)) {
        if (*bits == all()) return yes;
        if (*bits == 0) return no;
    }
    if (yes == no) return yes;
    Step step;
    step.kind = Kind::blend;
    step.in = {mask, yes, no, kNone};
    return add_known(step);
}

VectorCode::Value VectorCode::first_lanes(Value a, int lanes) {
    return blend(mask(lanes), a, splat(0));
}

VectorCode::Value VectorCode::add_zero(Value a) {
    if (step_of(a).zeros_are_positive) return a;
    const Value sum = binary(kAdd, a, splat(0));
    steps_[static_cast<std::size_t>(sum)].zeros_are_positive = true;
    return sum;
}

VectorCode::Value VectorCode::lane(Value a, int lane) {
    std::tie(a, lane) = origin(a, lane);
    if (const Words* known = words(a)) return splat((*known)[static_cast<std::size_t>(lane)]);
    if (is_uniform(a)) return a;
    Step step;
    step.zeros_are_positive = step_of(a).zeros_are_positive;
    step.kind = Kind::lane;
    step.in[0] = a;
    step.immediate = lane;
    step.uniform = true;
    return add_known(step);
}

std::optional<VectorCode::Value> VectorCode::gathered(Address first, std::int64_t stride,
                                                      int lanes) {
    Column from;
    int at = kNone;
    for (int l = 0; l < lanes; ++l) {
        const auto offset = static_cast<std::int32_t>(first.offset + kWord * stride * l);
        const auto covered = lane_at({first.base, offset});
        if (!covered || (l > 0 && covered->second != at)) return {};
        from.push_back(covered->first);
        at = covered->second;
    }
    return column(std::move(from), at, kMostDepth);
}

bool VectorCode::is_elementwise(const Step& step) {
    const bool plain = step.kind == Kind::unary || step.kind == Kind::binary;
    return step.kind == Kind::fma ||
           (plain && step.immediate == kNone && !is(step.opcode, kPermute));
}

/// Lane `at` of all vectors as one. What was computed lane by lane is computed from the operands'
/// lanes again: these are known before the vectors are, mostly a broadcast word each.
VectorCode::Value VectorCode::column(Column from, int at, int depth) {
    const Column whole = from;
    for (Value& value : from) value = origin(value, at).first;
    const Step first = step_of(from[0]);
    bool same = true, known = true, alike = depth > 0 && is_elementwise(first);
    int spread = 0;  // the lanes that come from the same lane of `source`
    Value source = kNone;
    Words result{};
    for (std::size_t l = 0; l < from.size(); ++l) {
        const Step& step = step_of(from[l]);
        same &= from[l] == from[0];
        alike &= step.kind == first.kind && is(step.opcode, first.opcode) &&
                 step.immediate == first.immediate;
        if (const Words* const constants = words(from[l])) {
            result[l] = (*constants)[static_cast<std::size_t>(at)];
            continue;
        }
        const bool spreads = step.kind == Kind::broadcast || step.kind == Kind::lane;
        if (source == kNone && spreads) source = step.in[0];
        known &= spreads && source != kNone && step.in[0] == source &&
                 step.immediate == static_cast<int>(l);
        spread |= 1 << l;
    }
    if (same) return lane(from[0], at);
    if (known && spread == 0) return constant(result);
    if (known) {
        const bool all = spread == (1 << from.size()) - 1;
        return all ? source : blend(mask_of_bits(spread), source, constant(result));
    }
    if (!alike) return shuffled(whole, at);
    Step step = first;
    step.uniform = false;
    step.zeros_are_positive = std::all_of(
        from.begin(), from.end(), [&](Value value) { return step_of(value).zeros_are_positive; });
    for (std::size_t k = 0; k < step.in.size() && first.in[k] != kNone; ++k) {
        Column operands;
        bool stored = false;
        for (const Value value : from) {
            operands.push_back(step_of(value).in[k]);
            stored |= stored_.contains(operands.back());
        }
        // Stored vectors are those of an earlier time: their own operands are not wanted again.
        step.in[k] = column(std::move(operands), at, stored ? 0 : depth - 1);
    }
    return add_known(step);
}

/// Quarters of 128 bits (halves, with AVX2) get a word of each of four vectors; the quarter that
/// has the lane is then taken from each such vector. All of it comes as soon as the vectors are
/// known.
VectorCode::Value VectorCode::shuffled(Column from, int at) {
    from.resize(static_cast<std::size_t>(lanes_), from[0]);
    const std::size_t fours = from.size() / 4;  // vectors after the first two rounds
    const int word = at % 4, quarter = at / 4;
    const auto join = [&](Opcode opcode, std::size_t count, int immediate) {
        for (std::size_t i = 0; i < count; ++i) {
            Step step;
            step.kind = Kind::binary;
            step.opcode = opcode;
            step.in = {from[2 * i], from[2 * i + 1], kNone, kNone};
            step.immediate = immediate;
            step.early = true;
            from[i] = add_known(step);
        }
    };
    join(kPairs, 2 * fours, word * 0x55);
    join(kPairs, fours, 0x88);
    if (fours == 2) {
        join(kHalves, 1, quarter | (2 + quarter) << 4);
    } else {
        join(kQuarters, 2, quarter * 0x55);
        join(kQuarters, 1, 0x88);
    }
    return from[0];
}

VectorCode::Value VectorCode::form(Setup setup) {
    std::string key(setup.code.begin(), setup.code.end());
    const auto [found, inserted] = known_forms_.try_emplace(std::move(key), 0);
    if (inserted) {
        Step step;
        step.kind = Kind::form;
        step.uniform = true;
        step.setup = add_setup(std::move(setup));
        found->second = add(step);
    }
    return found->second;
}

/// r8 = where the row is; r11 has the views.
VectorCode::Step VectorCode::view_step(Kind kind, const InView& place, int lanes) {
    Encoder encoder(true);
    const auto view = static_cast<std::int32_t>(place.view * sizeof(View));
    encoder.load(r8, r11, view + static_cast<std::int32_t>(offsetof(View, data)));
    if (place.row_axis >= 0 && place.row > 0) {
        const auto stride = offsetof(View, stride) +
                            sizeof(std::int64_t) * static_cast<std::size_t>(place.row_axis);
        encoder.load(rax, r11, view + static_cast<std::int32_t>(stride));
        encoder.fixed({0x48, 0x69, 0xC0});  // imul rax, rax, ..
        encoder.word(static_cast<std::int32_t>(kWord * place.row));
        encoder.fixed({0x49, 0x01, 0xC0});  // add r8, rax
    }
    has_views_ = true;
    Step step;
    step.kind = kind;
    step.setup = add_setup({encoder.code(), {}});
    step.at = {r8, static_cast<std::int32_t>(kWord * place.lane)};
    if (lanes < lanes_) step.in[3] = mask(lanes);
    return step;
}

VectorCode::Value VectorCode::load(const InView& from, int lanes) {
    return add(view_step(Kind::load_view, from, lanes));
}

VectorCode::Value VectorCode::indexed_load(Setup setup, Address from, bool scalar) {
    Step step;
    step.kind = Kind::indexed_load;
    step.opcode = scalar ? kLoadScalar : kLoad;
    step.at = from;
    step.setup = add_setup(std::move(setup));
    return add(step);
}

VectorCode::Value VectorCode::indexed_gather(Setup setup, Address from, const Words& places,
                                             int lanes) {
    Step step;
    step.kind = Kind::indexed_gather;
    step.in[0] = constant(places);
    step.at = from;
    step.lanes = lanes;
    step.setup = add_setup(std::move(setup));
    return add(step);
}

// ---- Masks.

VectorCode::Value VectorCode::mask_of_bits(int bits) {
    Step step;
    step.kind = Kind::mask;
    step.bits = static_cast<std::uint64_t>(bits);
    return add_known(step);
}

VectorCode::Value VectorCode::mask(int lanes) {
    return mask_of_bits((1 << lanes) - 1);
}

VectorCode::Value VectorCode::compare(Opcode opcode, Value a, Value b, int predicate) {
    if (is(opcode, kCompareWords) && words(a) != nullptr && words(b) != nullptr) {
        int bits = 0;
        for (int l = 0; l < lanes_; ++l) {
            const auto at = static_cast<std::size_t>(l);
            bits |= compares((*words(a))[at], (*words(b))[at], predicate) << l;
        }
        return mask_of_bits(bits);
    }
    Step step;
    step.kind = Kind::compare;
    step.opcode = opcode;
    step.in = {a, b, kNone, kNone};
    step.immediate = predicate;
    return add_known(step);
}

VectorCode::Value VectorCode::signs(Value a) {
    if (words(a) != nullptr) return compare(kCompareWords, a, splat(0), 1);
    Step step;
    step.kind = Kind::signs;
    step.in[0] = a;
    return add_known(step);
}

VectorCode::Value VectorCode::logic(Logic logic, Value a, Value b) {
    const auto x = mask_bits(a), y = mask_bits(b);
    if (x && y)
        return mask_of_bits(logic == Logic::both     ? *x & *y
                            : logic == Logic::either ? *x | *y
                                                     : *x ^ *y);
    Step step;
    step.kind = Kind::logic;
    step.in = {a, b, kNone, kNone};
    step.immediate = static_cast<int>(logic);
    return add_known(step);
}

VectorCode::Value VectorCode::load_mask(Address from, int lanes) {
    if (const Value value = remembered(from, Form::mask, lanes); value != kNone) return value;
    Step step;
    step.kind = Kind::load_mask;
    step.at = from;
    step.bytes = lanes;
    const Value value = add(step);
    remember(from, {Form::mask, value, lanes, lanes});
    return value;
}

VectorCode::Value VectorCode::broadcast_mask(Address from) {
    if (const Value value = remembered(from, Form::flag, 1); value != kNone) return value;
    for (int lane = 0; lane < lanes_; ++lane) {
        const Value covers = remembered({from.base, from.offset - lane}, Form::mask, lane + 1);
        const auto bits = covers == kNone ? std::nullopt : mask_bits(covers);
        if (bits) return mask_of_bits((*bits >> lane & 1) != 0 ? all() : 0);
    }
    Step step;
    step.kind = Kind::broadcast_mask;
    step.at = from;
    step.bytes = 1;
    const Value value = add(step);
    remember(from, {Form::flag, value, 1, 1});
    return value;
}

// ---- Stores.

void VectorCode::store(Address to, Value value, int lanes) {
    Step step;
    step.kind = Kind::store;
    step.in[0] = value;
    if (lanes < lanes_) step.in[1] = mask(lanes);
    step.at = to;
    step.bytes = kWord * lanes;
    forget(to, step.bytes);
    remember(to, {Form::vector, value, lanes, step.bytes});
    stored_.insert(value);
    if (lanes == lanes_) places_[value] = to;
    add(step);
}

void VectorCode::store(const InView& to, Value value, int lanes) {
    Step step = view_step(Kind::store_view, to, lanes);
    step.in[0] = value;
    add(step);
}

void VectorCode::store_element(Address to, Value value) {
    Step step;
    step.kind = Kind::store_element;
    step.in[0] = value;
    step.at = to;
    step.bytes = kWord;
    forget(to, kWord);
    remember(to, {Form::word, value, 1, kWord});
    add(step);
}

void VectorCode::store_slot(std::int32_t offset, Value value) {
    Step step;
    step.kind = Kind::store_slot;
    step.in[0] = value;
    step.at = {rsi, offset};
    step.bytes = kSlot;
    forget(step.at, kSlot);
    remember(step.at, {Form::word, value, 1, kWord});
    add(step);
}

void VectorCode::store_slot_bits(std::int32_t offset, std::uint64_t bits) {
    Step step;
    step.kind = Kind::store_bits;
    step.bits = bits;
    step.at = {rsi, offset};
    step.bytes = kSlot;
    forget(step.at, kSlot);
    remember(step.at, {Form::word, splat(static_cast<std::int32_t>(bits)), 1, kWord});
    add(step);
}

void VectorCode::store_mask(Address to, Value mask_value, int lanes) {
    Step step;
    step.kind = Kind::store_mask;
    step.in = {mask_value, has_masks() ? splat(1) : kNone, kNone, kNone};
    if (lanes < lanes_) step.in[2] = mask(lanes);
    step.at = to;
    step.bytes = lanes;
    forget(to, lanes);
    remember(to, {Form::mask, mask_value, lanes, lanes});
    add(step);
}

void VectorCode::general(Setup setup, Address to) {
    Step step;
    step.kind = Kind::general;
    step.at = to;
    step.bytes = kSlot;
    step.setup = add_setup(std::move(setup));
    forget(to, kSlot);
    add(step);
}

}  // namespace tilewright::cpu
