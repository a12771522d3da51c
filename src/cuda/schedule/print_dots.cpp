// Programs without roles as CUDA C++: products by mma.sync and by multiply-adds.
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "cuda/codegen/element_text.h"
#include "cuda/codegen/mma_fragments.h"
#include "cuda/schedule/array_access.h"
#include "cuda/schedule/thread_printer.h"

namespace tilewright::cuda::schedule {
namespace {

/// A layout without its lanes: the part of the coordinates that warps add.
Layout warps_only(Layout layout) {
    std::fill(layout.lane.begin(), layout.lane.end(), 0);
    return layout;
}

/// Distinct values of `part` over the registers of a layout, in order.
template <typename Part>
std::vector<std::int64_t> distinct(const Layout& layout, Part&& part) {
    std::set<std::int64_t> values;
    for (int r = 0; r < layout.registers(); ++r)
        values.insert(part(layout.register_coordinates(r)));
    return {values.begin(), values.end()};
}

/// Parts of the batch, or 0, that registers add; multiples of `unit` along an axis.
std::vector<std::int64_t> batches_of(const Layout& layout) {
    const bool has_batch = layout.shape.rank() == 3;
    return distinct(layout, [&](const Coordinates& at) { return has_batch ? at[0] : 0; });
}
std::vector<std::int64_t> pieces_along(const Layout& layout, int axis, std::int64_t unit) {
    return distinct(layout, [&](const Coordinates& at) {
        return at[static_cast<std::size_t>(axis)] & ~(unit - 1);
    });
}

Coordinates coordinates(int rank, std::int64_t batch, std::int64_t row, std::int64_t column) {
    Coordinates at{};
    if (rank == 3) at[0] = batch;
    at[static_cast<std::size_t>(rank) - 2] = row;
    at[static_cast<std::size_t>(rank) - 1] = column;
    return at;
}

}  // namespace

/// An operand of a product in shared memory, in rows that are swizzled in groups of `group` bytes.
struct ThreadPrinter::Operand {
    std::string offset;
    DType dtype = DType::f32;
    std::int64_t rows = 0, row_bytes = 0, group = 0;  ///< rows of one element of the batch
    bool k_first = false;                             ///< rows lie along the inner dimension
};

/// A product, and what its statements refer to.
struct ThreadPrinter::Product {
    MmaUnit unit;
    const Layout* sums = nullptr;
    const Names* names = nullptr;  ///< of sums
    Layout a, b;                   ///< fragments
    std::int64_t k = 0;
    std::optional<Operand> left;  ///< none: in registers
    Operand right;
    bool whole = true;  ///< there are rows for the upper eight of an instruction, too
    std::vector<std::int64_t> batches, rows, columns;

