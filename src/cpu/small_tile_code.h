// What chains on small tiles, picked elements and scalars do, as steps of straight-line code.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "cpu/bytecode.h"

namespace tilewright::cpu {

/// Elements of a tile that are worth code without loops.
inline constexpr std::int64_t kMostSmallElements = 1024;

/// Vectors of 64 bytes among a program's constants; AVX2 reads their first halves.
class ConstantPool {
  public:
    static constexpr std::int64_t kLanes = 16;
    using Words = std::array<std::int32_t, kLanes>;

    explicit ConstantPool(Program& program) : program_(program) {}

    std::int32_t at(const Words& words) {
        const auto [found, inserted] = known_.try_emplace(words, 0);
        if (inserted) {
            std::vector<std::byte>& data = program_.constants;
            const std::size_t start = (data.size() + 63) / 64 * 64;
            data.resize(start + sizeof(words));
            std::memcpy(data.data() + start, words.data(), sizeof(words));
            found->second = static_cast<std::int32_t>(start);
        }
        return found->second;
    }
    std::int32_t splat(std::int32_t word) {
        Words words;
        words.fill(word);
        return at(words);
    }

  private:
    Program& program_;
    std::map<Words, std::int32_t> known_;
};

/// Slots of which it is known what they hold where an instruction is.
using KnownSlots = std::map<std::uint32_t, std::uint64_t>;

class VectorCode;

// Instructions on small tiles as steps, which are appended to `code`: some may be there even if the
// result is false, as it is for what these functions do not know. Buffers need offsets.

bool add_chain(VectorCode& code, const Program& program, const Chain& chain,
               const KnownSlots& known);
bool add_pick(VectorCode& code, const Program& program, const Pick& pick, const KnownSlots& known);
bool add_copy(VectorCode& code, const Program& program, const Move& move);
bool add_scalar(VectorCode& code, const ScalarOp& op);
bool add_move(VectorCode& code, const ScalarMove& move);

/// What a scalar op gives if its operands are known: the casts and sums of loop counters.
std::optional<std::uint64_t> known_result(const ScalarOp& op, const KnownSlots& known);

}  // namespace tilewright::cpu
