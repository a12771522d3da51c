// Each index of a mod as a mask: true where it is inside its capture.
#include "mask/check_indices.h"

#include <algorithm>
#include <optional>

#include "ir/builder.h"
#include "mask/build.h"
#include "mod/traced.h"
#include "support/check.h"

namespace tilewright::mask {
namespace {

/// (b, h, q, kv, arrays...) -> the condition of the check at position `check` in the mod's body.
std::shared_ptr<const ir::Function> condition_of(const ir::Function& checked, std::size_t check) {
    ir::Function body = checked;
    body.body.body.back().operands = {body.body.body[check].operands[0]};
    std::erase_if(body.body.body, [](const ir::Instruction& instruction) {
        return instruction.op == ir::Op::debug_check;
    });
    const auto callee = std::make_shared<const ir::Function>(std::move(body));

    constexpr std::size_t kPositions = 4;
    const auto scalars = static_cast<std::size_t>(
        std::count_if(callee->parameters().begin(), callee->parameters().end(),
                      [&](ir::Value parameter) { return !callee->is_ref(parameter); }));
    const std::size_t first_position = scalars - kPositions - 1;  // after the score, if any
    auto function = std::make_shared<ir::Function>();
    function->name = "index_inside";
    ir::Builder builder(*function);
    std::vector<ir::Value> arguments;
    for (std::size_t i = 0; i < callee->parameters().size(); ++i) {
        const ir::Value parameter = callee->parameters()[i];
        if (callee->is_ref(parameter)) {
            arguments.push_back(function->add_parameter(callee->ref_type(parameter),
                                                        callee->value_name(parameter)));
        } else if (i < first_position) {
            arguments.push_back(builder.constant(callee->type(parameter), 0));
        } else if (i == scalars - 1) {  // `attends`: every pair is checked
            arguments.push_back(builder.constant_int(callee->type(parameter), 1));
        } else {
            arguments.push_back(
                function->add_parameter(callee->type(parameter), callee->value_name(parameter)));
        }
    }
    const ir::Value inside = builder.call(callee, arguments)[0];
    builder.yield({&inside, 1});
    return function;
}

/// The first pair that does not attend.
std::optional<Origin> first_missing(MaskData& data) {
    for (std::int64_t row = 0; row < data.batch * data.heads * data.rows(); ++row) {
        const std::int64_t head = row / data.rows(), of_head = row % data.rows();
        RowCursor cursor(data, row);
        for (std::int64_t column = 0; column < data.columns();) {
            const AtomId id = cursor.at(column);
            const AtomId full = data.full_atom(of_head, column);
            if (id == full) {
                column = id == kAll ? cursor.change(column) : column + 1;
                continue;
            }
            const Atom &have = data.atoms[id], &want = data.atoms[full];
            std::size_t q = 0;
            while (have[q] == want[q]) ++q;
            std::int64_t kv = 0;
            while (((have[q] ^ want[q]) >> kv & 1) == 0) ++kv;
            return Origin{head / data.heads, head % data.heads,
                          of_head * kAtom + static_cast<std::int64_t>(q), column * kAtom + kv};
        }
    }
    return std::nullopt;
}

}  // namespace

void check_indices(const char* op, const Mod& mod, std::int64_t batch, std::int64_t heads,
                   std::int64_t q_len, std::int64_t kv_len) {
    const mod::Traced& traced = mod::trace(mod, DType::f32, true);
    const std::vector<ir::Instruction>& body = traced.function->body.body;
    for (std::size_t i = 0; i < body.size(); ++i) {
        if (body[i].op != ir::Op::debug_check) continue;
        const auto inside =
            MaskFunction::of(op, condition_of(*traced.function, i),
                             fmt::format("check {}\n{}", i, traced.text), traced.captures);
        MaskData data = build(inside, batch, heads, q_len, kv_len);
        const std::optional<Origin> where = first_missing(data);
        if (!where) continue;
        const ir::Location& line = body[i].location;
        user_error(op, "expected that {} but it is not for b {}, h {}, q {}, kv {}{}",
                   body[i].get<ir::TextAttributes>().text, where->b, where->h, where->q, where->kv,
                   line.line == 0 ? "" : fmt::format(" at {}:{}", line.file, line.line));
    }
}

}  // namespace tilewright::mask
