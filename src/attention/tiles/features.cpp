// Inputs and derivatives of mods in attention programs.
#include "attention/tiles/features.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "ir/access.h"
#include "ir/passes/dce.h"
#include "ir/passes/definitions.h"
#include "ir/passes/intervals.h"
#include "ir/print.h"
#include "support/check.h"
#include "support/memo.h"

namespace tilewright::attn::tiles {

std::size_t InlinedMod::captures() const {
    if (!function) return 0;
    std::size_t count = 0;
    for (ir::Value parameter : function->parameters()) count += function->is_ref(parameter);
    return count;
}

std::string Features::key() const {
    return fmt::format("{}{}{}{}{}{} {}\n{}\n{}", segments ? "s" : "", plan ? "p" : "",
                       lengths ? "n" : "", sinks ? "k" : "", long_positions ? "l" : "",
                       shifted ? "h" : "", dropout, score.text, mask.text);
}

bool reads_by_head(const InlinedMod& score) {
    if (!score || score.captures() == 0) return true;
    if (!score.loads.empty()) return false;
    const std::vector<ir::Value>& parameters = score.function->parameters();
    std::set<ir::Value> varying{parameters[0], parameters[3], parameters[4]};
    for (const ir::Instruction& made : score.function->body.body) {
        if (!made.blocks.empty()) return false;
        if (std::none_of(made.operands.begin(), made.operands.end(),
                         [&](ir::Value value) { return varying.count(value) > 0; })) {
            continue;
        }
        if (made.op == ir::Op::load) return false;
        varying.insert(made.results.begin(), made.results.end());
    }
    return true;
}

std::size_t num_extras(const Features& features) {
    return Extra::count + features.score.captures() + features.mask.captures();
}

std::vector<std::string> distinct(std::vector<std::string> names) {
    for (auto name = names.begin(); name != names.end(); ++name) {
        const std::string given = *name;
        for (int n = 2; std::find(names.begin(), name, *name) != name; ++n) {
            *name = fmt::format("{}_{}", given, n);
        }
    }
    return names;
}

void add_extras(const Features& features, CallOptions& options, std::vector<std::string>& names,
                bool looks) {
    const auto add = [&](std::string name, bool present, int rank, std::vector<int> dynamic) {
        options.in.push_back(present ? BlockSpec() : BlockSpec::absent());
        names.push_back(std::move(name));
        if (!present || rank == 0) return;
        options.dynamic[static_cast<int>(options.in.size()) - 1] = std::move(dynamic);
    };
    const bool plan = features.plan;
    add("origin", features.positions() || plan, 0, {});
    add("seed", features.dropout > 0, 0, {});
    add("kv_lengths", features.lengths, 1, {0});
    add("headers", plan, 2, {0});
    add("partial", plan, 2, {0});
    add("full", plan, 2, {0});
    add("bits", plan, 3, {0});
    add("shift", features.shifted, 3, {0, 1, 2});
    add("not_finite", looks, 3, {0, 1, 2});
    for (const InlinedMod* mod : {&features.score, &features.mask}) {
        if (!*mod) continue;
        for (ir::Value parameter : mod->function->parameters()) {
            if (!mod->function->is_ref(parameter)) continue;
            const int rank = mod->function->ref_type(parameter).rank();
            std::vector<int> dims;
            for (int d = 0; d < rank; ++d) dims.push_back(d);
            add(mod->function->value_name(parameter), true, rank, std::move(dims));
        }
    }
}

namespace {

/// The bounds of a value of a mod without arrays, whatever the mod's arguments are.
ir::Interval range_of(ir::Function mod, ir::Value value) {
    mod.body.body.back().operands[0] = value;
    const ir::Intervals intervals(mod, {});
    ir::Intervals::Evaluation evaluation(intervals);
    for (int i = 0; i < intervals.num_scalars(); ++i) {
        evaluation.set(i, ir::Interval::all(mod.type(mod.parameters()[i]).dtype));
    }
    return evaluation.run();
}

/// Recognises indices that are a plain coordinate, clamped to an extent that it never reaches.
class Coordinates {
  public:
    explicit Coordinates(const ir::Function& function, bool is_score = true) {
        for (const ir::Instruction& instruction : function.body.body) {
            for (ir::Value result : instruction.results) makers_[result] = &instruction;
        }
        // The score comes first, if there is one; then b, h, q, kv.
        const auto& parameters = function.parameters();
        for (std::size_t i = 1; i < 5; ++i) {
            coordinates_[parameters[is_score ? i : i - 1]] = static_cast<Coordinate>(i);
        }
    }

