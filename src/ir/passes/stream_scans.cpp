// Scans of axes that are too long for a tile, piece by piece.
#include "ir/passes/stream_scans.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ir/access.h"
#include "ir/builder.h"
#include "ir/passes/effects.h"

namespace tilewright::ir {
namespace {

bool is_scan(Op op) {
    return op == Op::scan || op == Op::associative_scan;
}

int axis_of(const Instruction& scan) {
    return scan.op == Op::scan ? scan.get<ReduceAttributes>().axis
                               : scan.get<CombineAttributes>().axis;
}

bool is_reverse(const Instruction& scan) {
    return scan.op == Op::scan ? scan.get<ReduceAttributes>().reverse
                               : scan.get<CombineAttributes>().reverse;
}

/// The operation that combines the results of pieces, if there is one with the same rounding.
std::optional<Op> joining_op(const Instruction& scan, DType dtype) {
    const auto& how = scan.get<ReduceAttributes>();
    const bool rounds = is_float(dtype) && size_of(dtype) < 4;
    if (how.exclusive) return std::nullopt;
    switch (how.kind) {
        case Reduction::sum:
            return rounds ? std::nullopt : std::optional(Op::add);
        case Reduction::prod:
            return rounds ? std::nullopt : std::optional(Op::mul);
        case Reduction::max:
        case Reduction::any:
            return Op::max;
        case Reduction::min:
        case Reduction::all:
            return Op::min;
        default:
            return std::nullopt;
    }
}

class Streaming {
  public:
    Streaming(Function& function, std::int64_t max_elements)
        : f_(function), builder_(function), max_elements_(max_elements) {}

    StreamScansReport run() {
        StreamScansReport report;
        if (!find_scans()) return report;
        find_axes();
        if (refusal_.empty()) check_effects();
        if (refusal_.empty()) choose_piece();
        report.refusal = refusal_;
        if (!refusal_.empty()) return report;
        rewrite();
        report.scans = scans_;
        return report;
    }

  private:
    void refuse(std::string reason) {
        if (refusal_.empty()) refusal_ = std::move(reason);
    }
    const Shape& shape(Value value) const { return f_.type(value).shape; }
    bool is_tile(Value value) const { return !f_.is_ref(value) && !f_.type(value).is_scalar(); }

    // ---- What has the axis.

    bool find_scans() {
        for (const Instruction& made : f_.body.body) {
            if (!is_scan(made.op) || shape(made.result())[axis_of(made)] <= extent_) continue;
            extent_ = shape(made.result())[axis_of(made)];
            reverse_ = is_reverse(made);
        }
        return extent_ > 1;
    }

    void mark(Value value, int axis) {
        if (!is_tile(value)) return;
        const auto [entry, added] = axes_.try_emplace(value, axis);
        changed_ |= added;
        if (entry->second != axis) refuse("a tile has the axis of the scan twice");
    }
    std::optional<int> marked(Value value) const {
        const auto found = axes_.find(value);
        return found == axes_.end() ? std::nullopt : std::optional(found->second);
    }
    /// All of these have the axis at one place, if one of them has it.
    void same(const std::vector<Value>& values) {
        for (const Value value : values) {
            if (f_.is_ref(value)) continue;
            if (const auto axis = marked(value)) {
                for (const Value other : values) {
                    if (!f_.is_ref(other)) mark(other, *axis);
                }
                return;
            }
        }
    }

    void find_axes() {
        for (const Instruction& made : f_.body.body) {
            if (!is_scan(made.op)) continue;
            if (shape(made.result())[axis_of(made)] != extent_) continue;
            mark(made.result(), axis_of(made));
        }
        do {
            changed_ = false;
            for (const Instruction& made : f_.body.body) follow(made);
        } while (changed_ && refusal_.empty());
        for (const Instruction& made : f_.body.body) {
            const auto has_axis = [&](Value value) { return marked(value).has_value(); };
            const bool in = std::any_of(made.operands.begin(), made.operands.end(), has_axis);
            const bool out = std::any_of(made.results.begin(), made.results.end(), has_axis);
            if (!made.blocks.empty()) refuse("the kernel has loops or branches");
            if (in && !out && made.op != Op::store) {
                refuse(fmt::format("`{}` reads the whole axis", name(made.op)));
            }
            if (out && !has_pieces(made.op)) {
                refuse(fmt::format("`{}` makes the whole axis", name(made.op)));
            }
            if (out && is_scan(made.op) && axis_of(made) == *marked(made.result()))
                check_scan(made);
        }
    }

