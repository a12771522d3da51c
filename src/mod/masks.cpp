// The library of masks for sequences: windows, prefixes, packed documents, trees.
#include "tilewright/masks.h"

#include "mod/mask_helpers.h"
#include "support/check.h"
#include "tilewright/lang/ops.h"

namespace tilewright::masks {

using mod::at_least;
using mod::expect_array;

namespace {

/// The element of a rank-1 or (batch, position) array at a position.
Tile id_at(const Capture& ids, const Tile& b, const Tile& position) {
    return ids.tensor().rank() == 1 ? ids[position] : ids(b, position);
}

/// The offsets (n + 1) of packed sequences, and the number of the sequence at each position.
struct Packing {
    Capture offsets, ids;
    std::int64_t total;

    Packing(const char* op, const Capture& offsets_) : offsets(offsets_), ids(offsets_), total(0) {
        const Tensor& tensor = offsets.tensor();
        expect_array(op, "offsets (sequences + 1) of integers", offsets, 1, 1);
        const auto values = tensor.to_vector<std::int64_t>();
        std::vector<std::int32_t> of_position;
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (i == 0 ? values[0] != 0 : values[i] < values[i - 1])
                user_error(op, "expected offsets that ascend from 0 but got {} at {}", values[i],
                           i);
            if (i > 0)
                of_position.resize(static_cast<std::size_t>(values[i]),
                                   static_cast<std::int32_t>(i - 1));
        }
        if (values.empty()) user_error(op, "expected at least one offset but got none");
        total = values.back();
        if (total == 0) of_position = {0};
        ids = capture(Tensor::from_vector(of_position, {std::ssize(of_position)}), "sequence_of");
    }

    /// The sequence that contains a position; positions past the end count as the last one's, those
    /// before 0 as the first one's.
    Tile id(const Tile& position) const {
        return ids[clamp(position, 0, std::max<std::int64_t>(total - 1, 0))];
    }

    /// Are both positions in sequences, and in the same one?
    Tile same(const Tile& q, const Tile& kv) const {
        return q < total && kv < total && id(q) == id(kv);
    }
};

}  // namespace

Mod noop() {
    return Mod([](auto, auto, auto q, auto) { return q >= 0; }).renamed("noop");
}

Mod causal() {
    return Mod([](auto, auto, auto q, auto kv) { return q >= kv; }).renamed("causal");
}

Mod sliding_window(std::int64_t w) {
    at_least("sliding_window", "a width", w, 0);
    return Mod([w](auto, auto, auto q, auto kv) { return q >= kv && q - kv <= w; })
        .renamed("sliding_window");
}

Mod window(std::int64_t left, std::int64_t right) {
    at_least("window", "left", left, -1);
    at_least("window", "right", right, -1);
    return Mod([left, right](auto, auto, auto q, auto kv) {
               const Tile open = q >= 0;
               return (left < 0 ? open : q - kv <= left) && (right < 0 ? open : kv - q <= right);
           })
        .renamed("window");
}

Mod dilated_window(std::int64_t w, std::int64_t d) {
    at_least("dilated_window", "a width", w, 0);
    at_least("dilated_window", "a dilation", d, 1);
    return Mod([w, d](auto, auto, auto q, auto kv) {
               const Tile distance = abs(q - kv);
               return distance <= w && distance % d == 0;
           })
        .renamed("dilated_window");
}

Mod strided(std::int64_t stride) {
    at_least("strided", "a stride", stride, 1);
    return Mod([stride](auto, auto, auto q, auto kv) {
               const Tile distance = q - kv;
               return distance >= 0 && (distance < stride || distance % stride == 0);
           })
        .renamed("strided");
}

Mod global_tokens(std::int64_t w, const Capture& flags) {
    at_least("global_tokens", "a width", w, 0);
    if (flags.tensor().dtype() != boolean || flags.tensor().rank() != 1)
        user_error("global_tokens", "expected flags bool (position) but got {}",
                   flags.tensor().type_name());
    return Mod([w, flags](auto, auto, auto q, auto kv) {
               return abs(q - kv) <= w || flags[q] || flags[kv];
           })
        .renamed("global_tokens");
}

Mod prefix_lm(std::int64_t p) {
    at_least("prefix_lm", "a length", p, 0);
    return Mod([p](auto, auto, auto q, auto kv) { return kv < p || q >= kv; }).renamed("prefix_lm");
}

Mod prefix_lm(const Capture& lengths) {
    expect_array("prefix_lm", "lengths (batch) of integers", lengths, 1, 1);
    return Mod([lengths](auto b, auto, auto q, auto kv) {
               return kv < lengths[b].to(i64) || q >= kv;
           })
        .renamed("prefix_lm");
}

Mod document(const Capture& ids) {
    expect_array("document", "ids (position) or (batch, position) of integers", ids, 1, 2);
    return Mod([ids](auto b, auto, auto q, auto kv) {
               return id_at(ids, b, q) == id_at(ids, b, kv);
           })
        .renamed("document");
}