    int rank() const { return sums->shape.rank(); }
    int row_axis() const { return rank() - 2; }
    int column_axis() const { return rank() - 1; }
};

ThreadPrinter::Operand ThreadPrinter::operand(Value value, bool k_first) const {
    const Instruction& made = *in_memory_.at(value);
    const ir::Shape& shape = p_.type(value).type.shape;
    Operand result;
    result.offset = made.is(Op::write_operand) ? made.symbol("writes")
                    : made.operands.empty()    ? made.symbol("uses")
                                               : registers(value).front();
    result.dtype = dtype(value);
    result.rows = cover(shape[shape.rank() - 2]).size();
    result.row_bytes = made.number("row_bytes");
    result.group = made.number("group");
    result.k_first = k_first;
    return result;
}

void ThreadPrinter::shared_tile(const Instruction& made) {
    in_memory_[made.result()] = &made;
    if (made.operands.empty()) return;
    line("const u32 {} = {} + {} * {}u;", registers(made.result()).front(), made.symbol("uses"),
         registers(made.operands[0]).front(),
         covered_rows(p_.type(made.result()).type.shape) * made.number("row_bytes"));
}

void ThreadPrinter::write_operand(const Instruction& made) {
    in_memory_[made.result()] = &made;
    const Value source = made.operands[0];
    const Layout& from = layout(source);
    const Names& names = registers(source);
    const DType stored = dtype(made.result());
    const int last = from.shape.rank() - 1, bytes = size_of(stored);
    const int vector = std::min(vector_length(from, last), 16 / bytes);
    line("// operand into shared memory, rows of {} bytes", made.number("row_bytes"));
    const std::string own = where(owner(from));
    const std::string zero = literal(combined_dtype(stored), 0);
    for (int r = 0; r < from.registers(); r += vector) {
        const Coordinates at = from.register_coordinates(r);
        std::int64_t constant = 0, stride = 1;
        std::string row;
        for (int axis = last - 1; axis >= 0; --axis) {
            constant += at[static_cast<std::size_t>(axis)] * stride;
            const std::string part = positions_.thread(from, axis);
            if (part != "0") {
                row += fmt::format("{}{} * {}", row.empty() ? "" : " + ", part, stride);
            }
            stride *= cover(from.shape[axis]).size();
        }
        row = plus(row.empty() ? "0" : "(" + row + ")", constant);
        const std::string column = positions_.of(from, last, at[static_cast<std::size_t>(last)]);
        Names elements(names.begin() + r, names.begin() + r + vector);
        // Phantoms along the inner dimension must not contribute NaNs.
        for (int i = 0; i < vector; ++i) {
            const std::string inside = positions_.inside(from, r + i);
            if (inside.empty()) continue;
            std::string& element = elements[static_cast<std::size_t>(i)];
            element = fmt::format("{} ? {} : {}", inside, element, zero);
        }
        line(
            "{}store_vector(reinterpret_cast<{}*>(memory + {} + swizzled<{}, {}>({}, ({}) * {})), "
            "{});",
            own, storage_type(stored), made.symbol("writes"), made.number("row_bytes"),
            made.number("group"), row, column, bytes, fmt::join(elements, ", "));
    }
}

// ---- Fragments in shared memory.

std::string ThreadPrinter::fragment_address(const Operand& of, const std::string& row,
                                            const std::string& byte, std::int64_t row_part,
                                            std::int64_t byte_part) {
    // The thread's part is computed once; the register's part is an xor inside the swizzled group
    // and a sum beyond it, so that one register addresses a whole operand.
    const std::string own = positions_.address(
        fmt::format("swizzled<{}, {}>({}, {})", of.row_bytes, of.group, row, byte));
    const auto key = std::make_pair(own, of.offset);
    std::string base;
    for (auto scope = addresses_.rbegin(); scope != addresses_.rend() && base.empty(); ++scope) {
        const auto found = scope->find(key);
        if (found != scope->end()) base = found->second;
    }
    if (base.empty()) {
        base = fmt::format("from{}", fragments_++);
        line("const u32 {} = {} + {};", base, own, of.offset);
        addresses_.back()[key] = base;
    }
    const std::int64_t flip = byte_part & (of.group - 1);
    const std::int64_t shift = row_part * of.row_bytes + (byte_part - flip);
    return fmt::format("{} + {}", flip == 0 ? base : fmt::format("({} ^ {})", base, flip), shift);
}

std::string ThreadPrinter::batch_rows(const Operand& of, const Layout& fragments) {
    if (fragments.shape.rank() != 3) return "";
    const std::string warp = positions_.thread(warps_only(fragments), 0);
    return warp == "0" ? "" : fmt::format(" + {} * {}", warp, of.rows);
}

std::string ThreadPrinter::left_address(const Operand& left, const Layout& a, std::int64_t batch,
                                        std::int64_t row, std::int64_t k) {
    const int row_axis = a.shape.rank() - 2;
    const std::int64_t covered = cover(a.shape[row_axis]).size();
    const std::string warp = positions_.thread(warps_only(a), row_axis);
    const std::string batches = batch_rows(left, a);
    if (left.k_first) {
        return fragment_address(left, "(lane & 7) + (lane >> 4) * 8" + batches,
                                fmt::format("{}{}", covered >= 16 ? "(lane >> 3 & 1) * 16" : "0",
                                            warp == "0" ? "" : fmt::format(" + {} * 2", warp)),
                                k + batch * left.rows, row * 2);
    }
    return fragment_address(left,
                            fmt::format("(lane & {}){}{}", covered >= 16 ? 15 : covered - 1,
                                        warp == "0" ? "" : " + " + warp, batches),
                            "(lane >> 4) * 16", row + batch * left.rows, k * size_of(left.dtype));
}

void ThreadPrinter::load_left(const Operand& left, const Layout& a, const Names& words,
                              std::int64_t batch, std::int64_t row, std::int64_t k) {
    const std::string address = left_address(left, a, batch, row, k);
    line("u32 {0}; ptx::ldmatrix{1}({0}, {2});", fmt::join(words, ", "),
         left.k_first ? "_transposed" : "", address);
}

void ThreadPrinter::read_fragments(const Instruction& made) {
    const Layout& a = layout(made.result());
    const Names& names = registers(made.result());
    const Operand left = operand(made.operands[0], made.has("transposed"));
    const int row_axis = a.shape.rank() - 2;
    line("// invariant operand into registers");
    auto word = names.begin();
    for (const std::int64_t batch : batches_of(a)) {
        for (const std::int64_t row : pieces_along(a, row_axis, 16)) {
            for (std::int64_t k = 0; k < cover(a.shape[row_axis + 1]).size(); k += 16, word += 4) {
                load_left(left, a, Names(word, word + 4), batch, row, k);
            }
        }
    }
}

// ---- Products by tensor cores.

ThreadPrinter::Product ThreadPrinter::product(const Instruction& made) const {
    const Value sums = made.operands[0], a = made.operands[1], b = made.operands[2];
    const bool moved_a = made.has("transpose_a"), moved_b = made.has("transpose_b");
    const ir::Shape& left = p_.type(a).type.shape;
    Product product;
    product.right = operand(b, !moved_b);
    product.sums = &layout(sums);
    product.names = &registers(sums);
    product.k = left[left.rank() - (moved_a ? 2 : 1)];
    if (in_memory_.contains(a)) product.left = operand(a, moved_a);
    product.batches = batches_of(*product.sums);
    if (made.is(Op::multiply_add)) return product;
    product.unit = mma_unit(product.right.dtype);
    product.a = left_fragments(*product.sums, product.right.dtype, product.k);
    product.b = right_fragments(*product.sums, product.right.dtype, product.k);
    product.whole = product.unit.rows == 8 ||
                    cover(product.sums->shape[product.row_axis()]).size() >= product.unit.rows;
    product.rows = pieces_along(*product.sums, product.row_axis(), product.unit.rows);
    product.columns = pieces_along(*product.sums, product.column_axis(), 8);
    return product;
}

std::string ThreadPrinter::word(const Product& of, const Operand& operand, bool is_left,
                                std::int64_t batch, std::int64_t outer, std::int64_t k) {
    const Layout& fragments = is_left ? of.a : of.b;
    const int outer_axis = is_left ? of.row_axis() : of.column_axis(),
              k_axis = is_left ? of.column_axis() : of.row_axis(), bytes = size_of(operand.dtype);
    const auto offset = [&](std::int64_t at) {
        const std::string o = positions_.of(fragments, outer_axis, outer),
                          inner = positions_.of(fragments, k_axis, at);
        std::string row = operand.k_first ? inner : o;
        const std::string& column = operand.k_first ? o : inner;
        if (of.rank() == 3) {
            row = fmt::format("{} + ({}) * {}", row, positions_.of(fragments, 0, batch),
                              operand.rows);
        }
        return fmt::format("{} + swizzled<{}, {}>({}, {})", operand.offset, operand.row_bytes,
                           operand.group, row,
                           bytes == 1 ? column : fmt::format("({}) * {}", column, bytes));
    };
    if (bytes == 1) {
        return operand.k_first ? fmt::format("shared_bytes(memory, {}, {}, {}, {})", offset(k),
                                             offset(k + 1), offset(k + 2), offset(k + 3))
                               : fmt::format("shared_element<u32>(memory, {})", offset(k));
    }
    const std::string element =
        fmt::format("shared_element<{}>(memory, {})", storage_type(operand.dtype), offset(k));
    return bytes == 4 ? fmt::format("ptx::to_tf32({})", element) : element;
}

Names ThreadPrinter::words(const Product& of, const Operand& operand, bool is_left,
                           std::int64_t batch, std::int64_t outer, std::int64_t k) {
    const int count = is_left ? of.unit.left_words : of.unit.right_words;
    const char* const type = operand.dtype == DType::f64 ? "f64" : "u32";
    Names names = numbered(fmt::format("{}{}", is_left ? "left" : "right", fragments_++), count);
    for (int i = 0; i < count; ++i) {
        // The words of a left operand alternate between its upper and lower rows.
        const bool lower = is_left && of.whole && i % 2 != 0;
        const bool next = i >= (is_left ? 2 : 1);
        line("const {} {} = {};", type, names[static_cast<std::size_t>(i)],
             word(of, operand, is_left, batch, outer + (lower ? 8 : 0),
                  k + (next ? of.unit.step / 2 : 0)));
    }
    return names;
}

Names ThreadPrinter::packed_words(const Product& of, Value tile, std::int64_t batch,
                                  std::int64_t row, std::int64_t k) {
    const Names& elements = registers(tile);
    const int k_axis = of.column_axis();
    const char* const tag = of.right.dtype == DType::f16 ? "F16" : "Bf16";
    // Packed just before use: packing all at once would hold twice the registers.
    Names names = numbered(fmt::format("left{}", fragments_++), 4);
    for (int i = 0; i < 4; ++i) {
        const Coordinates at =
            coordinates(of.rank(), batch, row + (of.whole ? i % 2 * 8 : 0), k + i / 2 * 8);
        const auto first = static_cast<std::size_t>(of.a.find_register(at));
        Names pair;
        for (std::size_t r = first; r < first + 2; ++r) {
            const std::int64_t column =
                of.a.register_coordinates(static_cast<int>(r))[static_cast<std::size_t>(k_axis)];
            pair.push_back(of.a.has_phantoms(k_axis)
                               ? fmt::format("{} < {} ? {} : 0.0f",
                                             positions_.of(of.a, k_axis, column), of.k, elements[r])
                               : elements[r]);
        }
        line("const u32 {} = ptx::pack({}{{}}, {}, {});", names[static_cast<std::size_t>(i)], tag,
             pair[0], pair[1]);
    }
    return names;
}

std::vector<Names> ThreadPrinter::left_words(const Product& of, Value value, std::size_t batch,
                                             std::int64_t k) {
    std::vector<Names> a;
    for (std::size_t i = 0; i < of.rows.size(); ++i) {
        const std::int64_t at = of.batches[batch], row = of.rows[i];
        if (of.left && (of.right.dtype == DType::f32 || of.right.dtype == DType::f64 ||
                        (size_of(of.right.dtype) == 1 && of.left->k_first))) {
            // ldmatrix transposes elements of 16 bits only.
            a.push_back(words(of, *of.left, true, at, row, k));
        } else if (of.left) {
            a.push_back(numbered(fmt::format("left{}", fragments_++), 4));
            load_left(*of.left, of.a, a.back(), at, row, k);
        } else if (p_.type(value).packed) {
            const std::int64_t steps = cover(of.k).size() / of.unit.step,
                               piece = static_cast<std::int64_t>(batch * of.rows.size() + i);
            const auto first = registers(value).begin() + 4 * (piece * steps + k / of.unit.step);
            a.emplace_back(first, first + 4);
        } else {
            a.push_back(packed_words(of, value, at, row, k));
        }
    }
    return a;
}

Names ThreadPrinter::sums(const Product& of, std::int64_t batch, std::int64_t row,
                          std::int64_t column) {
    Names names;
    for (int e = 0; e < of.unit.rows / 4; ++e) {
        if (!of.whole && e >= 2) {
            names.push_back(fmt::format("unused{}", e));
            continue;
        }
        const Coordinates at =
            coordinates(of.rank(), batch, row + (of.whole ? e / 2 * 8 : 0), column + e % 2);
        names.push_back((*of.names)[static_cast<std::size_t>(of.sums->find_register(at))]);
    }
    return names;
}

void ThreadPrinter::multiply(const Product& of, const Names& sums, const Names& a, const Names& b,
                             std::size_t first_b) {
    std::string tags;
    const auto of_bytes = [](DType dtype) { return dtype == DType::i8 ? "S8{}, " : "U8{}, "; };
    switch (of.right.dtype) {
        case DType::f16:
            tags = "F16{}, ";
            break;
        case DType::bf16:
            tags = "Bf16{}, ";
            break;
        case DType::f32:
            tags = "Tf32{}, ";
            break;
        case DType::f64:
            break;
        default:
            tags = fmt::format("{}{}", of_bytes(of.left->dtype), of_bytes(of.right.dtype));
    }
    Names right(b.begin() + static_cast<std::ptrdiff_t>(first_b),
                b.begin() + static_cast<std::ptrdiff_t>(first_b) + of.unit.right_words);
    const std::string call =
        fmt::format("ptx::{}({}{}, {}, {});", of.unit.function, tags, fmt::join(sums, ", "),
                    fmt::join(a, ", "), fmt::join(right, ", "));
    if (of.whole) return line("{}", call);
    line("{{ {} unused2 = 0, unused3 = 0; {} }}", of.unit.sum == DType::i32 ? "int" : "f32", call);
}

std::string ThreadPrinter::right_address(const Product& of, std::int64_t batch, std::int64_t column,
                                         std::int64_t k, bool pair) {
    const std::string warp = positions_.thread(warps_only(of.b), of.column_axis()),
                      batches = batch_rows(of.right, of.b);
    if (of.right.k_first) {
        std::string byte = pair ? "(lane >> 4) * 16" : "0";
        if (warp != "0") byte += fmt::format(" + {} * 2", warp);
        return fragment_address(of.right, "(lane & 15)" + batches, byte, k + batch * of.right.rows,
                                column * 2);
    }
    std::string row = pair ? "(lane & 7) + (lane >> 4) * 8" : "(lane & 7)";
    if (warp != "0") row += " + " + warp;
    return fragment_address(of.right, row + batches, "(lane >> 3 & 1) * 16",
                            column + batch * of.right.rows, k * 2);
}

std::int64_t ThreadPrinter::multiply_steps(const Product& of, std::int64_t batch, std::int64_t k) {
    constexpr std::int64_t kMost = 256;  // instructions of one statement
    const auto rows = static_cast<std::int64_t>(of.rows.size()),
               columns = static_cast<std::int64_t>(of.columns.size());
    const std::int64_t steps =
        std::min((cover(of.k).size() - k) / of.unit.step, kMost / (rows * columns));
    bool pairs = columns % 2 == 0;
    for (std::size_t at = 0; pairs && at < of.columns.size(); at += 2) {
        pairs = of.columns[at + 1] == of.columns[at] + 8;
    }
    if (!of.left || size_of(of.right.dtype) != 2 || !of.whole || !pairs || steps < 2) return 0;
    Names all, left, right;
    for (std::size_t at = 0; at < of.columns.size(); at += 2) {
        for (const std::int64_t row : of.rows) {
            for (std::size_t half = 0; half < 2; ++half) {
                const Names d = sums(of, batch, row, of.columns[at + half]);
                all.insert(all.end(), d.begin(), d.end());
            }
        }
    }
    for (std::int64_t past = k; past < k + steps * of.unit.step; past += of.unit.step) {
        for (const std::int64_t row : of.rows) {
            left.push_back(left_address(*of.left, of.a, batch, row, past));
        }
        for (std::size_t at = 0; at < of.columns.size(); at += 2) {
            right.push_back(right_address(of, batch, of.columns[at], past, true));
        }
    }
    const MmaStep step{static_cast<int>(rows), static_cast<int>(columns), of.right.dtype,
                       of.right.k_first,       static_cast<int>(steps),   of.left->k_first};
    steps_.insert(step);
    line(
        "ptx::multiply({}{{}}, ptx::Blocks<{}, {}>{{}}, ptx::Moved<{}>{{}}, "
        "ptx::Loads<{}, {}>{{}}, {}, {}, {});",
        step.dtype == DType::f16 ? "F16" : "Bf16", step.rows, step.columns, step.transposed,
        step.loads, step.left_transposed, fmt::join(all, ", "), fmt::join(left, ", "),
        fmt::join(right, ", "));
    return steps * of.unit.step;
}

void ThreadPrinter::multiply_halves(const Product& of, std::int64_t batch, std::int64_t k,
                                    const std::vector<Names>& a) {
    // Pairs of columns that one statement multiplies.
    constexpr std::size_t kMostAtOnce = 16;
    Names all, addresses;
    const auto statement = [&] {
        if (addresses.empty()) return;
        Names lefts;
        for (const Names& words : a) lefts.insert(lefts.end(), words.begin(), words.end());
        const MmaStep step{static_cast<int>(of.rows.size()), 2 * static_cast<int>(addresses.size()),
                           of.right.dtype, of.right.k_first};
        steps_.insert(step);
        line("ptx::multiply({}{{}}, ptx::Blocks<{}, {}>{{}}, ptx::Moved<{}>{{}}, {}, {}, {});",
             step.dtype == DType::f16 ? "F16" : "Bf16", step.rows, step.columns, step.transposed,
             fmt::join(all, ", "), fmt::join(lefts, ", "), fmt::join(addresses, ", "));
        all.clear();
        addresses.clear();
    };
    for (std::size_t at = 0; at < of.columns.size();) {
        const std::int64_t column = of.columns[at];
        const bool pair = at + 1 < of.columns.size() && of.columns[at + 1] == column + 8;
        const bool together = pair && of.whole;
        const std::string address = right_address(of, batch, column, k, pair);
        Names words;
        if (together) {
            addresses.push_back(address);
        } else {
            words = numbered(fmt::format("right{}", fragments_++), pair ? 4 : 2);
            line("u32 {0}; ptx::ldmatrix{1}({0}, {2});", fmt::join(words, ", "),
                 of.right.k_first ? "_transposed" : "", address);
        }
        for (std::size_t i = 0; i < of.rows.size(); ++i) {
            for (std::size_t half = 0; half < (pair ? 2 : 1); ++half) {
                const Names d =
                    sums(of, batch, of.rows[i], column + static_cast<std::int64_t>(half) * 8);
                if (together) {
                    all.insert(all.end(), d.begin(), d.end());
                } else {
                    multiply(of, d, a[i], words, 2 * half);
                }
            }
        }
        at += pair ? 2 : 1;
        if (2 * of.rows.size() * (addresses.size() + 1) > kMostAtOnce) statement();
    }
    statement();
}

void ThreadPrinter::mma(const Instruction& made) {
    const Product of = product(made);
    for (std::size_t i = 0; i < of.batches.size(); ++i) {
        const std::int64_t batch = of.batches[i];
        for (std::int64_t k = 0; k < cover(of.k).size(); k += of.unit.step) {
            line("// k {}", k);
            if (const std::int64_t past = multiply_steps(of, batch, k); past > 0) {
                k += past - of.unit.step;
                continue;
            }
            const std::vector<Names> a = left_words(of, made.operands[1], i, k);
            if (size_of(of.right.dtype) == 2) {
                multiply_halves(of, batch, k, a);
                continue;
            }
            for (const std::int64_t column : of.columns) {
                const Names b = words(of, of.right, false, batch, column, k);
                for (std::size_t row = 0; row < of.rows.size(); ++row) {
                    multiply(of, sums(of, batch, of.rows[row], column), a[row], b, 0);
                }
            }
        }
    }
    round_sums(made.operands[0]);
}

// ---- Products by multiply-adds.

void ThreadPrinter::multiply_add(const Instruction& made) {
    const Product of = product(made);
    const Layout& sums = *of.sums;
    const DType result = dtype(made.operands[0]);
    const std::string type = register_type(result);
    line("#pragma unroll 4");
    line("for (int k = 0; k < {}; ++k) {{", of.k);
    ++depth_;
    std::map<std::pair<std::int64_t, std::int64_t>, std::string> lefts, rights;
    // A variable of the element at k of a row or column.
    const auto element = [&](std::string& name, const Operand& operand, std::int64_t batch,
                             int axis, std::int64_t at) {
        if (!name.empty()) return;
        name = fmt::format("{}{}", axis == of.row_axis() ? "left" : "right", fragments_++);
        const std::string outer = positions_.of(sums, axis, at);
        std::string row = operand.k_first ? "k" : outer;
        const std::string column = operand.k_first ? outer : "k";
        if (of.rank() == 3) {
            row = fmt::format("{} + ({}) * {}", row, positions_.of(sums, 0, batch), operand.rows);
        }
        line("const {} {} = shared_element<{}>(memory, {} + swizzled<{}, {}>({}, ({}) * {}));",
             type, name, storage_type(operand.dtype), operand.offset, operand.row_bytes,
             operand.group, row, column, size_of(operand.dtype));
    };
    for (int r = 0; r < sums.registers(); ++r) {
        const Coordinates at = sums.register_coordinates(r);
        const std::int64_t batch = of.rank() == 3 ? at[0] : 0,
                           row = at[static_cast<std::size_t>(of.row_axis())],
                           column = at[static_cast<std::size_t>(of.column_axis())];
        std::string &left = lefts[{batch, row}], &right = rights[{batch, column}];
        element(left, *of.left, batch, of.row_axis(), row);
        element(right, of.right, batch, of.column_axis(), column);
        const std::string& sum = (*of.names)[static_cast<std::size_t>(r)];
        if (is_float(result)) {
            line("{0} = ops::fma({1}, {2}, {0});", sum, left, right);
        } else {
            line("{0} = ops::add({0}, ops::mul({1}, {2}));", sum, left, right);
        }
    }
    --depth_;
    line("}}");
    round_sums(made.operands[0]);
}

void ThreadPrinter::round_sums(Value sums) {
    if (combined_dtype(dtype(sums)) == dtype(sums)) return;
    for (const std::string& each : registers(sums)) {
        line("{0} = rounded({1}{{}}, {0});", each, storage_type(dtype(sums)));
    }
}

}  // namespace tilewright::cuda::schedule
