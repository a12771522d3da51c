// The library of masks.
#include "tilewright/masks.h"

#include "mod/library.h"
#include "support/check.h"

namespace tilewright {
namespace masks {

Mod causal() {
    return Mod([](auto, auto, auto q, auto kv) { return q >= kv; }).renamed("causal");
}

Mod sliding_window(std::int64_t w) {
    if (w < 0) user_error("sliding_window", "expected a width of at least 0 but got {}", w);
    return Mod([w](auto, auto, auto q, auto kv) { return q >= kv && q - kv <= w; })
        .renamed("sliding_window");
}

Mod prefix_lm(std::int64_t p) {
    if (p < 0) user_error("prefix_lm", "expected a length of at least 0 but got {}", p);
    return Mod([p](auto, auto, auto q, auto kv) { return kv < p || q >= kv; }).renamed("prefix_lm");
}

Mod document(const Capture& ids) {
    const int rank = ids.tensor().rank();
    if (!is_integer(ids.tensor().dtype()) || rank < 1 || rank > 2) {
        user_error("document",
                   "expected ids (position) or (batch, position) of integers but got {}",
                   ids.tensor().type_name());
    }
    return Mod([ids, rank](auto b, auto, auto q, auto kv) {
               return rank == 1 ? ids[q] == ids[kv] : ids(b, q) == ids(b, kv);
           })
        .renamed("document");
}

}  // namespace masks

namespace mod {

std::span<const LibraryEntry> mask_library() {
    using A = const Arguments&;
    static const std::vector<LibraryEntry> kEntries{
        {"causal", Mod::Kind::mask, {}, 0, [](A) { return masks::causal(); }},
        {"sliding_window",
         Mod::Kind::mask,
         {"w"},
         1,
         [](A a) { return masks::sliding_window(a.integer(0)); }},
        {"prefix_lm",
         Mod::Kind::mask,
         {"p"},
         1,
         [](A a) { return masks::prefix_lm(a.integer(0)); }},
        {"document", Mod::Kind::mask, {"ids"}, 1, [](A a) { return masks::document(a.array(0)); }},
    };
    return kEntries;
}

}  // namespace mod
}  // namespace tilewright
