// Mods evaluated for one pair at a time: the slow, obvious definition.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mod/traced.h"

namespace tilewright::mod {

/// Runs a scalar function (a traced mod, or what passes made of it) on plain numbers.
class Evaluator {
  public:
    /// `captures`: one tensor in CPU memory per Ref parameter. The function must outlive this
    /// object.
    Evaluator(const ir::Function& function, std::vector<Tensor> captures);
    /// For a mod traced without checks.
    explicit Evaluator(const Traced& traced);

    /// The function's results for these scalars, one per scalar parameter; both are represented as
    /// in ir/evaluate.h. The results are valid until the next call.
    std::span<const std::uint64_t> run(std::span<const std::uint64_t> scalars);

    bool mask(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv);
    double score(double score, std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv);

  private:
    void block(const ir::Block& block);
    void step(const ir::Instruction& instruction);
    void load(const ir::Instruction& instruction);
    std::uint64_t& at(ir::Value value) { return values_[value.id]; }
    const Tensor& tensor(ir::Value ref) const { return captures_[values_[ref.id]]; }
    void assign(std::span<const ir::Value> from, std::span<const ir::Value> to);

    const ir::Function& function_;
    std::vector<Tensor> captures_;
    std::vector<std::uint64_t> values_;  ///< by value id; for a Ref, the index of its tensor
    std::vector<std::uint64_t> results_;
};

}  // namespace tilewright::mod
