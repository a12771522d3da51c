// Writes the machine code of chains on small tiles and of scalars, for AVX-512 and AVX2.
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
inline constexpr std::int64_t kMostSmallElements = 512;

/// Vectors of 64 bytes among a program's constants; AVX2 reads their first halves.
class ConstantPool {
  public:
    static constexpr std::int64_t kLanes = 16;

    explicit ConstantPool(Program& program) : program_(program) {}

    std::int32_t at(const std::array<std::int32_t, kLanes>& words) {
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
        std::array<std::int32_t, kLanes> words;
        words.fill(word);
        return at(words);
    }

  private:
    Program& program_;
    std::map<std::array<std::int32_t, kLanes>, std::int32_t> known_;
};

/// Straight-line code of a chain on few vectors, row by row, which expects the arena in rdi, the
/// slots in rsi and the constants in rdx; nullopt for chains with ops that it does not know. Needs
/// buffers with offsets.
std::optional<std::vector<std::uint8_t>> small_tile_code(const Program& program, const Chain& chain,
                                                         ConstantPool& pool);

/// The same for AVX2.
std::optional<std::vector<std::uint8_t>> small_tile_code_avx2(const Program& program,
                                                              const Chain& chain,
                                                              ConstantPool& pool);

/// An element, or a vector, at a place that is known at run time. For AVX-512 if `wide`, or AVX2.
std::optional<std::vector<std::uint8_t>> pick_code(const Program& program, const Pick& pick,
                                                   ConstantPool& pool, bool wide);

/// f32 arithmetic as the kernels do it, and the casts of loop counters.
std::optional<std::vector<std::uint8_t>> scalar_code(const ScalarOp& op, bool wide);

}  // namespace tilewright::cpu
