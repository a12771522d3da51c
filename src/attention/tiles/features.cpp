// Inputs and derivatives of mods in attention programs.
#include "attention/tiles/features.h"

#include <algorithm>
#include <map>

#include "ir/passes/differentiate.h"
#include "ir/print.h"
#include "support/check.h"

namespace tilewright::attn::tiles {

std::size_t InlinedMod::captures() const {
    if (!function) return 0;
    std::size_t count = 0;
    for (ir::Value parameter : function->parameters()) count += function->is_ref(parameter);
    return count;
}

std::string Features::key() const {
    return fmt::format("{}{}{} {}\n{}\n{}", segments ? "s" : "", plan ? "p" : "", sinks ? "k" : "",
                       dropout, score.text, mask.text);
}

std::string ScoreDerivative::key() const {
    std::string key = function ? ir::print(*function) : "";
    for (const ScoreGather& gather : gathers) {
        for (Coordinate coordinate : gather.coordinates) {
            key += static_cast<char>('0' + static_cast<int>(coordinate));
        }
        key += ' ';
    }
    return key;
}

std::size_t num_extras(const Features& features) {
    return Extra::count + features.score.captures() + features.mask.captures();
}

void add_extras(const Features& features, CallOptions& options, std::vector<std::string>& names) {
    const auto add = [&](std::string name, bool present, int rank, std::vector<int> dynamic) {
        options.in.push_back(present ? BlockSpec() : BlockSpec::absent());
        names.push_back(std::move(name));
        if (!present || rank == 0) return;
        options.dynamic[static_cast<int>(options.in.size()) - 1] = std::move(dynamic);
    };
    const bool plan = features.plan;
    add("origin", features.positions() || plan, 0, {});
    add("seed", features.dropout > 0, 0, {});
    add("headers", plan, 2, {0});
    add("partial", plan, 2, {0});
    add("full", plan, 2, {0});
    add("bits", plan, 3, {0});
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

/// Finds indices that are a plain coordinate clamped to an extent that it never reaches.
class Coordinates {
  public:
    explicit Coordinates(const ir::Function& function) : function_(function) {
        for (const ir::Instruction& instruction : function.body.body) {
            for (ir::Value result : instruction.results) makers_[result] = &instruction;
        }
        // score, b, h, q, kv
        const auto& parameters = function.parameters();
        for (std::size_t i = 1; i < 5; ++i) {
            coordinates_[parameters[i]] = static_cast<Coordinate>(i);
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

  private:
    const ir::Function& function_;
    std::map<ir::Value, const ir::Instruction*> makers_;
    std::map<ir::Value, Coordinate> coordinates_;
};

}  // namespace

ScoreDerivative differentiate_score(const InlinedMod& score, const std::vector<bool>& chosen,
                                    const std::vector<Tensor::Dims>& shapes,
                                    const ProblemSize& size) {
    ScoreDerivative result;
    ir::Function function = *score.function;
    const auto report = ir::differentiate(function, {{true, false, false, false, false}, chosen});
    const std::vector<ir::Value>& yielded = function.body.terminator().operands;
    // The cotangent follows kv.
    result.is_identity = yielded[0] == function.parameters()[5] && report.gathers.empty();
    const Coordinates coordinates(function);
    std::map<std::size_t, std::size_t> buffer_of;
    for (const ir::GatherGradient& gather : report.gathers) {
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
    result.function = std::make_shared<const ir::Function>(std::move(function));
    return result;
}

}  // namespace tilewright::attn::tiles