    static bool has_pieces(Op op) {
        constexpr std::array kOthers = {Op::random_bits, Op::load,      Op::constant,
                                        Op::iota,        Op::broadcast, Op::expand_dims,
                                        Op::transpose,   Op::reduce};
        return is_elementwise(op) || is_scan(op) ||
               std::find(kOthers.begin(), kOthers.end(), op) != kOthers.end();
    }

    void check_scan(const Instruction& made) {
        ++scans_;
        if (is_reverse(made) != reverse_) refuse("scans go in both directions");
        if (made.op == Op::scan && !joining_op(made, f_.type(made.result()).dtype)) {
            refuse(fmt::format("pieces of a scan of {} in {} are not joined exactly",
                               name(made.get<ReduceAttributes>().kind),
                               tilewright::name(f_.type(made.result()).dtype)));
        }
    }

    void follow(const Instruction& made) {
        const Op op = made.op;
        if (is_elementwise(op) || op == Op::random_bits || is_scan(op)) {
            std::vector<Value> values = made.results;
            values.insert(values.end(), made.operands.begin(), made.operands.end());
            return same(values);
        }
        if (is_access(op)) {
            std::vector<Value> values = made.results;
            const Access parts = access(made);
            values.insert(values.end(), parts.values.begin(), parts.values.end());
            if (parts.mask) values.push_back(parts.mask);
            if (parts.other) values.push_back(parts.other);
            same(values);
            if (!values.empty() && marked(values[0]) && !sliced_dim(made, *marked(values[0]))) {
                refuse(fmt::format("a `{}` has no slice along the axis", name(op)));
            }
            return;
        }
        if (made.results.size() != 1 || made.operands.size() != 1) return;
        const Value from = made.operands[0], to = made.result();
        if (!is_tile(from)) return;
        if (op == Op::broadcast) {
            if (const auto axis = marked(to); axis && shape(from)[*axis] == extent_)
                mark(from, *axis);
            if (const auto axis = marked(from)) mark(to, *axis);
        } else if (op == Op::expand_dims) {
            const int added = made.get<AxisAttributes>().axis;
            if (const auto axis = marked(to)) mark(from, *axis > added ? *axis - 1 : *axis);
            if (const auto axis = marked(from)) mark(to, *axis >= added ? *axis + 1 : *axis);
        } else if (op == Op::transpose) {
            const auto& order = made.get<PermutationAttributes>().permutation;
            if (const auto axis = marked(to)) mark(from, order[static_cast<std::size_t>(*axis)]);
            if (const auto axis = marked(from)) {
                mark(to, static_cast<int>(std::find(order.begin(), order.end(), *axis) -
                                          order.begin()));
            }
        } else if (op == Op::reduce) {
            const int gone = made.get<ReduceAttributes>().axis;
            if (const auto axis = marked(from); axis && *axis != gone)
                mark(to, *axis > gone ? *axis - 1 : *axis);
            if (const auto axis = marked(to)) mark(from, *axis >= gone ? *axis + 1 : *axis);
        } else if (marked(from) || marked(to)) {
            refuse(fmt::format("`{}` moves elements along the axis, perhaps", name(op)));
        }
    }

