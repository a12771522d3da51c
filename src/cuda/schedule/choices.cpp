// Lists what the autotuner measures.
#include "cuda/schedule/choices.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "cuda/schedule/prepare.h"
#include "cuda/schedule/print_cuda.h"
#include "cuda/schedule/product_time.h"
#include "cuda/schedule/schedule.h"
#include "cuda/schedule/split_product.h"
#include "cuda/schedule/whole_product.h"
#include "support/integer.h"

namespace tilewright::cuda::schedule {
namespace {

constexpr std::int64_t kMostParts = 16;

/// The program of a choice, or nothing where it does not fit the registers and shared memory of a
/// thread block or the form does not support it.
std::optional<Program> program_of(const ir::Function& kernel, Target target, const Choice& choice) {
    target.choice = choice;
    if (choice.parts > 1) {
        const bool tensors = std::all_of(target.facts.begin(), target.facts.end(),
                                         [](const RefFacts& one) { return one.tensor; });
        if (!tensors) return std::nullopt;
        const auto split = split_product(kernel, choice.parts);
        // Fewer parts than asked for are another choice.
        if (!split || split->sums.extents[0] != choice.parts) return std::nullopt;
        target.facts.push_back({.vectors = true, .dense = true, .tensor = true});
        target.choice->parts = 1;
        return program_of(split->parts, target, *target.choice);
    }
    try {
        return schedule(kernel, target);
    } catch (const Refused&) {
        return std::nullopt;
    }
}

/// Adds choices whose kernels differ.
class Choices {
  public:
    Choices(const ir::Function& kernel, const Target& target) : kernel_(kernel), target_(target) {}

    void add(const Choice& choice) {
        const auto program = program_of(kernel_, target_, choice);
        if (!program || program->pairs != choice.tile.pairs) return;
        if (texts_.insert(print_cuda(*program).source).second) found_.push_back(choice);
    }
    std::size_t count() const { return found_.size(); }
    std::vector<Choice> take() { return std::move(found_); }

  private:
    const ir::Function& kernel_;
    const Target& target_;
    std::vector<Choice> found_;
    std::set<std::string> texts_;
};

/// What `schedule` takes by itself.
std::optional<Choice> usual_choice(const ir::Function& kernel, const Target& target) {
    Choice usual;
    usual.parts = parts_of_product(kernel, target.arch);
    if (usual.parts > 1) {
        const auto split = split_product(kernel, usual.parts);
        usual.parts = split->sums.extents[0];
        for (const Tile& tile : tiles_to_try(split->parts)) {
            usual.tile = tile;
            if (program_of(kernel, target, usual)) return usual;
        }
    }
    usual.parts = 1;
    for (const Tile& tile : tiles_to_try(kernel)) {
        usual.tile = tile;
        if (program_of(kernel, target, usual)) return usual;
    }
    return std::nullopt;
}

}  // namespace

std::vector<Choice> choices_of(const ir::Function& kernel, const Target& target) {
    constexpr double kWorst = 1.8;  // of the best estimate
    constexpr std::size_t kMost = 20;
    if (!is_for(target.arch) || !has_tiles_to_choose(kernel)) return {};
    const auto usual = usual_choice(kernel, target);
    if (!usual) return {};
    const ir::Function whole = whole_product(kernel);
    std::vector<std::pair<double, Choice>> estimates;
    for (std::int64_t parts = 1; parts <= kMostParts; parts *= 2) {
        const bool can_split = parts == 1 || split_product(kernel, parts).has_value();
        for (const Tile& shape : product_tiles(kernel)) {
            const Prepared cut = prepare_for_wgmma(parts == 1 ? kernel : whole, shape);
            if (!cut.refusal.empty() || !can_split) continue;
            const ProductWork work = work_of(cut.kernel);
            if (parts > 1 && (work.tiles == 0 || work.steps < 2 * parts)) continue;
            for (const Pairs pairs : {Pairs::none, Pairs::rows, Pairs::columns, Pairs::both}) {
                if (shape.turns && pairs != Pairs::none) continue;
                Choice choice{.tile = {shape.rows, shape.columns, pairs, shape.turns},
                              .parts = parts};
                if (parts > 1) {
                    // Whole steps make fewer parts than asked for.
                    choice.parts = ceil_div(work.steps, ceil_div(work.steps, parts));
                }
                const double clocks =
                    choice.parts == 1 ? clocks_of(work, choice.tile)
                                      : clocks_of_parts(work, choice.tile, choice.parts,
                                                        work.tiles * shape.rows * shape.columns);
                estimates.emplace_back(clocks, choice);
            }
        }
    }
    std::stable_sort(estimates.begin(), estimates.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    Choices choices(kernel, target);
    choices.add(*usual);
    for (const auto& [clocks, choice] : estimates) {
        if (clocks > kWorst * estimates.front().first || choices.count() == kMost) break;
        choices.add(choice);
    }
    return choices.take();
}

std::vector<Choice> refinements_of(const ir::Function& kernel, const Target& target,
                                   const Choice& choice) {
    Choices choices(kernel, target);
    choices.add(choice);
    for (const int group : {4, 8, 16, 32}) {
        Choice other = choice;
        other.group = group;
        choices.add(other);
    }
    const auto program = program_of(kernel, target, choice);
    const int slots = program && !program->channels.empty() ? program->channels[0].slots : 0;
    for (int stages = slots - 1; stages >= 2 && stages >= slots - 2; --stages) {
        Choice other = choice;
        other.stages = stages;
        choices.add(other);
    }
    return choices.take();
}

}  // namespace tilewright::cuda::schedule
