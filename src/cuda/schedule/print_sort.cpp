// Sorts, as words in lines in shared memory.
#include "cuda/codegen/element_text.h"
#include "cuda/schedule/sort_lines.h"
#include "cuda/schedule/thread_printer.h"

namespace tilewright::cuda::schedule {
namespace {

/// The type of words, see cuda/device/tile/sort.cuh.
const char* word_type(const Instruction& made) {
    const std::int64_t bytes = made.number("word");
    return bytes == 16 ? "sorting::Wide" : bytes == 8 ? "u64" : "u32";
}

}  // namespace

std::string ThreadPrinter::place_in_lines(const Instruction& made, Value lines, const Layout& of,
                                          int reg) {
    const ir::Shape& shape = p_.type(lines).type.shape;
    const auto axis = static_cast<int>(made.number("axis"));
    const Coordinates at = of.register_coordinates(reg);
    return fmt::format("sorting::slot<{}>(({}) * {} + {})", word_type(made),
                       row_major(of, reg, covered(shape), axis), SortedLines(shape, axis).length,
                       positions_.of(of, axis, at[static_cast<std::size_t>(axis)]));
}

void ThreadPrinter::fill_lines(const Instruction& made) {
    const std::string &buffer = made.symbol("writes"), base = pointer(buffer);
    const char* const word = word_type(made);
    line("auto* const {} = reinterpret_cast<{}*>(memory + {});", base, word, buffer);
    line(
        "for (int i = threadIdx.x; i < {}; i += {}) {}[sorting::slot<{}>(i)] = "
        "sorting::last_word<{}>();",
        lines_of(p_, made).words, 32 * p_.warps(), base, word, word);
}

void ThreadPrinter::write_lines(const Instruction& made) {
    const Value source = made.operands[0];
    const Layout& from = layout(source);
    const std::string &buffer = made.symbol("writes"), base = pointer(buffer), own = owner(from);
    const char* const word = word_type(made);
    const auto axis = static_cast<int>(made.number("axis"));
    const bool phantoms = from.has_phantoms(axis);
    if (made.operands.size() == 1) {
        line("auto* const {} = reinterpret_cast<{}*>(memory + {});", base, word, buffer);
    }
    for (int r = 0; r < from.registers(); ++r) {
        const std::string at =
            positions_.of(from, axis, from.register_coordinates(r)[static_cast<std::size_t>(axis)]);
        std::string text = fmt::format("sorting::word_of<{}, {}>({}, {})", word,
                                       made.has("descending"), registers(source)[r], at);
        if (phantoms) {
            text = fmt::format("{} < {} ? {} : sorting::last_word<{}>()", at, from.shape[axis],
                               text, word);
        }
        line("{}{}[{}] = {};", where(own), base, place_in_lines(made, made.result(), from, r),
             text);
    }
}

void ThreadPrinter::sort_lines(const Instruction& made) {
    const SortedLines lines = lines_of(p_, made);
    const bool keeps = made.has("keep");
    line("sorting::{}<{}, {}, {}, {}>({});", keeps ? "keep_first" : "sort_runs",
         keeps ? made.number("keep") : lines.length, lines.length, lines.words, 32 * p_.warps(),
         pointer(made.symbol("reads")));
}

void ThreadPrinter::read_lines(const Instruction& made) {
    const Value result = made.result();
    const Layout& to = layout(result);
    const std::string type = register_type(dtype(result)), base = pointer(made.symbol("reads"));
    const std::string element =
        made.has("places") ? fmt::format("place_of<{}>", word_type(made))
                           : fmt::format("element_of<{}, {}>", type, made.has("descending"));
    const Names& names = registers(result);
    for (int r = 0; r < to.registers(); ++r) {
        line("const {} {} = sorting::{}({}[{}]);", type, names[r], element, base,
             place_in_lines(made, made.operands[0], to, r));
    }
}

}  // namespace tilewright::cuda::schedule
