// Combines the score and mask mods of a call into one function.
#include "attention/sm90/combined_mod.h"

#include <string>

#include "attention/sm90/score_mod.h"
#include "support/memo.h"

namespace tilewright::attn::sm90 {
namespace {

std::shared_ptr<const ir::Function> canonical(const std::string& text, auto make) {
    static auto* const kFunctions = new Memo<std::string, std::shared_ptr<const ir::Function>>(
        "mods of the Hopper engine", 512);
    return kFunctions->get(text, make);
}

}  // namespace

std::shared_ptr<const ir::Function> combined_mod(const AttentionSpec& spec) {
    if (!spec.mask) {
        if (!spec.score) return nullptr;
        return canonical(spec.score.text, [&] { return spec.score.function; });
    }
    return canonical("masked\n" + spec.score.text + "\n" + spec.mask.text, [&] {
        return std::make_shared<const ir::Function>(
            with_mask(spec.score.function.get(), *spec.mask.function));
    });
}

std::vector<CaptureSpec> combined_captures(const AttentionSpec& spec) {
    std::vector<CaptureSpec> captures = spec.score.captures;
    captures.insert(captures.end(), spec.mask.captures.begin(), spec.mask.captures.end());
    return captures;
}

}  // namespace tilewright::attn::sm90
