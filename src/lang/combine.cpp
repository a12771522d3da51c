// Scans and reductions with the user's operator, built from slices and concatenations.
#include "tilewright/lang/combine.h"

#include "lang/tracer.h"

namespace tilewright::detail {

using lang::Tracer;

namespace {

/// The elements as values with a common length along one axis.
class Elements {
  public:
    Elements(Tracer& tracer, const char* op, const Operands& elements, int axis)
        : tracer_(tracer), op_(op) {
        if (elements.empty()) user_error(op, "expected at least one tile but got none");
        const int rank = tracer.shape(elements.front()).rank();
        if (axis < -rank || axis >= rank) {
            user_error(op, "expected an axis in [{}, {}) but got {}", -rank, rank, axis);
        }
        axis_ = axis < 0 ? axis + rank : axis;
        length_ = tracer.shape(elements.front())[axis_];
        for (const Operand& element : elements) {
            const ir::Shape shape = tracer.shape(element);
            if (shape.rank() != rank || shape[axis_] != length_) {
                user_error(op, "expected tiles of rank {} and {} elements along axis {} but got {}",
                           rank, length_, axis_, ir::to_string(shape));
            }
            values_.push_back(tracer.value(element));
        }
    }

    int axis() const { return axis_; }
    std::int64_t length() const { return length_; }
    const std::vector<ir::Value>& values() const { return values_; }

    /// `count` elements of each tile from `first` on, every `step`-th.
    std::vector<ir::Value> part(const std::vector<ir::Value>& values, std::int64_t first,
                                std::int64_t count, std::int64_t step = 1) const {
        std::vector<ir::Value> parts;
        for (const ir::Value value : values) {
            const ir::Shape shape = tracer_.type(value).shape;
            ir::SliceAttributes slice;
            for (int a = 0; a < shape.rank(); ++a) {
                const bool cut = a == axis_;
                slice.starts.push_back(cut ? first : 0);
                slice.sizes.push_back(cut ? count : shape[a]);
                slice.strides.push_back(cut ? step : 1);
            }
            parts.push_back(tracer_.builder().slice(value, slice));
        }
        return parts;
    }

    std::vector<ir::Value> joined(const std::vector<ir::Value>& first,
                                  const std::vector<ir::Value>& second) const {
        std::vector<ir::Value> results;
        for (std::size_t i = 0; i < first.size(); ++i) {
            results.push_back(
                tracer_.builder().concatenate(std::array{first[i], second[i]}, axis_));
        }
        return results;
    }

    /// combine(before, after) with the types of `before`: literals take them, tiles must have them.
    std::vector<ir::Value> combined(const Combine& combine, const std::vector<ir::Value>& before,
                                    const std::vector<ir::Value>& after) const {
        const Operands results = combine(wrapped(before), wrapped(after));
        if (results.size() != before.size()) {
            user_error(op_, "expected combine to return {} values but got {}", before.size(),
                       results.size());
        }
        std::vector<ir::Value> values;
        for (std::size_t i = 0; i < results.size(); ++i) {
            const ir::Type& type = tracer_.type(before[i]);
            const bool literal = results[i].is_literal();
            const ir::Value value =
                literal ? tracer_.literal(results[i], type.dtype, op_) : tracer_.value(results[i]);
            const ir::Type got = tracer_.type(value);
            if (!(got == type) && !(got.dtype == type.dtype && got.is_scalar())) {
                user_error(op_, "expected combine to return {} for value {} but got {}",
                           ir::to_string(type), i, ir::to_string(got));
            }
            values.push_back(tracer_.broadcast(value, type.shape, op_));
        }
        return values;
    }

    Tiles wrapped(const std::vector<ir::Value>& values) const {
        Tiles tiles;
        for (const ir::Value value : values) tiles.push_back(tracer_.wrap(value));
        return tiles;
    }

  private:
    Tracer& tracer_;
    const char* op_;
    int axis_ = 0;
    std::int64_t length_ = 0;
    std::vector<ir::Value> values_;
};

}  // namespace

// After the step with `reach`, every element combines the last 2 * reach elements up to itself.
Tiles associative_scan(const Combine& combine, const Operands& elements, int axis, bool reverse,
                       std::source_location location) {
    Tracer& tracer = Tracer::current("associative_scan", location);
    return tracer.at(location, [&] {
        const Elements of(tracer, "associative_scan", elements, axis);
        const std::int64_t length = of.length();
        std::vector<ir::Value> now = of.values();
        for (std::int64_t reach = 1; reach < length; reach *= 2) {
            const auto low = of.part(now, 0, length - reach);
            const auto high = of.part(now, reach, length - reach);
            if (reverse) {
                now =
                    of.joined(of.combined(combine, high, low), of.part(now, length - reach, reach));
            } else {
                now = of.joined(of.part(now, 0, reach), of.combined(combine, low, high));
            }
        }
        return of.wrapped(now);
    });
}

// Combines neighbours until one element is left; an odd one at the end is carried over.
Tiles reduce(const Combine& combine, const Operands& elements, int axis, bool keepdims,
             std::source_location location) {
    Tracer& tracer = Tracer::current("reduce", location);
    return tracer.at(location, [&] {
        const Elements of(tracer, "reduce", elements, axis);
        std::int64_t length = of.length();
        if (length == 0) {
            user_error("reduce", "expected at least one element along axis {} but got none",
                       of.axis());
        }
        std::vector<ir::Value> now = of.values();
        for (; length > 1; length = (length + 1) / 2) {
            const std::int64_t pairs = length / 2;
            auto next = of.combined(combine, of.part(now, 0, pairs, 2), of.part(now, 1, pairs, 2));
            if (length % 2 != 0) next = of.joined(next, of.part(now, length - 1, 1));
            now = std::move(next);
        }
        if (!keepdims) {
            for (ir::Value& value : now) {
                value =
                    tracer.builder().reshape(value, tracer.type(value).shape.without(of.axis()));
            }
        }
        return of.wrapped(now);
    });
}

}  // namespace tilewright::detail
