// Runs matrix products and what prepares their operands.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "cpu/execute.h"
#include "cpu/execute_affine.h"

namespace tilewright::cpu {
namespace {

/// Elements from one index of `axis` to the next, within a panel.
std::int64_t stride_of(const ResolvedTile& tile, int axis) {
    return axis == tile.lane_axis ? 1 : tile.stride[axis];
}

/// The number of indices along `axis` with a constant stride, of `extent`.
std::int64_t run_of(const ResolvedTile& tile, int axis, std::int64_t extent) {
    return axis == tile.lane_axis ? tile.width : std::max<std::int64_t>(extent, 1);
}

/// Prefetches a row that is copied soon. Rows of an array are often on different pages, which
/// hardware prefetchers do not follow.
void prefetch_row(const std::byte* row, std::int64_t bytes) {
    constexpr std::int64_t kLine = 64;
    for (std::int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row + at);
}

/// How many rows ahead of the copy rows are prefetched.
constexpr std::int64_t kRowsAhead = 4;

/// Copies rows of `count_bytes` contiguous bytes.
void copy_rows(const std::byte* from, std::int64_t from_bytes, std::byte* to, std::int64_t to_bytes,
               std::int64_t rows, std::int64_t count_bytes) {
    for (std::int64_t i = 0; i < rows; ++i) {
        if (i + kRowsAhead < rows) prefetch_row(from + (i + kRowsAhead) * from_bytes, count_bytes);
        std::memcpy(to + i * to_bytes, from + i * from_bytes, count_bytes);
    }
}

/// One product, block by block.
class BlockedDot {
  public:
    BlockedDot(const Frame& frame, const Dot& dot)
        : dot_(dot),
          a_(resolve(frame, dot.broadcast)),
          b_(resolve(frame, dot.vector)),
          out_(resolve(frame, dot.out)),
          rows_(dot.out.shape[1]),
          lanes_(dot.out.shape[2]),
          width_(out_.lane_axis == 2 ? out_.width : kPanelLanes),
          // The broadcast operand is affine within its own panels.
          row_step_(run_of(a_, 1, rows_)),
          k_step_(run_of(a_, 2, dot.k)) {
        find_kept(frame, dot.kept_broadcast, dot.broadcast, a_);
        find_kept(frame, dot.kept_vector, dot.vector, b_);
        args_.ldc = stride_of(out_, 1);
        if (scales()) scale_ = resolve(frame, dot.scale);
        if (dot.maxima.home != Home::none) {
            maxima_ = reinterpret_cast<float*>(frame.address(dot.maxima.home, dot.maxima.index)) +
                      dot.maxima.offset;
        }
        if (dot.packed_broadcast.home != Home::none || dot.packed_vector.home != Home::none) {
            row_step_ = std::min(row_step_, Dot::kBlockRows);
            k_step_ = std::min(k_step_, Dot::kBlockDepth);
        }
        const std::int64_t a_row = stride_of(a_, 1), a_col = stride_of(a_, 2);
        const bool lines = a_row == 1 || a_col == 1;
        if (dot.packed_broadcast.home != Home::none && lines && lanes_ > width_ &&
            is_far(std::max(a_row, a_col), a_)) {
            packed_a_ = frame.address(dot.packed_broadcast.home, dot.packed_broadcast.index);
        }
        if (dot.packed_vector.home != Home::none && is_far(stride_of(b_, 1), b_)) {
            packed_b_ = frame.address(dot.packed_vector.home, dot.packed_vector.index);
        }
        // A loop over an array's blocks soon reads the next block: further along k, where the rows
        // of A are columns of the array.
        const bool reads_array =
            dot.broadcast.home == Home::view && frame.views[dot.broadcast.index].in_array;
        if (reads_array && a_row == 1 && a_col != 1) next_a_ = dot.k * a_col * a_.element;
        in_array_ = dot.stored_ref >= 0 && frame.views[dot.out.index].in_array;
        set_unread(frame);
    }

