// Masks packed into vectors of words, and unpacked.
#include <xxhash.h>

#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "mask/block_mask.h"
#include "support/check.h"
#include "support/memo.h"
#include "tilewright/mask.h"

namespace tilewright {
namespace mask {
namespace {

constexpr std::uint32_t kMagic = 0x314b534d;  // "MSK1"

/// Appends numbers as words, low half first.
class Writer {
  public:
    void word(std::uint32_t value) { words_.push_back(value); }
    void number(std::int64_t value) {
        const auto bits = static_cast<std::uint64_t>(value);
        word(static_cast<std::uint32_t>(bits));
        word(static_cast<std::uint32_t>(bits >> 32));
    }
    const std::vector<std::uint32_t>& words() const { return words_; }

  private:
    std::vector<std::uint32_t> words_;
};

[[noreturn]] void refuse(const char* what) {
    user_error("from_packed", "expected the words of a block mask but got {}", what);
}

/// Reads what a Writer wrote; the words may hold anything.
class Reader {
  public:
    Reader(const std::uint32_t* words, std::size_t count) : next_(words), left_(count) {}

    std::uint32_t word() {
        if (left_ == 0) refuse("too few of them");
        --left_;
        return *next_++;
    }
    std::int64_t number() {
        const std::uint64_t low = word();
        return static_cast<std::int64_t>(low | std::uint64_t{word()} << 32);
    }
    std::int64_t number(std::int64_t least, std::int64_t most, const char* what) {
        const std::int64_t value = number();
        if (value < least || value > most) refuse(what);
        return value;
    }
    /// A number of items that take at least `words` words each.
    std::int64_t count(std::size_t words) {
        return number(0, static_cast<std::int64_t>(left_ / words), "a count beyond their end");
    }
    bool done() const { return left_ == 0; }

