// What a program prints for debugging: thread 0 does.
#include "cuda/codegen/element_text.h"
#include "cuda/schedule/thread_printer.h"

namespace tilewright::cuda::schedule {
namespace {

/// Text as printf takes it, in a string literal.
std::string format_of(std::string_view text) {
    std::string escaped;
    for (const char c : text) {
        if (c == '\n') {
            escaped += "\\n";
            continue;
        }
        if (c == '%') escaped += '%';
        if (c == '"' || c == '\\') escaped += '\\';
        escaped += c;
    }
    return escaped;
}

const char* conversion_of(DType dtype) {
    if (is_float(dtype)) return "%g";
    return is_signed(dtype) ? "%lld" : "%llu";
}

/// An element in the type of its conversion.
std::string argument_of(DType dtype, const std::string& value) {
    const char* const type = is_float(dtype) ? "double" : is_signed(dtype) ? "i64" : "u64";
    return fmt::format("static_cast<{}>({})", type, value);
}

}  // namespace

void ThreadPrinter::print(const Instruction& made) {
    if (made.operands.empty()) {
        return line("if (threadIdx.x == 0) printf(\"{}\");", format_of(made.symbol("text")));
    }
    const Value scalar = made.operands[0];
    line("if (threadIdx.x == 0) printf(\"{}\", {});", conversion_of(dtype(scalar)),
         argument_of(dtype(scalar), registers(scalar).front()));
}

void ThreadPrinter::print_tile(const Instruction& made) {
    const DType of = *parse_dtype(made.symbol("dtype"));
    const std::string element =
        argument_of(of, fmt::format("widen({}[i])", pointer(made.symbol("reads"))));
    line("if (threadIdx.x == 0) printf(\"[\");");
    line(
        "if (threadIdx.x == 0) for (int i = 0; i < {}; ++i) printf(i == 0 ? \"{}\" : \", {}\", "
        "{});",
        made.number("elements"), conversion_of(of), conversion_of(of), element);
    line("if (threadIdx.x == 0) printf(\"]\");");
}

}  // namespace tilewright::cuda::schedule