    void run() {
        if (maxima_) clear_maxima();
        for (std::int64_t batch = 0; batch < dot_.batch; ++batch) {
            for (std::int64_t k = 0; k == 0 || k < dot_.k; k += k_step_) {
                args_.k = std::min(k_step_, dot_.k - k);
                args_.accumulate = dot_.accumulate || k > 0;
                args_.prefetch_c = in_array_ && k == 0;
                const std::byte* b = b_.at(b_.offset(0, batch) + b_.offset(1, k));
                if (packed_b_) pack_vector(b);
                for (std::int64_t row = 0; row < rows_; row += row_step_) {
                    args_.m = std::min(row_step_, rows_ - row);
                    set_broadcast(a_.at(a_.offset(0, batch) + a_.offset(1, row) + a_.offset(2, k)));
                    for (std::int64_t lane = 0; lane < lanes_; lane += width_) {
                        args_.n = std::min(width_, lanes_ - lane);
                        args_.b = packed_b_ ? packed_b_ + lane * args_.k * b_.element
                                            : b + b_.offset(2, lane) * b_.element;
                        args_.ldb = packed_b_ ? width_ : stride_of(b_, dot_.by_rows ? 2 : 1);
                        args_.c = out_.at(out_.offset(0, batch) + out_.offset(1, row) +
                                          out_.offset(2, lane));
                        if (scales()) set_scale(batch, row, lane, k);
                        if (maxima_ && k + k_step_ >= dot_.k) args_.maxima = maxima_of(lane);
                        if (num_unread_ > 0) {
                            multiply_read(row, lane);
                        } else {
                            dot_.function(args_);
                        }
                        args_.next_a = nullptr;
                    }
                }
            }
        }
    }

  private:
    /// Points an operand to its block where that is kept.
    static void find_kept(const Frame& frame, int kept, const Tile& tile, ResolvedTile& operand) {
        if (kept < 0 || frame.kept == nullptr) return;
        std::byte* const block = frame.kept[kept].current();
        if (block != nullptr) operand.data = block + tile.offset * operand.element;
    }
    bool scales() const { return dot_.scale.home != Home::none; }
    /// Where the maxima of the panel with this lane are.
    float* maxima_of(std::int64_t lane) const {
        return maxima_ + lane / width_ * dot_.maxima.panel_stride;
    }
    void clear_maxima() const {
        for (std::int64_t lane = 0; lane < lanes_; lane += width_) {
            std::fill_n(maxima_of(lane), std::min(width_, lanes_ - lane),
                        -std::numeric_limits<float>::infinity());
        }
    }
    /// Sets the factor of the block of C at (row, lane) for its first step of k.
    void set_scale(std::int64_t batch, std::int64_t row, std::int64_t lane, std::int64_t k) {
        const void*& scale = scale_.stride[2] == 1 ? args_.lane_scale : args_.row_scale;
        scale = k > 0 ? nullptr
                      : scale_.at(scale_.offset(0, batch) + scale_.offset(1, row) +
                                  scale_.offset(2, lane));
    }
    /// A form of Dot::unread, at row and lane 0.
    struct Unread {
        std::int64_t base, row, lane;
    };
    /// Everything is computed where positions might not fit 32 bits: the chain, too, then goes
    /// element by element, and reads what it does not use.
    void set_unread(const Frame& frame) {
        constexpr std::int64_t kMost = std::int64_t{1} << 27;  // of each of three terms
        for (const Affine& form : dot_.unread) {
            const std::int64_t base = base_of(frame, form);
            const bool fits = std::abs(base) <= kMost && std::abs(form.row) <= kMost / rows_ &&
                              std::abs(form.lane) <= kMost / lanes_ &&
                              words_fit(frame, form, rows_, lanes_);
            if (!fits || num_unread_ == unread_.size()) {
                num_unread_ = 0;
                return;
            }
            unread_[num_unread_++] = {base, form.row, form.lane};
        }
    }
    /// The product of args_ for those rows of which some element is read.
    void multiply_read(std::int64_t row, std::int64_t lane) const {
        std::int64_t first = row, last = row + args_.m;
        for (std::size_t i = 0; i < num_unread_; ++i) {
            const Unread& form = unread_[i];
            const std::int64_t most =  // of row 0
                form.base + form.lane * lane + std::max<std::int64_t>(form.lane * (args_.n - 1), 0);
            if (form.row > 0) {
                first = std::max(first, ceil_div(-most, form.row));
            } else if (form.row < 0) {
                last = std::min(last, -ceil_div(-most, -form.row) + 1);
            } else if (most < 0) {
                return;
            }
        }
        if (first >= last) return;
        GemmArgs args = args_;
        args.m = last - first;
        args.a = static_cast<const std::byte*>(args.a) + (first - row) * args.a_row * a_.element;
        args.c = static_cast<std::byte*>(args.c) + (first - row) * args.ldc * out_.element;
        dot_.function(args);
    }
    static bool is_far(std::int64_t stride, const ResolvedTile& tile) {
        return stride * tile.element > LoadView::kFarRows;
    }

