// Printing for debugging: tiles pass through shared memory, since one thread prints.
#include "cuda/codegen/lower_print.h"

#include <algorithm>

#include "cuda/codegen/lower_shared.h"
#include "cuda/codegen/lower_values.h"

namespace tilewright::cuda {

void lower_print(Lowering& cx, const ir::Instruction& made) {
    const std::string& text = made.get<ir::TextAttributes>().text;
    const auto print = [&](std::string_view part) {
        if (!part.empty()) {
            cx.append(schedule::Op::print).with_text("text", std::string(part));
        }
    };
    std::string_view rest = text;
    for (const ir::Value operand : made.operands) {
        const std::size_t hole = rest.find("{}");
        print(rest.substr(0, hole));
        rest.remove_prefix(hole + 2);
        const ir::Type& type = cx.type(operand);
        if (type.is_scalar()) {
            const schedule::Value scalar = scalar_of(cx, operand);
            cx.append(schedule::Op::print).operands = {scalar};
            continue;
        }
        const Held tile = held_anywhere(cx, operand);
        const int id = write_shared(cx, {tile}, row_major(type.shape),
                                    std::max<std::int64_t>(type.shape.size(), 1), type.dtype);
        cx.append(schedule::Op::print_tile)
            .with_symbol("reads", buffer_name(id))
            .with_symbol("dtype", std::string(name(type.dtype)))
            .with("elements", type.shape.size());
    }
    print(rest);
    print("\n");
}

}  // namespace tilewright::cuda
