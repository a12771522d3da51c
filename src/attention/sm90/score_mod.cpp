// Score mods, and what is known of their captures.
#include "attention/sm90/score_mod.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <memory>

#include "attention/sm90/score_mod_emitter.h"
#include "ir/builder.h"
#include "ir/passes/pipeline.h"
#include "support/check.h"
#include "support/memo.h"

namespace tilewright::attn::sm90 {
namespace {

using ir::Value;

/// The mod as straight-line code: branches become selects, calls are inlined.
ir::Function straightened(const ir::Function& mod) {
    ir::Function wrapper;
    wrapper.name = mod.name;
    std::vector<Value> arguments;
    for (Value parameter : mod.parameters()) {
        const std::string& name = mod.value_name(parameter);
        arguments.push_back(mod.is_ref(parameter)
                                ? wrapper.add_parameter(mod.ref_type(parameter), name)
                                : wrapper.add_parameter(mod.type(parameter), name));
    }
    ir::Builder builder(wrapper);
    const auto results = builder.call(std::make_shared<const ir::Function>(mod), arguments);
    builder.yield(results);
    ir::optimise(wrapper);
    return wrapper;
}

}  // namespace

std::vector<CaptureSpec> specs_of(const std::vector<CaptureView>& captures,
                                  const std::vector<bool>& differentiated) {
    constexpr cuda::DeviceAddress kMost = 16;
    std::vector<CaptureSpec> specs;
    for (std::size_t i = 0; i < captures.size(); ++i) {
        const CaptureView& view = captures[i];
        const cuda::DeviceAddress address = view.address | kMost;
        specs.push_back({view.dtype, view.shape, view.strides,
                         static_cast<int>(address & (~address + 1)),
                         i < differentiated.size() && differentiated[i]});
    }
    return specs;
}

std::string broken_rule(const ir::Function& mod, const std::vector<CaptureSpec>& captures) {
    constexpr std::size_t kFirstRef = 5;
    if (mod.parameters().size() != kFirstRef + captures.size()) {
        return fmt::format("score_mod: expected {} captures but got {}",
                           mod.parameters().size() - kFirstRef, captures.size());
    }
    for (std::size_t i = 0; i < captures.size(); ++i) {
        const CaptureSpec& capture = captures[i];
        const ir::RefType& type = mod.ref_type(mod.parameters()[kFirstRef + i]);
        if (capture.dtype != type.dtype || capture.shape.size() != type.extents.size()) {
            return fmt::format("score_mod: expected capture {} of {} but got {} of rank {}", i,
                               to_string(type), name(capture.dtype), capture.shape.size());
        }
        for (const std::int64_t extent : capture.shape) {
            if (extent <= kMaxExtent) continue;
            return fmt::format("score_mod: expected extents up to {} but capture {} has {}",
                               kMaxExtent, i, extent);
        }
    }
    return {};
}

ScoreModFacts score_mod_facts(const std::vector<CaptureSpec>& captures, std::int64_t rows,
                              std::int64_t columns, bool columns_are_keys) {
    constexpr std::int64_t kPadding = 256;  // rows and columns of the last tile past the end
    ScoreModFacts facts;
    facts.columns_are_keys = columns_are_keys;
    const std::int64_t longest = std::max(rows, columns) + kPadding;
    if (longest > facts.positions) facts.positions = std::int64_t{1} << 30;
    for (const CaptureSpec& spec : captures) {
        ScoreModFacts::Capture& capture = facts.captures.emplace_back();
        capture.empty = std::find(spec.shape.begin(), spec.shape.end(), 0) != spec.shape.end();
        const bool has_pairs = spec.dtype == DType::f32 || spec.dtype == DType::i32 ||
                               spec.dtype == DType::f16 || spec.dtype == DType::bf16;
        if (spec.shape.empty() || !has_pairs) continue;
        capture.pairs = spec.strides.back() == 1 && spec.shape.back() % 2 == 0 &&
                        spec.shape.back() >= columns && !capture.empty &&
                        spec.alignment % (2 * size_of(spec.dtype)) == 0;
        for (std::size_t d = 0; d + 1 < spec.strides.size(); ++d) {
            capture.pairs &= spec.strides[d] % 2 == 0;
        }
    }
    return facts;
}

ScoreModFacts score_mod_facts(const ir::Function& mod, const std::vector<CaptureView>& captures,
                              std::int64_t rows, std::int64_t columns, bool columns_are_keys) {
    const std::vector<CaptureSpec> specs = specs_of(captures);
    if (const std::string rule = broken_rule(mod, specs); !rule.empty()) {
        user_error(kOperation, "{}", rule);
    }
    return score_mod_facts(specs, rows, columns, columns_are_keys);
}

ScoreModText score_mod_header(const ir::Function& mod, const ScoreModFacts& facts) {
    ir::Function straight = straightened(mod);
    if (!facts.derivative) return emit_score_mod(straight, facts);

    ir::DifferentiateOptions options{{true, false, false, false, false}, {}};
    for (const ScoreModFacts::Capture& capture : facts.captures) {
        options.refs.push_back(capture.differentiated && !capture.empty);
    }
    ir::Function derivative = straight;
    ir::DifferentiateReport report = ir::try_differentiate(derivative, options);
    if (!report.refusal.empty()) {
        ScoreModText none;
        none.refusal = "score_mod: " + report.refusal;
        return none;
    }
    std::vector<ir::GatherGradient>& gathers = report.gathers;

    // Both in one function: the new score, then the derivative for a cotangent of 1.
    ir::Function both;
    both.name = mod.name;
    std::vector<Value> arguments;
    for (Value parameter : straight.parameters()) {
        const std::string& name = straight.value_name(parameter);
        arguments.push_back(straight.is_ref(parameter)
                                ? both.add_parameter(straight.ref_type(parameter), name)
                                : both.add_parameter(straight.type(parameter), name));
    }
    ir::Builder builder(both);
    std::vector<Value> results =
        builder.call(std::make_shared<const ir::Function>(straight), arguments);
    arguments.insert(arguments.begin() + 5, builder.constant({DType::f32, {}}, 1.0));
    const std::vector<Value> derived =
        builder.call(std::make_shared<const ir::Function>(std::move(derivative)), arguments);
    results.insert(results.end(), derived.begin(), derived.end());
    builder.yield(results);
    ir::optimise(both);
    for (ir::GatherGradient& gather : gathers) {
        ++gather.value;
        for (std::size_t& index : gather.indices) ++index;
    }
    return emit_score_mod(both, facts, gathers);
}

std::shared_ptr<const ScoreModText> find_mod_text(const std::shared_ptr<const ir::Function>& mod,
                                                  const ScoreModFacts& facts) {
    using Text = std::shared_ptr<const ScoreModText>;
    using Key = std::pair<Identity<const ir::Function>, ScoreModFacts>;
    static auto* const kTexts = new Memo<Key, Text>("texts of mods of the Hopper engine", 512);
    static std::atomic<std::uint64_t> last = 0;
    return kTexts->get({Identity(mod), facts}, [&] {
        auto text = std::make_shared<ScoreModText>(score_mod_header(*mod, facts));
        text->number = ++last;
        return text;
    });
}

std::shared_ptr<const ScoreModText> kept_mod_text(const std::shared_ptr<const ir::Function>& mod,
                                                  const ScoreModFacts& facts) {
    std::shared_ptr<const ScoreModText> text = find_mod_text(mod, facts);
    if (!text->refusal.empty()) user_error(kOperation, "{}", text->refusal);
    return text;
}

std::vector<std::uint64_t> score_mod_words(const std::vector<CaptureView>& captures) {
    std::vector<std::uint64_t> words;
    for (const CaptureView& view : captures) {
        words.push_back(view.address);
        words.insert(words.end(), view.shape.begin(), view.shape.end());
        words.insert(words.end(), view.strides.begin(), view.strides.end());
    }
    if (words.empty()) words.push_back(0);
    return words;
}

ir::Function with_mask(const ir::Function* score, const ir::Function& mask) {
    constexpr std::size_t kScalars = 5;  // score, b, h, q, kv
    ir::Function both;
    both.name = score != nullptr ? score->name : "masked";
    static constexpr const char* kNames[kScalars] = {"score", "b", "h", "q", "kv"};
    std::vector<Value> values;
    for (std::size_t i = 0; i < kScalars; ++i) {
        values.push_back(
            both.add_parameter(ir::Type{i == 0 ? DType::f32 : DType::i64, {}}, kNames[i]));
    }
    const auto arguments = [&](const ir::Function& mod, std::size_t first_scalar) {
        std::vector<Value> result(values.begin() + first_scalar, values.begin() + kScalars);
        for (std::size_t i = kScalars - first_scalar; i < mod.parameters().size(); ++i) {
            const Value ref = mod.parameters()[i];
            result.push_back(both.add_parameter(mod.ref_type(ref), mod.value_name(ref)));
        }
        return result;
    };
    const std::vector<Value> of_score =
        score != nullptr ? arguments(*score, 0) : std::vector<Value>{};
    const std::vector<Value> of_mask = arguments(mask, 1);
    ir::Builder builder(both);
    const Value modified =
        score != nullptr
            ? builder.call(std::make_shared<const ir::Function>(*score), of_score).at(0)
            : values[0];
    const Value keep = builder.call(std::make_shared<const ir::Function>(mask), of_mask).at(0);
    const Value dead = builder.constant({DType::f32, {}}, -std::numeric_limits<double>::infinity());
    builder.yield({{builder.select(keep, modified, dead)}});
    return both;
}

}  // namespace tilewright::attn::sm90