    /// Packs the block of B from `b` on into panels of `width_` lanes.
    void pack_vector(const std::byte* b) {
        const std::int64_t element = b_.element, line = stride_of(b_, 1) * element;
        for (std::int64_t k = 0; k < args_.k; ++k, b += line) {
            if (k + kRowsAhead < args_.k) prefetch_row(b + kRowsAhead * line, lanes_ * element);
            for (std::int64_t lane = 0; lane < lanes_; lane += width_) {
                std::memcpy(packed_b_ + (lane * args_.k + k * width_) * element, b + lane * element,
                            std::min(width_, lanes_ - lane) * element);
            }
        }
    }

    /// Sets A to its block from `a` on, or to a copy of it.
    void set_broadcast(const std::byte* a) {
        args_.a_row = stride_of(a_, 1);
        args_.a_col = stride_of(a_, 2);
        args_.a = a;
        args_.next_a = next_a_ ? a + next_a_ : nullptr;
        if (!packed_a_) return;
        const std::int64_t element = a_.element;
        std::int64_t& line = args_.a_col == 1 ? args_.a_row : args_.a_col;
        const std::int64_t lines = args_.a_col == 1 ? args_.m : args_.k;
        const std::int64_t count = args_.a_col == 1 ? args_.k : args_.m;
        const std::int64_t packed_line =
            (args_.a_col == 1 ? Dot::kBlockDepth : Dot::kBlockRows) + Dot::kGap;
        copy_rows(a, line * element, packed_a_, packed_line * element, lines, count * element);
        line = packed_line;
        args_.a = packed_a_;
        args_.next_a = nullptr;
    }

    const Dot& dot_;
    ResolvedTile a_, b_, out_, scale_;
    std::int64_t rows_, lanes_, width_;
    std::int64_t row_step_, k_step_;
    std::byte* packed_a_ = nullptr;
    std::byte* packed_b_ = nullptr;
    std::int64_t next_a_ = 0;  ///< bytes to the next block; 0: unknown
    bool in_array_ = false;    ///< the result is
    float* maxima_ = nullptr;
    std::array<Unread, 4> unread_;
    std::size_t num_unread_ = 0;
    GemmArgs args_;
};

/// While it lives, this thread's f32 arithmetic treats subnormal numbers as zero: on some machines
/// each of them costs as much as a hundred products.
class FlushSubnormals {
  public:
#if defined(__SSE__)
    FlushSubnormals() : before_(_mm_getcsr()) {
        constexpr unsigned kResults = 1U << 15, kOperands = 1U << 6;
        _mm_setcsr(before_ | kResults | kOperands);
    }
    ~FlushSubnormals() {
        _mm_setcsr(before_);
    }
    FlushSubnormals(const FlushSubnormals&) = delete;
    FlushSubnormals& operator=(const FlushSubnormals&) = delete;

  private:
    unsigned before_;
#else
    FlushSubnormals() {}
#endif
};

}  // namespace

void execute(Frame& frame, const Dot& dot) {
    if (dot.dtype != DType::f32) return BlockedDot(frame, dot).run();
    const FlushSubnormals flush;
    BlockedDot(frame, dot).run();
}

void execute(Frame& frame, const Interleave& interleave) {
    const ResolvedTile in = resolve(frame, interleave.in);
    ResolvedTile out = resolve(frame, interleave.out);
    if (interleave.kept >= 0 && frame.kept != nullptr) {
        KeptBlocks& kept = frame.kept[interleave.kept];
        kept.leave();
        if (frame.views[interleave.in.index].in_array && kept.find(in.data)) return;
        if (kept.current() != nullptr) out.data = kept.current();
    }
    const ir::Shape& shape = interleave.in.shape;
    Strip strip;
    strip.rows = shape[1];
    strip.in[0].row_stride = stride_of(in, 1);
    strip.in[0].lane_stride = 1;
    strip.out_row_stride = stride_of(out, 1);
    const auto left_in_panel = [&](const ResolvedTile& tile, std::int64_t lane) {
        return tile.lane_axis == 2 ? tile.width - lane % tile.width : shape[2] - lane;
    };
    for (std::int64_t batch = 0; batch < shape[0]; ++batch) {
        for (std::int64_t lane = 0; lane < shape[2]; lane += strip.lanes) {
            strip.lanes =
                std::min({shape[2] - lane, left_in_panel(in, lane), left_in_panel(out, lane)});
            strip.in[0].data = in.at(in.offset(0, batch) + in.offset(2, lane));
            strip.out = out.at(out.offset(0, batch) + out.offset(2, lane));
            interleave.function(strip);
        }
    }
}

}  // namespace tilewright::cpu