    /// The dimension of the array that an axis of the tile is a slice of.
    std::optional<std::size_t> sliced_dim(const Instruction& made, int axis) const {
        const auto& indices = made.get<AccessAttributes>().indices;
        const std::vector<int> axes = access_shape(f_, made).axis;
        for (std::size_t d = 0; d < indices.size(); ++d) {
            if (indices[d].kind == Index::Kind::tile) return std::nullopt;
        }
        for (std::size_t d = 0; d < indices.size(); ++d) {
            if (indices[d].kind == Index::Kind::slice && axes[d] == axis) return d;
        }
        return std::nullopt;
    }

    bool streams(const Instruction& made) const {
        if (made.op == Op::store) return true;
        return !made.results.empty() && marked(made.results[0]).has_value();
    }

    // Pieces are stored before later ones are loaded.
    void check_effects() {
        std::set<Value> written;
        for (const Instruction& made : f_.body.body) {
            if (made.op == Op::store) {
                written.insert(made.operands[0]);
                if (!marked(access(made).values[0])) refuse("a store has not the scan's axis");
            } else if (!effects(made).removable()) {
                refuse(fmt::format("the kernel has `{}`", name(made.op)));
            }
        }
        for (const Instruction& made : f_.body.body) {
            if (made.op == Op::load && may_write(f_, written, made.operands[0])) {
                refuse("the kernel reads what it stores");
            }
        }
    }

    void choose_piece() {
        constexpr std::int64_t kShortest = 64;
        std::int64_t beside = 1;
        for (const auto& [value, axis] : axes_) {
            beside = std::max(beside, shape(value).size() / shape(value)[axis]);
        }
        piece_ = 1;
        while (piece_ * 2 * beside <= max_elements_ && piece_ * 2 < extent_) piece_ *= 2;
        if (piece_ < kShortest) refuse(fmt::format("{} lines are scanned side by side", beside));
    }

    // ---- Pieces.

    Type piece_type(Value value, std::int64_t size) const {
        const Type& whole = f_.type(value);
        std::vector<std::int64_t> extents;
        for (int a = 0; a < whole.shape.rank(); ++a) {
            extents.push_back(a == axes_.at(value) ? size : whole.shape[a]);
        }
        return {whole.dtype, Shape(std::span<const std::int64_t>(extents))};
    }

    /// Elements of the axis from `offset` on. Returns what is carried to the next piece.
    std::vector<Value> emit(Value offset, std::int64_t size, std::span<const Value> carries) {
        std::map<Value, Value> now;
        std::vector<Value> next;
        for (const Instruction& made : streamed_) {
            Instruction same = made;
            builder_.set_location(made.location);
            for (Value& operand : same.operands) {
                const auto found = now.find(operand);
                if (found != now.end()) operand = found->second;
            }
            if (is_access(made.op)) {
                const Value tile = made.op == Op::load ? made.result() : access(made).values[0];
                const std::size_t dim = *sliced_dim(made, axes_.at(tile));
                Index& index = same.get<AccessAttributes>().indices[dim];
                index.size = size;
                Value& start = same.operands[1 + dim];
                const DType dtype = f_.type(start).dtype;
                Value by = builder_.cast(offset, dtype);
                if (index.stride != 1) {
                    by = builder_.binary(Op::mul, by,
                                         builder_.constant_int({dtype, {}}, index.stride));
                }
                start = builder_.binary(Op::add, start, by);
            }
            if (made.op == Op::store) {
                builder_.append(std::move(same));
                continue;
            }
            same.results.clear();
            const Type wanted = piece_type(made.results[0], size);
            std::vector<Value> results = builder_.append(std::move(same), &wanted);
            if (made.op == Op::iota &&
                made.get<AxisAttributes>().axis == axes_.at(made.results[0])) {
                const Value by =
                    builder_.broadcast(builder_.cast(offset, wanted.dtype), wanted.shape);
                results[0] = builder_.binary(Op::add, results[0], by);
            }
            if (is_scan(made.op) && axis_of(made) == axes_.at(made.results[0])) {
                // The piece's own total is known before its elements are joined.
                std::vector<Value> totals;
                for (const Value result : results) {
                    totals.push_back(last_of(result, axis_of(made)));
                }
                if (!carries.empty()) {
                    const auto carried = carries.subspan(next.size(), results.size());
                    results = joined(made, carried, results, now);
                    totals = joined(made, carried, totals, now);
                }
                next.insert(next.end(), totals.begin(), totals.end());
            }
            for (std::size_t i = 0; i < results.size(); ++i) now[made.results[i]] = results[i];
        }
        return next;
    }

