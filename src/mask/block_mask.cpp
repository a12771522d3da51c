// BlockMask: the public interface of masks.
#include "mask/block_mask.h"

#include <algorithm>
#include <numeric>
#include <ostream>

#include "mask/build.h"
#include "mask/check_indices.h"
#include "mask/dense.h"
#include "mask/draw.h"
#include "mask/picture.h"
#include "mod/elements.h"
#include "mod/evaluate.h"
#include "mod/traced.h"
#include "support/check.h"
#include "support/write_file.h"
#include "tilewright/run.h"

namespace tilewright {

using mask::BlockMaskState;
using mask::MaskData;

namespace {

void check_sizes(const char* op, std::int64_t batch, std::int64_t heads, std::int64_t q_len,
                 std::int64_t kv_len, BlockSize block_size) {
    if (batch < 1 || heads < 1)
        user_error(op, "expected at least 1 batch and 1 head (1 broadcasts) but got {} and {}",
                   batch, heads);
    constexpr std::int64_t kLimit = std::int64_t{1} << 36;
    if (q_len < 0 || kv_len < 0 || q_len > kLimit || kv_len > kLimit)
        user_error(op, "expected q_len and kv_len of 0 to 2^36 but got {} and {}", q_len, kv_len);
    if (block_size.q < 1 || block_size.kv < 1)
        user_error(op, "expected block sizes of at least 1 but got ({}, {})", block_size.q,
                   block_size.kv);
}

BlockMask wrap(std::shared_ptr<const MaskData> data, std::int64_t batch, std::int64_t heads,
               BlockSize block_size) {
    auto state = std::make_shared<BlockMaskState>();
    state->batch = batch;
    state->heads = heads;
    state->block_size = block_size;
    state->data = std::move(data);
    return BlockMask(std::move(state));
}

BlockMask wrap(MaskData data, std::int64_t batch, std::int64_t heads, BlockSize block_size) {
    return wrap(std::make_shared<const MaskData>(std::move(data)), batch, heads, block_size);
}

const BlockMaskState& state_of(const char* op, const BlockMask& mask) {
    if (!mask.defined()) user_error(op, "expected a mask but got none");
    return *mask.state();
}

std::int64_t checked_index(const char* what, std::int64_t index, std::int64_t extent) {
    if (index < -extent || index >= extent)
        user_error("BlockMask.select", "expected a {} of {} to {} but got {}", what, -extent,
                   extent - 1, index);
    return index < 0 ? index + extent : index;
}

std::vector<std::int64_t> range(std::int64_t first, std::int64_t count) {
    std::vector<std::int64_t> places(count);
    std::iota(places.begin(), places.end(), first);
    return places;
}

BlockMask combine(const char* op, const BlockMask& a, const BlockMask& b, mask::Combine how) {
    const BlockMaskState &x = state_of(op, a), &y = state_of(op, b);
    if (a.seq_lengths() != b.seq_lengths())
        user_error(op, "expected masks of equal lengths but got {} x {} and {} x {}", x.data->q_len,
                   x.data->kv_len, y.data->q_len, y.data->kv_len);
    const auto fits = [](std::int64_t m, std::int64_t n) { return m == n || m == 1 || n == 1; };
    if (!fits(x.batch, y.batch) || !fits(x.heads, y.heads))
        user_error(op,
                   "expected batches and heads that are equal or 1 but got ({}, {}) and ({}, "
                   "{})",
                   x.batch, x.heads, y.batch, y.heads);
    return wrap(mask::combined(*x.data, *y.data, how), std::max(x.batch, y.batch),
                std::max(x.heads, y.heads), x.block_size);
}

/// UserError if the mod reads an array without elements for any pair of these sizes.
void expect_elements(const char* op, const Mod& mod, const Tensor::Dims& sizes) {
    if (!mod.defined() || std::ranges::find(sizes, 0) != sizes.end()) return;
    mod::expect_elements(op, mod::trace(mod).captures);
}

}  // namespace

BlockMask BlockMask::from_dense(const Tensor& dense, BlockSize block_size) {
    MaskData data = mask::from_dense(dense);
    check_sizes("from_dense", data.batch, data.heads, data.q_len, data.kv_len, block_size);
    const std::int64_t batch = data.batch, heads = data.heads;
    return wrap(std::move(data), batch, heads, block_size);
}

BlockMask BlockMask::from_kv_blocks(const Tensor& kv_num_blocks, const Tensor& kv_indices,
                                    const Tensor& full_kv_num_blocks, const Tensor& full_kv_indices,
                                    BlockSize block_size, const Mod& mask_mod,
                                    std::optional<std::array<std::int64_t, 2>> lengths) {
    check_sizes("from_kv_blocks", 1, 1, 0, 0, block_size);
    const std::int64_t columns =
        lengths && (*lengths)[1] > 0 ? ((*lengths)[1] - 1) / block_size.kv + 1 : 0;
    mask::BlockLevel level =
        mask::parse_lists(kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices, columns);
    const std::array<std::int64_t, 2> size =
        lengths.value_or(std::array{level.rows * block_size.q, level.columns * block_size.kv});
    check_sizes("from_kv_blocks", level.batch, level.heads, size[0], size[1], block_size);
    const auto fits = [](std::int64_t length, std::int64_t blocks, std::int64_t block) {
        return (length == 0 ? 0 : (length - 1) / block + 1) == blocks;
    };
    if (!fits(size[0], level.rows, block_size.q) || !fits(size[1], level.columns, block_size.kv))
        user_error("from_kv_blocks",
                   "expected lengths of {} x {} blocks of ({}, {}) but got {} x {}", level.rows,
                   level.columns, block_size.q, block_size.kv, size[0], size[1]);
    MaskData data = mask::pairs_of(level, false, block_size, size[0], size[1]);
    if (mask_mod.defined()) {
        if (checked()) {
            mask::check_indices("from_kv_blocks", mask_mod, level.batch, level.heads, size[0],
                                size[1]);
        }
        const MaskData visible = mask::build(mask::MaskFunction::of("from_kv_blocks", mask_mod),
                                             level.batch, level.heads, size[0], size[1]);
        data = mask::combined(data, visible, mask::Combine::both);
    }
    data = mask::combined(data, mask::pairs_of(level, true, block_size, size[0], size[1]),
                          mask::Combine::either);
    auto state = std::make_shared<BlockMaskState>();
    state->batch = level.batch;
    state->heads = level.heads;
    state->block_size = block_size;
    state->data = std::make_shared<const MaskData>(std::move(data));
    // Blocks that the caller calls partial stay so, even if every pair attends.
    state->made_level = std::make_shared<const mask::BlockLevel>(std::move(level));
    return BlockMask(std::move(state));
}

std::array<std::int64_t, 4> BlockMask::shape() const {
    const BlockMaskState& state = state_of("BlockMask.shape", *this);
    return {state.batch, state.heads, state.data->q_len, state.data->kv_len};
}

std::array<std::int64_t, 2> BlockMask::seq_lengths() const {
    const auto dims = shape();
    return {dims[2], dims[3]};
}

std::int64_t BlockMask::numel() const {
    const auto dims = shape();
    return dims[0] * dims[1] * dims[2] * dims[3];
}

BlockSize BlockMask::block_size() const {
    return state_of("BlockMask.block_size", *this).block_size;
}

BlockMask BlockMask::with_block_size(BlockSize block_size) const {
    const BlockMaskState& state = state_of("BlockMask.with_block_size", *this);
    check_sizes("BlockMask.with_block_size", 1, 1, 0, 0, block_size);
    return wrap(state.data, state.batch, state.heads, block_size);
}

bool BlockMask::attends(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) const {
    const auto dims = shape();
    const std::int64_t index[] = {b, h, q, kv};
    for (std::size_t d = 0; d < 4; ++d) {
        if (index[d] < 0 || index[d] >= dims[d])
            user_error("BlockMask.attends",
                       "expected an index below ({}, {}, {}, {}) but got ({}, "
                       "{}, {}, {})",
                       dims[0], dims[1], dims[2], dims[3], b, h, q, kv);
    }
    return state_->data->get(b, h, q, kv);
}

Tensor BlockMask::elements() const {
    const BlockMaskState& state = state_of("BlockMask.elements", *this);
    return mask::to_dense(*state.data, state.batch, state.heads);
}

double BlockMask::sparsity() const {
    const mask::BlockLevel& level = state_of("BlockMask.sparsity", *this).level();
    std::int64_t visited = 0;
    for (const mask::BlockSpan& span : level.spans) visited += span.count;
    const double blocks = static_cast<double>(level.batch * level.heads * level.rows) *
                          static_cast<double>(level.columns);
    return blocks == 0 ? 0 : 100 * (1 - static_cast<double>(visited) / blocks);
}

Tensor BlockMask::to_dense() const {
    const BlockMaskState& state = state_of("BlockMask.to_dense", *this);
    const mask::BlockLevel& level = state.level();
    Tensor dense = Tensor::zeros(i32, {level.batch, level.heads, level.rows, level.columns});
    auto* out = dense.data<std::int32_t>();
    for (std::int64_t row = 0; row < level.batch * level.heads * level.rows; ++row) {
        for (const mask::BlockSpan& span : level.row(row))
            std::fill_n(out + span.first, span.count, 1);
        out += level.columns;
    }
    return dense.broadcast_to({state.batch, state.heads, level.rows, level.columns});
}

BlockLists BlockMask::kv_blocks() const {
    const BlockMaskState& state = state_of("BlockMask.kv_blocks", *this);
    return mask::lists(state.level(), false, state.batch, state.heads);
}
BlockLists BlockMask::full_kv_blocks() const {
    const BlockMaskState& state = state_of("BlockMask.full_kv_blocks", *this);
    return mask::lists(state.level(), true, state.batch, state.heads);
}
BlockLists BlockMask::q_blocks() const {
    const BlockMaskState& state = state_of("BlockMask.q_blocks", *this);
    return mask::lists(mask::transposed(state.level()), false, state.batch, state.heads);
}
BlockLists BlockMask::full_q_blocks() const {
    const BlockMaskState& state = state_of("BlockMask.full_q_blocks", *this);
    return mask::lists(mask::transposed(state.level()), true, state.batch, state.heads);
}

BlockMask BlockMask::at(std::int64_t b) const {
    const BlockMaskState& state = state_of("BlockMask.at", *this);
    return select({b}, range(0, state.heads));
}

BlockMask BlockMask::at(std::int64_t b, std::int64_t h) const {
    return select({b}, {h});
}

BlockMask BlockMask::select(std::vector<std::int64_t> batches,
                            std::vector<std::int64_t> heads) const {
    const BlockMaskState& state = state_of("BlockMask.select", *this);
    if (batches.empty() || heads.empty())
        user_error("BlockMask.select", "expected at least one batch and one head but got {} and {}",
                   batches.size(), heads.size());
    for (std::int64_t& b : batches) b = checked_index("batch", b, state.batch);
    for (std::int64_t& h : heads) h = checked_index("head", h, state.heads);
    return wrap(mask::selected_heads(*state.data, batches, heads), std::ssize(batches),
                std::ssize(heads), state.block_size);
}

BlockMask BlockMask::part(std::int64_t b, std::int64_t batches, std::int64_t h,
                          std::int64_t heads) const {
    const BlockMaskState& state = state_of("BlockMask.part", *this);
    const auto check = [](const char* what, std::int64_t first, std::int64_t count,
                          std::int64_t extent) {
        if (extent == 1 || (first >= 0 && count >= 0 && first + count <= extent)) return;
        user_error("BlockMask.part", "expected {} inside of {} but got {} from {} on", what, extent,
                   count, first);
    };
    check("batches", b, batches, state.batch);
    check("heads", h, heads, state.heads);
    if (state.batch == 1) batches = 1;
    if (state.heads == 1) heads = 1;
    return wrap(mask::selected_heads(*state.data, range(b, batches), range(h, heads)), batches,
                heads, state.block_size);
}

BlockMask BlockMask::q_rows(std::int64_t first, std::int64_t count) const {
    const BlockMaskState& state = state_of("BlockMask.q_rows", *this);
    const std::int64_t rows = state.level().rows;
    if (first < 0 || count < 0 || first + count > rows)
        user_error("BlockMask.q_rows", "expected rows within 0 to {} but got {} rows from {} on",
                   rows, count, first);
    const std::int64_t q = first * state.block_size.q;
    const std::int64_t q_len = std::min(count * state.block_size.q, state.data->q_len - q);
    return wrap(
        mask::window(*state.data, q, std::max<std::int64_t>(q_len, 0), 0, state.data->kv_len),
        state.batch, state.heads, state.block_size);
}

BlockMask BlockMask::shifted(std::int64_t q_offset, std::int64_t kv_offset, std::int64_t q_len,
                             std::int64_t kv_len) const {
    const BlockMaskState& state = state_of("BlockMask.shifted", *this);
    check_sizes("BlockMask.shifted", 1, 1, q_len, kv_len, state.block_size);
    return wrap(mask::window(*state.data, q_offset, q_len, kv_offset, kv_len), state.batch,
                state.heads, state.block_size);
}

bool BlockMask::operator==(const BlockMask& other) const {
    if (!defined() || !other.defined()) return defined() == other.defined();
    return state_->batch == other.state_->batch && state_->heads == other.state_->heads &&
           mask::equal(*state_->data, *other.state_->data);
}

std::int64_t BlockMask::nbytes() const {
    return state_of("BlockMask.nbytes", *this).data->nbytes();
}

std::string BlockMask::to_string(std::array<std::int64_t, 2> grid, std::int64_t limit) const {
    const BlockMaskState& state = state_of("BlockMask.to_string", *this);
    if (grid[0] < 1 || grid[1] < 1)
        user_error("BlockMask.to_string", "expected a grid of at least 1 x 1 but got {} x {}",
                   grid[0], grid[1]);
    std::string text =
        fmt::format("BlockMask(shape=({}, {}, {}, {}), sparsity={:.2f}%,\n", state.batch,
                    state.heads, state.data->q_len, state.data->kv_len, sparsity());
    return text + mask::characters(state.level(), grid[0], grid[1], limit) + ")";
}

std::string BlockMask::svg() const {
    return mask::svg(*state_of("BlockMask.svg", *this).data);
}

std::string BlockMask::png() const {
    return mask::png(*state_of("BlockMask.png", *this).data);
}

void BlockMask::save(const std::string& path) const {
    const bool as_png = path.ends_with(".png");
    if (!as_png && !path.ends_with(".svg"))
        user_error("BlockMask.save", "expected a file name that ends in .svg or .png but got {}",
                   path);
    const std::string bytes = as_png ? png() : svg();
    write_file("BlockMask.save", path, [&](std::ostream& file) { file << bytes; });
}

BlockMask operator&(const BlockMask& a, const BlockMask& b) {
    return combine("BlockMask &", a, b, mask::Combine::both);
}
BlockMask operator|(const BlockMask& a, const BlockMask& b) {
    return combine("BlockMask |", a, b, mask::Combine::either);
}
BlockMask operator~(const BlockMask& a) {
    const BlockMaskState& state = state_of("BlockMask ~", a);
    return wrap(mask::complement(*state.data), state.batch, state.heads, state.block_size);
}

std::ostream& operator<<(std::ostream& out, const BlockMask& mask) {
    return out << (mask.defined() ? mask.to_string() : "BlockMask()");
}

BlockMask create_block_mask(const Mod& mod, std::int64_t batch, std::int64_t heads,
                            std::int64_t q_len, std::int64_t kv_len, BlockSize block_size) {
    check_sizes("create_block_mask", batch, heads, q_len, kv_len, block_size);
    expect_elements("create_block_mask", mod, {batch, heads, q_len, kv_len});
    if (checked()) mask::check_indices("create_block_mask", mod, batch, heads, q_len, kv_len);
    return wrap(mask::build_kept(mask::MaskFunction::of("create_block_mask", mod), batch, heads,
                                 q_len, kv_len),
                batch, heads, block_size);
}

Tensor create_mask(const Mod& mod, std::int64_t batch, std::int64_t heads, std::int64_t q_len,
                   std::int64_t kv_len) {
    check_sizes("create_mask", batch, heads, q_len, kv_len, {});
    expect_elements("create_mask", mod, {batch, heads, q_len, kv_len});
    if (checked()) mask::check_indices("create_mask", mod, batch, heads, q_len, kv_len);
    return mask::evaluate_dense(mask::MaskFunction::of("create_mask", mod), batch, heads, q_len,
                                kv_len);
}

Tensor create_scores(const Mod& mod, const Tensor& scores) {
    const char* const op = "create_scores";
    mod::expect_kind(op, "score_mod", mod, Mod::Kind::score);
    const bool is_wide = scores.defined() && scores.dtype() == f64;
    if (!scores.defined() || scores.rank() != 4 || !(is_wide || scores.dtype() == f32))
        user_error(op, "expected scores (b, h, q, kv) of f32 or f64 but got {}",
                   scores.type_name());
    const auto& shape = scores.shape();
    expect_elements(op, mod, shape);
    if (checked()) mask::check_indices(op, mod, shape[0], shape[1], shape[2], shape[3]);
    mod::Traced traced = mod::trace(mod, scores.dtype());
    std::vector<Tensor> captures;
    for (const Capture& capture : traced.captures)
        captures.push_back(capture.tensor().to(Device{}));
    mod::Evaluator evaluator(*traced.function, std::move(captures));
    const Tensor given = scores.to(Device{}).contiguous();
    Tensor result = Tensor::empty(scores.dtype(), shape);
    std::int64_t at = 0;
    for (std::int64_t b = 0; b < shape[0]; ++b) {
        for (std::int64_t h = 0; h < shape[1]; ++h) {
            for (std::int64_t q = 0; q < shape[2]; ++q) {
                for (std::int64_t kv = 0; kv < shape[3]; ++kv, ++at) {
                    if (is_wide) {
                        result.data<double>()[at] =
                            evaluator.score(given.data<double>()[at], b, h, q, kv);
                    } else {
                        result.data<float>()[at] = static_cast<float>(evaluator.score(
                            static_cast<double>(given.data<float>()[at]), b, h, q, kv));
                    }
                }
            }
        }
    }
    return result;
}

namespace mask {

const BlockLevel& BlockMaskState::level() const {
    const std::scoped_lock lock(mutex);
    if (!made_level)
        made_level = std::make_shared<const BlockLevel>(block_level(*data, block_size));
    return *made_level;
}

std::shared_ptr<const MaskPlan> BlockMaskState::plan(const PlanOptions& options) const {
    const std::scoped_lock lock(mutex);
    auto& plan = plans[options];
    if (!plan) plan = std::make_shared<const MaskPlan>(make_plan(*data, options));
    return plan;
}

double BlockMaskState::pieces_of_row() const {
    const std::scoped_lock lock(mutex);
    if (!counted_pieces) {
        const std::int64_t rows = data->batch * data->heads * data->rows();
        std::int64_t pieces = 0;
        for (const Run& run : data->runs) pieces += run.count;
        counted_pieces = rows == 0 ? 0.0 : static_cast<double>(pieces) / static_cast<double>(rows);
    }
    return *counted_pieces;
}

double pieces_of_row(const BlockMask& mask) {
    return state_of("pieces_of_row", mask).pieces_of_row();
}

std::shared_ptr<const MaskPlan> plan(const BlockMask& mask, const PlanOptions& options) {
    return state_of("mask_plan", mask).plan(options);
}

void check_fits(const char* op, const BlockMask& mask, std::int64_t batch, std::int64_t heads,
                std::int64_t q_len, std::int64_t kv_len) {
    const auto dims = mask.shape();
    if (dims[2] != q_len || dims[3] != kv_len)
        user_error(op,
                   "expected a block mask of {} queries and {} keys but got {} and {}; build it "
                   "for these lengths, or cut it with shifted",
                   q_len, kv_len, dims[2], dims[3]);
    if ((dims[0] != 1 && dims[0] != batch) || (dims[1] != 1 && dims[1] != heads))
        user_error(op,
                   "expected a block mask with the batches and heads of query, {} and {}, or 1 of "
                   "either, but got {} and {}",
                   batch, heads, dims[0], dims[1]);
}

bool equal(const MaskData& a, const MaskData& b) {
    if (a.q_len != b.q_len || a.kv_len != b.kv_len) return false;
    const std::int64_t batch = std::max(a.batch, b.batch), heads = std::max(a.heads, b.heads);
    const auto row_of = [](const MaskData& m, std::int64_t i, std::int64_t j) {
        return ((m.batch == 1 ? 0 : i) * m.heads + (m.heads == 1 ? 0 : j)) * m.rows();
    };
    for (std::int64_t head = 0; head < batch * heads; ++head) {
        const std::int64_t x = row_of(a, head / heads, head % heads),
                           y = row_of(b, head / heads, head % heads);
        for (std::int64_t row = 0; row < a.rows(); ++row) {
            const auto left = a.row(x + row), right = b.row(y + row);
            if (left.size() != right.size()) return false;
            for (std::size_t i = 0; i < left.size(); ++i) {
                const Run &m = left[i], &n = right[i];
                if (m.first != n.first || m.count != n.count || m.full() != n.full()) return false;
                for (std::int32_t k = 0; !m.full() && k < m.count; ++k) {
                    if (a.atoms[a.ids[m.atoms + k]] != b.atoms[b.ids[n.atoms + k]]) return false;
                }
            }
        }
    }
    return true;
}

}  // namespace mask
}  // namespace tilewright