Mod segment(const Capture& q_ids, const Capture& kv_ids) {
    const char* wanted = "ids (position) or (batch, position) of integers";
    expect_array("segment", wanted, q_ids, 1, 2);
    expect_array("segment", wanted, kv_ids, 1, 2);
    return Mod([q_ids, kv_ids](auto b, auto, auto q, auto kv) {
               return id_at(q_ids, b, q).to(i64) == id_at(kv_ids, b, kv).to(i64);
           })
        .renamed("segment");
}

Mod jagged(const Mod& mask, const Capture& offsets) {
    mod::expect_mask("jagged", mask);
    const Packing packing("jagged", offsets);
    return Mod([mask, packing](auto b, auto h, auto q, auto kv) {
               const Tile q_start = packing.offsets[packing.id(q)].to(i64);
               const Tile kv_start = packing.offsets[packing.id(kv)].to(i64);
               return packing.same(q, kv) && mask(b, h, q - q_start, kv - kv_start);
           })
        .renamed("jagged");
}

Mod packed_causal(const Capture& offsets) {
    const Packing packing("packed_causal", offsets);
    return Mod([packing](auto, auto, auto q, auto kv) {
               return q < packing.total && packing.offsets[packing.id(q)].to(i64) <= kv && kv <= q;
           })
        .renamed("packed_causal");
}

Mod batchify(const Mod& mask, std::int64_t n) {
    mod::expect_mask("batchify", mask);
    at_least("batchify", "a length", n, 1);
    return Mod([mask, n](auto b, auto h, auto q, auto kv) {
               return q / n == kv / n && mask(b, h, q % n, kv % n);
           })
        .renamed("batchify");
}

Mod chunked(std::int64_t n) {
    at_least("chunked", "a length", n, 1);
    return Mod([n](auto, auto, auto q, auto kv) {
               return q >= kv && floordiv(q, n) == floordiv(kv, n);
           })
        .renamed("chunked");
}

Mod offset(const Mod& mask, std::int64_t q_offset, std::int64_t kv_offset) {
    mod::expect_mask("offset", mask);
    return Mod([=](auto b, auto h, auto q, auto kv) {
               return mask(b, h, q + q_offset, kv + kv_offset);
           })
        .renamed("offset");
}

Mod offset(const Mod& mask, const Capture& q_offset, const Capture& kv_offset) {
    mod::expect_mask("offset", mask);
    expect_array("offset", "q_offset () of integers", q_offset, 0, 0);
    expect_array("offset", "kv_offset () of integers", kv_offset, 0, 0);
    return Mod([=](auto b, auto h, auto q, auto kv) {
               return mask(b, h, q + q_offset().to(i64), kv + kv_offset().to(i64));
           })
        .renamed("offset");
}

Mod shared_prefix(const Capture& offsets, const Capture& prefix) {
    const Packing packing("shared_prefix", offsets);
    expect_array("shared_prefix", "prefix (sequences) of integers", prefix, 1, 1);
    return Mod([packing, prefix](auto, auto, auto q, auto kv) {
               const Tile sequence = packing.id(q).to(i64);
               const Tile own = packing.offsets[sequence].to(i64) <= kv && q >= kv;
               const Tile wanted = prefix[sequence].to(i64);
               return q < packing.total && kv < packing.total &&
                      (own || (wanted >= 0 && packing.id(kv).to(i64) == wanted));
           })
        .renamed("shared_prefix");
}

Mod block_diffusion(std::int64_t n, std::int64_t block) {
    at_least("block_diffusion", "a length", n, 1);
    at_least("block_diffusion", "a block", block, 1);
    return Mod([n, block](auto, auto, auto q, auto kv) {
               const Tile q_block = q % n / block, kv_block = kv % n / block;
               const Tile q_noised = q < n, kv_noised = kv < n;
               return (q_block == kv_block && q_noised == kv_noised) ||
                      (q_noised && !kv_noised && q_block > kv_block) ||
                      (!q_noised && !kv_noised && q_block >= kv_block);
           })
        .renamed("block_diffusion");
}

Mod tree(const Capture& ancestors, std::int64_t prefix) {
    at_least("tree", "a prefix", prefix, 0);
    const Tensor& table = ancestors.tensor();
    if (table.dtype() != boolean || table.rank() != 2 || table.dim(0) != table.dim(1))
        user_error("tree", "expected ancestors bool (tokens, tokens) but got {}",
                   table.type_name());
    const std::int64_t tokens = table.dim(0);
    return Mod([ancestors, prefix, tokens](auto, auto, auto q, auto kv) {
               const Tile token = clamp(kv - prefix, 0, std::max<std::int64_t>(tokens - 1, 0));
               return kv < prefix || (kv < prefix + tokens && ancestors(q, token));
           })
        .renamed("tree");
}

Mod tree_training(std::int64_t prefix, std::int64_t n) {
    at_least("tree_training", "a prefix", prefix, 0);
    at_least("tree_training", "a group", n, 1);
    return Mod([prefix, n](auto, auto, auto q, auto kv) {
               const Tile place = kv - prefix;
               return kv < prefix || (q / n == place / n && place % n <= q % n);
           })
        .renamed("tree_training");
}

}  // namespace tilewright::masks
