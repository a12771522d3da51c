// Parses functions from text by recursive descent over the grammar of docs/reference/ir.md, section
// 8. Types come from infer_types, so text cannot express anything that the builder would refuse.
#include "ir/parse.h"

#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "ir/access.h"
#include "ir/builder.h"
#include "ir/evaluate.h"
#include "ir/token_reader.h"
#include "ir/verify.h"
#include "support/interned.h"

namespace tilewright::ir {
namespace {

constexpr std::size_t kMaxParameters = 4096;

using Mods = std::map<std::string, std::shared_ptr<const Function>>;

class Parser : private TokenReader {
  public:
    explicit Parser(std::string_view text, bool by_lines = false)
        : TokenReader(text), by_lines_(by_lines) {}

    Function module() {
        Mods mods;
        for (;;) {
            auto function = std::make_shared<Function>();
            const Token start = token_;
            parse_function(*function, mods);
            located(start, [&] { verify(*function); });
            if (token_.kind == Token::Kind::end) return *function;
            const std::string name = function->name;
            if (!mods.emplace(name, std::move(function)).second) {
                fail(start, "expected one function named {} but got two", name);
            }
        }
    }

  private:
    // ---- Values. The scopes are one map with an undo list.

    void define(const Token& at, const std::string& name, Value value) {
        if (!scope_.emplace(name, value).second) {
            fail(at, "expected a new name but %{} is already defined", name);
        }
        defined_.push_back(name);
        if (!std::isdigit(static_cast<unsigned char>(name[0]))) {
            function_->set_value_name(value, name);
        }
    }

    Value use() {
        const Token at = token_;
        const std::string name = take(Token::Kind::value, "a value");
        const auto found = scope_.find(name);
        if (found == scope_.end()) fail(at, "expected a value defined above but got %{}", name);
        return found->second;
    }

    std::vector<Value> uses() {
        std::vector<Value> result;
        if (token_.kind != Token::Kind::value) return result;
        do result.push_back(use());
        while (accept(','));
        return result;
    }

    // ---- Functions and blocks.

    std::string function_name() {
        expect('@');
        if (token_.kind == Token::Kind::text) return take(Token::Kind::text, "a name");
        return take(Token::Kind::word, "a name");
    }

    void parse_function(Function& function, const Mods& mods) {
        function_ = &function;
        mods_ = &mods;
        scope_.clear();
        defined_.clear();
        expect("func");
        function.name = function_name();
        bracketed('(', ')', [&] { parameter(); });
        for (;;) {
            if (accept("grid")) {
                bracketed('[', ']', [&] { function.grid.push_back(extent()); });
            } else if (accept("num_warps")) {
                function.hints.num_warps = static_cast<int>(integer(0, CompileHints::kMax));
            } else if (accept("num_stages")) {
                function.hints.num_stages = static_cast<int>(integer(0, CompileHints::kMax));
            } else {
                break;
            }
        }
        Builder builder(function);
        builder_ = &builder;
        block(function.body, {});
    }

    void parameter() {
        const Token at = token_;
        const std::string name = take(Token::Kind::value, "a parameter");
        if (function_->parameters().size() >= kMaxParameters) {
            fail(at, "expected at most {} parameters", kMaxParameters);
        }
        expect(':');
        Value value;
        if (is_word("ref") || is_word("scratch")) {
            const RefType ref = ref_type();
            located(at, [&] { value = function_->add_parameter(ref, ""); });
        } else {
            value = function_->add_parameter(type(), "");
        }
        define(at, name, value);
    }

    struct Argument {
        Token at;
        std::string name;
        Value value;
    };

    // A block whose arguments already exist as values; their names are visible only inside.
    void block(Block& target, std::span<const Argument> arguments) {
        if (++depth_ > kMaxBlockDepth) {
            fail(token_, "expected at most {} nested blocks", kMaxBlockDepth);
        }
        const std::size_t outer = defined_.size();
        for (const Argument& argument : arguments) {
            define(argument.at, argument.name, argument.value);
            target.arguments.push_back(argument.value);
        }
        const bool is_body = &target == &function_->body;
        if (!is_body) builder_->push_block(target);
        expect('{');
        while (!accept('}')) {
            if (accept("loc")) {
                location();
            } else {
                instruction();
            }
        }
        if (!is_body) builder_->pop_block();
        while (defined_.size() > outer) {
            scope_.erase(defined_.back());
            defined_.pop_back();
        }
        --depth_;
    }

    // ---- Instructions.

    void location() {
        Location location{interned(take(Token::Kind::text, "a file name")), 0};
        location.line = static_cast<int>(integer(0, std::numeric_limits<int>::max()));
        if (!by_lines_) builder_->set_location(location);
    }