    Coordinate of(ir::Value index, std::int64_t array_extent, const ProblemSize& size) const {
        const auto made = makers_.find(index);
        if (made == makers_.end() || made->second->op != ir::Op::clamp) return Coordinate::other;
        const auto found = coordinates_.find(made->second->operands[0]);
        if (found == coordinates_.end()) return Coordinate::other;
        const std::int64_t needed[] = {0, size.batch, size.heads, size.queries, size.keys};
        const bool inside = array_extent >= needed[static_cast<std::size_t>(found->second)];
        return inside ? found->second : Coordinate::other;
    }

    /// The value of an index that is constant and inside the array.
    std::optional<std::int64_t> constant(ir::Value index, std::int64_t array_extent) const {
        auto made = makers_.find(index);
        // It may be clamped to an extent that is known only at the call.
        if (made != makers_.end() && made->second->op == ir::Op::clamp) {
            made = makers_.find(made->second->operands[0]);
        }
        if (made == makers_.end() || made->second->op != ir::Op::constant) return {};
        const auto value =
            static_cast<std::int64_t>(made->second->get<ir::ConstantAttributes>().bits);
        if (value < 0 || value >= array_extent) return {};
        return value;
    }

  private:
    std::map<ir::Value, const ir::Instruction*> makers_;
    std::map<ir::Value, Coordinate> coordinates_;
};

/// Takes the plain loads out of a function: their results become parameters.
std::vector<BlockLoad> take_block_loads(ir::Function& function, bool is_score,
                                        const std::vector<Tensor::Dims>& shapes,
                                        const ProblemSize& size) {
    const Coordinates coordinates(function, is_score);
    std::map<ir::Value, std::size_t> places;  // numbers of the Refs
    for (ir::Value parameter : function.parameters()) {
        if (function.is_ref(parameter)) places.emplace(parameter, places.size());
    }
    std::vector<BlockLoad> loads;
    std::vector<ir::Value> results;
    std::vector<bool> taken;
    for (const ir::Instruction& instruction : function.body.body) {
        std::optional<BlockLoad> load;
        if (instruction.op == ir::Op::load) {
            const ir::Access access = ir::access(instruction);
            load.emplace();
            load->ref = places.at(access.ref);
            int queries = 0, keys = 0;
            bool plain = !access.mask && !access.other;
            for (std::size_t d = 0; d < access.indices.size(); ++d) {
                const std::int64_t extent = shapes[load->ref][d];
                BlockLoad::Index index{coordinates.of(access.indices[d], extent, size), 0};
                if (const auto value = coordinates.constant(access.indices[d], extent)) {
                    index = {Coordinate::constant, *value};
                }
                plain &= index.coordinate != Coordinate::other;
                queries += index.coordinate == Coordinate::query;
                keys += index.coordinate == Coordinate::key;
                load->indices.push_back(index);
            }
            // A load that depends only on batch and head is a scalar anyway.
            if (!plain || queries + keys == 0 || queries > 1 || keys > 1) load.reset();
        }
        taken.push_back(load.has_value());
        if (!load) continue;
        loads.push_back(std::move(*load));
        results.push_back(instruction.result());
    }
    std::size_t place = 0;
    std::erase_if(function.body.body, [&](const ir::Instruction&) { return taken[place++]; });
    auto& parameters = function.body.arguments;
    const auto first_ref = std::find_if(parameters.begin(), parameters.end(),
                                        [&](ir::Value p) { return function.is_ref(p); });
    parameters.insert(first_ref, results.begin(), results.end());
    ir::dce(function);
    return loads;
}

std::string key_of(const ir::Function& function, const std::vector<BlockLoad>& loads) {
    std::string key = ir::print(function);
    for (const BlockLoad& load : loads) {
        key += fmt::format("{}", load.ref);
        for (const auto& index : load.indices) {
            key += fmt::format(" {}:{}", static_cast<int>(index.coordinate), index.constant);
        }
        key += '\n';
    }
    return key;
}

/// Cached mods and sizes: texts are short, and few are in use at a time.
constexpr std::size_t kKeptMods = 1024;

ScoreDerivative derivative_of(const InlinedMod& score, const std::vector<bool>& chosen,
                              const std::vector<Tensor::Dims>& shapes, const ProblemSize& size) {
    ScoreDerivative result;
    ir::Function function = score.derivative ? *score.derivative : *score.function;
    std::vector<ir::GatherGradient> gathers;
    if (score.derivative) {
        std::copy_if(score.gathers.begin(), score.gathers.end(), std::back_inserter(gathers),
                     [&](const ir::GatherGradient& gather) { return chosen[gather.ref]; });
    } else {
        gathers = ir::differentiate(function, {{true, false, false, false, false}, chosen}).gathers;
    }
    const std::vector<ir::Value>& yielded = function.body.terminator().operands;
    // The cotangent is the parameter after kv.
    result.is_identity = yielded[0] == function.parameters()[5] && gathers.empty();
    const Coordinates coordinates(function);
    std::map<std::size_t, std::size_t> buffer_of;
    for (const ir::GatherGradient& gather : gathers) {
        ScoreGather made{0, gather.indices, gather.value, {}};
        for (std::size_t d = 0; d < gather.indices.size(); ++d) {
            made.coordinates.push_back(
                coordinates.of(yielded[gather.indices[d]], shapes[gather.ref][d], size));
        }
        const auto has = [&](Coordinate wanted) {
            return std::find(made.coordinates.begin(), made.coordinates.end(), wanted) !=
                   made.coordinates.end();
        };
        const auto [entry, is_new] = buffer_of.emplace(gather.ref, result.buffers.size());
        if (is_new) result.buffers.push_back({gather.ref, gather.indices.size(), true, true, true});
        made.buffer = entry->second;
        GradientBuffer& buffer = result.buffers[made.buffer];
        buffer.by_batch &= has(Coordinate::batch);
        buffer.by_head &= has(Coordinate::head);
        buffer.by_key &= has(Coordinate::key);
        result.gathers.push_back(std::move(made));
    }
    result.loads = take_block_loads(function, true, shapes, size);
    result.function = std::make_shared<const ir::Function>(std::move(function));
    return result;
}

}  // namespace

std::optional<ScoreRange> score_range(const InlinedMod& score) {
    if (!score || score.captures() > 0 || !score.loads.empty()) return {};
    const ir::Interval range =
        range_of(*score.function, score.function->body.terminator().operands[0]);
    if (!std::isfinite(range.float_low) || !std::isfinite(range.float_high)) return {};
    return ScoreRange{range.float_low, range.float_high};
}

bool is_additive(const InlinedMod& score, double scale) {
    // What is added, and its factors, are divided by the scale without becoming infinite.
    constexpr double kMost = 0x1p120;
    if (!score || score.captures() > 0 || !score.loads.empty()) return false;
    const ir::Function& mod = *score.function;
    const ir::Definitions definitions(mod);
    const ir::Value given = mod.parameters()[0];
    const ir::Instruction* const sum = definitions.of(mod.body.terminator().operands[0]);
    if (sum == nullptr || sum->op != ir::Op::add ||
        (sum->operands[0] == given) == (sum->operands[1] == given) ||
        definitions.readers(given).size() != 1) {
        return false;
    }
    const ir::Value added = sum->operands[sum->operands[0] == given ? 1 : 0];
    std::vector<ir::Value> divided{added};
    if (const ir::Instruction* const product = definitions.of(added);
        product != nullptr && product->op == ir::Op::mul) {
        divided.insert(divided.end(), product->operands.begin(), product->operands.end());
    }
    return std::all_of(divided.begin(), divided.end(), [&](ir::Value value) {
        const ir::Interval range = range_of(mod, value);
        return std::max(std::abs(range.float_low), std::abs(range.float_high)) <=
               kMost * std::min(scale, 1.0);
    });
}

std::string ScoreDerivative::key() const {
    std::string key = function ? key_of(*function, loads) : "";
    for (const ScoreGather& gather : gathers) {
        for (Coordinate coordinate : gather.coordinates) {
            key += static_cast<char>('0' + static_cast<int>(coordinate));
        }
        key += ' ';
    }
    return key;
}

InlinedMod with_block_loads(const std::string& text, const ir::Function& function, bool is_score,
                            const std::vector<Tensor::Dims>& shapes, const ProblemSize& size) {
    using Key = std::tuple<std::string, bool, std::vector<Tensor::Dims>, ProblemSize>;
    static auto* const kKnown = new Memo<Key, InlinedMod>("mods of tile programs", kKeptMods);
    return kKnown->get({text, is_score, shapes, size}, [&] {
        ir::Function changed = function;
        InlinedMod result;
        result.loads = take_block_loads(changed, is_score, shapes, size);
        result.text = key_of(changed, result.loads);
        result.function = std::make_shared<const ir::Function>(std::move(changed));
        return result;
    });
}

ScoreDerivative differentiate_score(const InlinedMod& score, const std::vector<bool>& chosen,
                                    const std::vector<Tensor::Dims>& shapes,
                                    const ProblemSize& size) {
    if (score.derivative) return derivative_of(score, chosen, shapes, size);
    using Key = std::tuple<std::string, std::vector<bool>, std::vector<Tensor::Dims>, ProblemSize>;
    static auto* const kKnown =
        new Memo<Key, ScoreDerivative>("derivatives of score mods", kKeptMods);
    return kKnown->get({score.text, chosen, shapes, size},
                       [&] { return derivative_of(score, chosen, shapes, size); });
}

}  // namespace tilewright::attn::tiles