  private:
    const std::uint32_t* next_;
    std::size_t left_;
};

void read_rows(Reader& in, MaskData& data) {
    const std::int64_t rows = data.batch * data.heads * data.rows();
    if (in.count(2) != rows + 1) refuse("another number of rows");
    std::int64_t before = 0;
    for (std::int64_t row = 0; row <= rows; ++row) {
        before = in.number(before, row == 0 ? 0 : std::numeric_limits<std::int64_t>::max(),
                           "rows out of order");
        data.row_begin.push_back(before);
    }
}

void read_runs(Reader& in, MaskData& data) {
    const std::int64_t runs = in.count(4);
    if (data.row_begin.back() != runs) refuse("another number of runs");
    const std::int64_t columns = data.columns();
    std::size_t row = 0;
    std::int64_t end = 0, pieces = 0;
    for (std::int64_t i = 0; i < runs; ++i) {
        while (data.row_begin[row + 1] <= i) {
            ++row;
            end = 0;
        }
        Run run;
        const std::uint32_t first = in.word(), count = in.word();
        run.atoms = in.number();
        if (first < end || count < 1 || first > columns || count > columns - first)
            refuse("a run outside of its row");
        run.first = static_cast<std::int32_t>(first);
        run.count = static_cast<std::int32_t>(count);
        end = run.end();
        if (!run.full()) {
            if (run.atoms != pieces) refuse("pieces out of order");
            pieces += run.count;
        }
        data.runs.push_back(run);
    }
    if (in.count(1) != pieces) refuse("another number of pieces");
}

MaskData read_data(Reader& in) {
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    MaskData data;
    data.batch = in.number(1, kMost, "no batch");
    data.heads = in.number(1, kMost, "no heads");
    data.q_len = in.number(0, kMost, "a length out of range");
    data.kv_len = in.number(0, kMost, "a length out of range");
    if (data.batch > kMost / data.heads || data.batch * data.heads > kMost / (data.rows() + 1))
        refuse("too many rows");
    read_rows(in, data);
    read_runs(in, data);
    std::vector<std::uint32_t> ids;
    for (const Run& run : data.runs) {
        for (std::int32_t i = 0; !run.full() && i < run.count; ++i) ids.push_back(in.word());
    }
    const std::int64_t atoms = in.count(2 * kAtom);
    std::vector<AtomId> interned;
    for (std::int64_t i = 0; i < atoms; ++i) {
        Atom atom;
        for (std::uint64_t& row : atom) row = static_cast<std::uint64_t>(in.number());
        interned.push_back(data.atoms.intern(atom));
    }
    for (const std::uint32_t id : ids) {
        if (id >= interned.size()) refuse("the number of a piece that is not there");
        data.ids.push_back(interned[id]);
    }
    if (!in.done()) refuse("too many of them");
    return data;
}

BlockMask read(const std::uint32_t* words, std::size_t count) {
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    Reader in(words, count);
    if (in.word() != kMagic) refuse("others");
    auto state = std::make_shared<BlockMaskState>();
    state->batch = in.number(1, kMost, "no batch");
    state->heads = in.number(1, kMost, "no heads");
    const std::int64_t q = in.number(1, kMost, "an empty block");
    state->block_size = BlockSize(q, in.number(1, kMost, "an empty block"));
    MaskData data = read_data(in);
    if ((data.batch != 1 && data.batch != state->batch) ||
        (data.heads != 1 && data.heads != state->heads))
        refuse("another number of batches or heads");
    state->data = std::make_shared<const MaskData>(std::move(data));
    return BlockMask(std::move(state));
}

}  // namespace
}  // namespace mask

Tensor BlockMask::packed() const {
    const mask::BlockMaskState& mask = *state_;
    const mask::MaskData& data = *mask.data;
    mask::Writer out;
    out.word(mask::kMagic);
    for (const std::int64_t number : {mask.batch, mask.heads, mask.block_size.q, mask.block_size.kv,
                                      data.batch, data.heads, data.q_len, data.kv_len}) {
        out.number(number);
    }
    out.number(std::ssize(data.row_begin));
    for (const std::int64_t begin : data.row_begin) out.number(begin);
    // Ids are written run by run, since they may be stored in another order.
    std::int64_t pieces = 0;
    out.number(std::ssize(data.runs));
    for (const mask::Run& run : data.runs) {
        out.word(static_cast<std::uint32_t>(run.first));
        out.word(static_cast<std::uint32_t>(run.count));
        out.number(run.full() ? -1 : pieces);
        if (!run.full()) pieces += run.count;
    }
    out.number(pieces);
    for (const mask::Run& run : data.runs) {
        for (std::int32_t i = 0; !run.full() && i < run.count; ++i)
            out.word(data.ids[run.atoms + i]);
    }
    out.number(std::ssize(data.atoms.atoms()));
    for (const mask::Atom& atom : data.atoms.atoms()) {
        for (const std::uint64_t row : atom) out.number(static_cast<std::int64_t>(row));
    }
    return Tensor::from_vector(out.words(), {std::ssize(out.words())});
}

BlockMask BlockMask::from_packed(const Tensor& words) {
    if (words.dtype() != DType::u32 || words.rank() != 1)
        user_error("from_packed", "expected words of u32 (n) but got {}", words.type_name());
    const Tensor dense = words.contiguous();
    const auto* first = dense.data<std::uint32_t>();
    const std::size_t count = dense.size();
    // Compiled programs pass the same words in every call, so their masks, with their plans, are
    // cached.
    const XXH128_hash_t hash = XXH3_128bits(first, count * sizeof(std::uint32_t));
    const std::pair key(hash.low64, hash.high64);
    static auto* const kMasks = new Memo<std::pair<std::uint64_t, std::uint64_t>, BlockMask>(
        "masks of packed words", 16,
        [](const BlockMask& mask) { return static_cast<std::size_t>(mask.nbytes()); });
    return kMasks->get(key, [&] { return mask::read(first, count); });
}

}  // namespace tilewright