    void instruction() {
        std::vector<std::pair<Token, std::string>> results;
        if (token_.kind == Token::Kind::value) {
            do {
                const Token at = token_;
                results.emplace_back(at, take(Token::Kind::value, "a value"));
            } while (accept(','));
            expect('=');
        }
        const Token at = token_;
        if (token_.kind != Token::Kind::word) unexpected("an operation");
        const auto op = parse_op(token_.text);
        if (!op) unexpected("an operation");
        advance();

        Instruction result;
        result.op = *op;
        if (by_lines_) result.location = {"ir", at.line};
        Token literal;  // of a constant; converted once its type is known
        std::vector<Argument> arguments;
        operands(result, literal, arguments);

        std::vector<Type> types;
        if (!results.empty()) {
            expect(':');
            do types.push_back(type());
            while (accept(','));
        }
        if (types.size() != results.size()) {
            fail(at, "expected {} types but got {}", results.size(), types.size());
        }
        if (result.op == Op::constant && !types.empty()) {
            result.attributes = ConstantAttributes{element(literal, types[0].dtype)};
        }
        blocks(result, arguments);
        located(at,
                [&] { builder_->append(std::move(result), types.empty() ? nullptr : &types[0]); });
        finish(at, results, types);
    }

    void finish(const Token& at, const std::vector<std::pair<Token, std::string>>& results,
                const std::vector<Type>& types) {
        const Instruction& added = builder_->block().body.back();
        if (added.results.size() != results.size()) {
            fail(at, "expected {} results of {} but got {}", added.results.size(), name(added.op),
                 results.size());
        }
        const std::vector<Value> values = added.results;
        for (std::size_t i = 0; i < results.size(); ++i) {
            const Type& inferred = function_->type(values[i]);
            if (inferred != types[i]) {
                fail(at, "expected result {} of {} to be {} but got {}", i, name(added.op),
                     to_string(inferred), to_string(types[i]));
            }
            define(results[i].first, results[i].second, values[i]);
        }
    }

    std::uint64_t element(const Token& literal, DType type) const {
        const std::string& text = literal.text;
        if (type == DType::boolean) {
            if (text == "true" || text == "false") return text == "true";
        } else if (type == DType::u64) {
            if (const auto value = number<std::uint64_t>(text)) return *value;
        } else if (is_integer(type)) {
            const auto value = number<std::int64_t>(text);
            const auto bits = static_cast<std::uint64_t>(value.value_or(0));
            if (value && wrap_to(type, bits) == bits) return bits;
        } else if (text == "nan") {
            return encode(type, std::numeric_limits<double>::quiet_NaN());
        } else if (text == "inf" || text == "-inf") {
            const double infinity = std::numeric_limits<double>::infinity();
            return encode(type, text == "inf" ? infinity : -infinity);
        } else if (type == DType::f32) {
            const auto value = number<float>(text);
            if (value && std::isfinite(*value)) return encode(type, *value);
        } else {
            const auto value = number<double>(text);
            if (value && std::isfinite(*value)) return encode(type, *value);
        }
        fail(literal, "expected a value of {} but got `{}`", name(type), text);
    }

    void operands(Instruction& result, Token& literal, std::vector<Argument>& arguments) {
        switch (result.op) {
            case Op::constant:
                literal = token_;
                take(Token::Kind::word, "a literal");
                result.attributes = ConstantAttributes{};
                return;
            case Op::for_loop:
                return for_heading(result, arguments);
            case Op::while_loop:
                return carries(result, arguments);
            case Op::call:
                return call(result);
            case Op::associative_scan:
                return scan(result);
            default:
                break;
        }
        if (is_access(result.op)) return access_operands(result);
        result.operands = uses();
        attributes(result);
    }

    void access_operands(Instruction& result) {
        AccessAttributes attributes;
        result.operands.push_back(use());
        bracketed('[', ']', [&] {
            Index index;
            if (accept("tile")) index.kind = Index::Kind::tile;
            result.operands.push_back(use());
            if (index.kind != Index::Kind::tile && accept(':')) {
                index.kind = Index::Kind::slice;
                index.size = integer(0);
                if (accept(':')) index.stride = integer(1);
            }
            attributes.indices.push_back(index);
        });
        while (accept(',')) result.operands.push_back(use());
        if (accept("mask")) {
            attributes.has_mask = true;
            result.operands.push_back(use());
        }
        if (accept("other")) {
            attributes.has_other = true;
            result.operands.push_back(use());
        }
        attributes.in_bounds = accept("in_bounds");
        result.attributes = std::move(attributes);
    }

    int axis() {
        expect("axis");
        return static_cast<int>(integer(0, kMaxRefRank * 1024));
    }