    /// What is carried, and after it the results of a piece, or its totals.
    std::vector<Value> joined(const Instruction& scan, std::span<const Value> carried,
                              const std::vector<Value>& results,
                              const std::map<Value, Value>& now) {
        std::vector<Value> arguments;
        for (std::size_t i = 0; i < results.size(); ++i) {
            arguments.push_back(builder_.broadcast(carried[i], shape(results[i])));
        }
        if (scan.op == Op::scan) {
            const Op op = *joining_op(scan, f_.type(results[0]).dtype);
            return {builder_.binary(op, arguments[0], results[0])};
        }
        arguments.insert(arguments.end(), results.begin(), results.end());
        for (std::size_t i = results.size(); i < scan.operands.size(); ++i) {
            const auto found = now.find(scan.operands[i]);
            arguments.push_back(found == now.end() ? scan.operands[i] : found->second);
        }
        return builder_.call(scan.get<CombineAttributes>().combine, arguments);
    }

    /// The element of each line that the next piece comes after.
    Value last_of(Value result, int axis) {
        SliceAttributes slice;
        const Shape from = shape(result);
        for (int a = 0; a < from.rank(); ++a) {
            const bool cut = a == axis;
            slice.starts.push_back(cut && !reverse_ ? from[a] - 1 : 0);
            slice.sizes.push_back(cut ? 1 : from[a]);
            slice.strides.push_back(1);
        }
        return builder_.slice(result, slice);
    }

    Value number(std::int64_t value) { return builder_.constant_int({DType::i64, {}}, value); }

    /// Whole pieces, `count` of them from the one at `first` on, in the order of the scan.
    std::vector<Value> loop(std::int64_t first, std::int64_t count, std::vector<Value> carries) {
        if (count == 0) return carries;
        const Value begin = number(0), step = number(piece_), end = number(count * piece_),
                    from = number(first);
        return builder_.for_loop(
            begin, end, step, carries, [&](Value at, std::span<const Value> carried) {
                const Value offset = builder_.binary(reverse_ ? Op::sub : Op::add, from, at);
                return emit(offset, piece_, carried);
            });
    }

    void rewrite() {
        std::vector<Instruction> old = std::exchange(f_.body.body, {});
        Instruction yield = std::move(old.back());
        old.pop_back();
        for (Instruction& made : old) {
            if (streams(made)) {
                streamed_.push_back(std::move(made));
            } else {
                f_.body.body.push_back(std::move(made));
            }
        }
        const std::int64_t whole = extent_ / piece_, rest = extent_ % piece_;
        if (!reverse_) {
            std::vector<Value> carries = emit(number(0), piece_, {});
            carries = loop(piece_, whole - 1, std::move(carries));
            if (rest > 0) emit(number(whole * piece_), rest, carries);
        } else if (rest > 0) {
            loop((whole - 1) * piece_, whole, emit(number(whole * piece_), rest, {}));
        } else {
            loop((whole - 2) * piece_, whole - 1, emit(number((whole - 1) * piece_), piece_, {}));
        }
        f_.body.body.push_back(std::move(yield));
    }

    Function& f_;
    Builder builder_;
    std::int64_t max_elements_;
    std::int64_t extent_ = 1, piece_ = 1;
    bool reverse_ = false, changed_ = false;
    int scans_ = 0;
    std::map<Value, int> axes_;  ///< of tiles that have the axis of the scans
    std::vector<Instruction> streamed_;
    std::string refusal_;
};

}  // namespace

StreamScansReport stream_scans(Function& function, std::int64_t max_elements) {
    return Streaming(function, max_elements).run();
}

}  // namespace tilewright::ir