    void attributes(Instruction& result) {
        switch (result.op) {
            case Op::iota:
            case Op::program_id:
            case Op::num_programs:
            case Op::extent:
            case Op::expand_dims:
            case Op::concatenate:
                result.attributes = AxisAttributes{axis()};
                return;
            case Op::transpose: {
                expect("permutation");
                PermutationAttributes permutation;
                bracketed('[', ']', [&] {
                    permutation.permutation.push_back(static_cast<int>(integer(0, kMaxTileRank)));
                });
                result.attributes = std::move(permutation);
                return;
            }
            case Op::slice: {
                SliceAttributes slice;
                expect("starts");
                slice.starts = integers();
                expect("sizes");
                slice.sizes = integers();
                expect("strides");
                slice.strides = integers();
                result.attributes = std::move(slice);
                return;
            }
            case Op::reduce:
            case Op::scan:
                result.attributes = reduction();
                return;
            case Op::sort:
            case Op::argsort: {
                SortAttributes sort;
                sort.axis = axis();
                expect("count");
                sort.count = integer();
                sort.descending = accept("descending");
                result.attributes = sort;
                return;
            }
            case Op::dot: {
                DotAttributes dot;
                dot.transpose_a = accept("transpose_a");
                dot.transpose_b = accept("transpose_b");
                if (accept("precision")) {
                    const auto precision = parse_precision(token_.text);
                    if (!precision) unexpected("a precision");
                    dot.precision = *precision;
                    advance();
                }
                result.attributes = dot;
                return;
            }
            case Op::debug_print:
            case Op::debug_check:
                expect("text");
                result.attributes = TextAttributes{take(Token::Kind::text, "a string")};
                return;
            default:
                if (info(result.op).op_class == OpClass::unary) {
                    result.attributes = MathAttributes{accept("approx")};
                }
        }
    }

    ReduceAttributes reduction() {
        const auto kind = parse_reduction(token_.text);
        if (!kind) unexpected("a reduction");
        advance();
        ReduceAttributes result;
        result.kind = *kind;
        result.axis = axis();
        result.reverse = accept("reverse");
        result.exclusive = accept("exclusive");
        return result;
    }

    // ---- Control flow.

    void carries(Instruction& result, std::vector<Argument>& arguments) {
        if (!accept("carry")) return;
        bracketed('(', ')', [&] {
            const Token at = token_;
            const std::string name = take(Token::Kind::value, "a carry");
            expect('=');
            const Value init = use();
            if (function_->is_ref(init)) fail(at, "expected a tile as carry but got a Ref");
            result.operands.push_back(init);
            arguments.push_back({at, name, function_->add_value(function_->type(init))});
        });
    }

    void for_heading(Instruction& result, std::vector<Argument>& arguments) {
        const Token at = token_;
        const std::string name = take(Token::Kind::value, "an induction variable");
        arguments.push_back({at, name, function_->add_value({DType::i64, {}})});
        expect('=');
        result.operands = uses();
        if (result.operands.size() != 3) {
            fail(at, "expected lo, hi, step but got {} values", result.operands.size());
        }
        carries(result, arguments);
    }

    std::shared_ptr<const Function> callee() {
        const Token at = token_;
        const std::string name = function_name();
        const auto found = mods_->find(name);
        if (found == mods_->end()) {
            fail(at, "expected a function defined above but got @{}", name);
        }
        return found->second;
    }

    void call(Instruction& result) {
        result.attributes = CallAttributes{callee()};
        bracketed('(', ')', [&] { result.operands.push_back(use()); });
    }

    void scan(Instruction& result) {
        CombineAttributes attributes;
        attributes.combine = callee();
        bracketed('(', ')', [&] { result.operands.push_back(use()); });
        attributes.axis = axis();
        attributes.reverse = accept("reverse");
        result.attributes = std::move(attributes);
    }

    void blocks(Instruction& result, std::vector<Argument>& arguments) {
        if (result.op == Op::for_loop) {
            result.blocks.resize(1);
            block(result.blocks[0], arguments);
        } else if (result.op == Op::while_loop) {
            result.blocks.resize(2);
            block(result.blocks[0], arguments);
            expect("do");
            std::vector<Argument> inner;
            std::size_t next = 0;
            bracketed('(', ')', [&] {
                const Token at = token_;
                const std::string name = take(Token::Kind::value, "a carry");
                if (next >= arguments.size()) {
                    fail(at, "expected {} carries but got more", arguments.size());
                }
                const Type carried = function_->type(arguments[next++].value);
                inner.push_back({at, name, function_->add_value(carried)});
            });
            block(result.blocks[1], inner);
        } else if (result.op == Op::if_else) {
            result.blocks.resize(2);
            block(result.blocks[0], {});
            expect("else");
            block(result.blocks[1], {});
        }
    }

    bool by_lines_;
    Function* function_ = nullptr;
    const Mods* mods_ = nullptr;
    Builder* builder_ = nullptr;
    std::map<std::string, Value> scope_;
    std::vector<std::string> defined_;
    int depth_ = 0;
};

}  // namespace

Function parse(std::string_view text) {
    return Parser(text).module();
}

Function parse_by_lines(std::string_view text) {
    return Parser(text, true).module();
}

}  // namespace tilewright::ir
