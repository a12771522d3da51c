// Reads the scheduled form back from text.
#include <bit>
#include <charconv>
#include <map>

#include "cuda/schedule/program.h"
#include "ir/lexer.h"
#include "support/check.h"

namespace tilewright::cuda::schedule {
namespace {

using ir::Token;

class Parser {
  public:
    explicit Parser(std::string_view text) : lexer_(text) { advance(); }

    Program run() {
        keyword("schedule");
        Program& p = program_;
        p.name = symbol();
        const std::vector<Attribute> header = attributes(token_.line);
        for (const Attribute& one : header) {
            if (one.name == "arch") p.arch = one.text;
            if (one.name == "level") {
                const auto level = parse_level(one.text);
                if (!level) fail("a level", one.text);
                p.level = *level;
            }
            if (one.name == "grid") p.grid = one.numbers;
            if (one.name == "groups") p.groups = ints(one.numbers);
            if (one.name == "rows") p.order.rows = ints(one.numbers);
            if (one.name == "columns") p.order.columns = ints(one.numbers);
            if (one.name == "order") p.order.group = static_cast<int>(one.numbers.at(0));
            if (one.name == "stages") p.stages = static_cast<int>(one.numbers.at(0));
            if (one.name == "inner") p.order.inner = ints(one.numbers);
            if (one.name == "unequal") p.order.unequal = true;
            if (one.name == "irregular") p.order.irregular = true;
            if (one.name == "pairs") {
                for (const Pairs pairs : {Pairs::rows, Pairs::columns, Pairs::both}) {
                    if (one.text == name(pairs)) p.pairs = pairs;
                }
            }
            if (one.name == "blocks") p.blocks = static_cast<int>(one.numbers.at(0));
            if (one.name == "turns") p.turns = static_cast<int>(one.numbers.at(0));
            if (one.name == "shared") p.shared_bytes = one.numbers.at(0);
        }
        expect("{");
        while (object()) {
        }
        block(p.body);
        expect("}");
        if (token_.kind != Token::Kind::end) fail("the end of the text", token_.text);
        return std::move(p);
    }

  private:
    [[noreturn]] void fail(std::string_view expected, std::string_view got) const {
        user_error("schedule", "line {}, column {}: expected {} but got `{}`", token_.line,
                   token_.column, expected, got);
    }
    void advance() { token_ = lexer_.next(); }
    bool is(std::string_view text) const {
        return (token_.kind == Token::Kind::symbol || token_.kind == Token::Kind::word) &&
               token_.text == text;
    }
    bool accept(std::string_view text) {
        if (!is(text)) return false;
        advance();
        return true;
    }
    void expect(std::string_view text) {
        if (!accept(text)) fail(text, token_.text);
    }
    void keyword(std::string_view text) { expect(text); }
    std::string take(Token::Kind kind, std::string_view expected) {
        if (token_.kind != kind) fail(expected, token_.text);
        std::string text = token_.text;
        advance();
        return text;
    }
    std::string symbol() {
        expect("@");
        return take(Token::Kind::word, "a name");
    }
    static bool is_number(const Token& token) {
        return token.kind == Token::Kind::word &&
               (token.text[0] == '-' || (token.text[0] >= '0' && token.text[0] <= '9') ||
                token.text == "inf" || token.text == "nan");
    }
    std::int64_t number() {
        const std::string text = take(Token::Kind::word, "a number");
        std::int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc() || end != text.data() + text.size()) fail("an integer", text);
        return value;
    }
    std::vector<std::int64_t> numbers() {
        std::vector<std::int64_t> result;
        expect("[");
        while (!is("]")) {
            result.push_back(number());
            if (!accept(",")) break;
        }
        expect("]");
        return result;
    }
    static std::vector<int> ints(const std::vector<std::int64_t>& wide) {
        return {wide.begin(), wide.end()};
    }
    static std::vector<std::uint64_t> bases(const std::vector<std::int64_t>& numbers) {
        return {numbers.begin(), numbers.end()};
    }

    /// Attributes are on the line of the object that they belong to.
    std::vector<Attribute> attributes(int line) {
        std::vector<Attribute> result;
        while (token_.kind == Token::Kind::word && token_.line == line) {
            Attribute one;
            one.name = take(Token::Kind::word, "an attribute");
            const bool same = token_.line == line;
            if (same && is("@")) {
                one.kind = Attribute::Kind::symbol;
                one.text = symbol();
            } else if (same && is("[")) {
                one.kind = Attribute::Kind::list;
                one.numbers = numbers();
            } else if (same && token_.kind == Token::Kind::text) {
                one.kind = Attribute::Kind::text;
                one.text = take(Token::Kind::text, "text");
            } else if (same && one.name == "is") {
                one.kind = Attribute::Kind::element;
                one.text = take(Token::Kind::word, "an element");
            } else if (same && is_number(token_)) {
                one.kind = Attribute::Kind::number;
                one.numbers = {number()};
            }
            result.push_back(std::move(one));
        }
        return result;
    }

    static const Attribute* find(const std::vector<Attribute>& list, std::string_view name) {
        for (const Attribute& one : list) {
            if (one.name == name) return &one;
        }
        return nullptr;
    }
    std::int64_t number_of(const std::vector<Attribute>& list, std::string_view name) {
        const Attribute* const found = find(list, name);
        if (found == nullptr || found->numbers.size() != 1) fail(name, token_.text);
        return found->numbers[0];
    }
    std::int64_t number_or_0(const std::vector<Attribute>& list, std::string_view name) {
        return find(list, name) == nullptr ? 0 : number_of(list, name);
    }
    std::string text_of(const std::vector<Attribute>& list, std::string_view name) {
        const Attribute* const found = find(list, name);
        if (found == nullptr || found->text.empty()) fail(name, token_.text);
        return found->text;
    }
    DType dtype(const std::string& text) {
        const auto found = parse_dtype(text);
        if (!found) fail("an element type", text);
        return *found;
    }

    /// One line of the header: a parameter, a layout, a buffer and so on.
    bool object() {
        Program& p = program_;
        if (accept("ref")) {
            Parameter one;
            one.is_ref = true;
            one.name = symbol();
            const auto list = attributes(token_.line);
            one.dtype = dtype(text_of(list, "dtype"));
            if (const Attribute* extents = find(list, "extents")) one.extents = extents->numbers;
            one.vectors = find(list, "vectors") != nullptr;
            one.tensor = find(list, "tensor") != nullptr;
            one.dense = find(list, "dense") != nullptr;
            one.scratch = find(list, "scratch") != nullptr;
            one.copy_bytes = static_cast<int>(number_or_0(list, "copy_bytes"));
            p.parameters.push_back(std::move(one));
        } else if (accept("scalar")) {
            Parameter one;
            one.name = symbol();
            const std::string value = take(Token::Kind::value, "a value");
            expect(":");
            one.value = define(value, type());
            one.dtype = p.type(one.value).type.dtype;
            p.parameters.push_back(std::move(one));
        } else if (accept("layout")) {
            const std::string name = symbol();
            const auto list = attributes(token_.line);
            Layout layout;
            layout.shape = ir::Shape(std::span<const std::int64_t>(find_list(list, "shape")));
            layout.reg = bases(find_list(list, "reg"));
            layout.lane = bases(find_list(list, "lane"));
            layout.warp = bases(find_list(list, "warp"));
            layouts_.emplace(name, std::move(layout));
        } else if (accept("buffer")) {
            Buffer one;
            one.name = symbol();
            const auto list = attributes(token_.line);
            one.dtype = dtype(text_of(list, "dtype"));
            one.rows = number_of(list, "rows");
            one.columns = number_of(list, "columns");
            one.slots = static_cast<int>(number_of(list, "slots"));
            one.per_group = find(list, "per_group") != nullptr;
            one.offset = number_of(list, "at");
            if (const Attribute* purpose = find(list, "purpose")) one.purpose = purpose->text;
            p.buffers.push_back(std::move(one));
        } else if (accept("map")) {
            Map one;
            one.name = symbol();
            const auto list = attributes(token_.line);
            one.ref = text_of(list, "of");
            one.box = find_list(list, "box");
            p.maps.push_back(std::move(one));
        } else if (accept("channel")) {
            Channel one;
            one.name = symbol();
            const auto list = attributes(token_.line);
            for (const Attribute& part : list) {
                if (part.name == "buffer") one.buffers.push_back(part.text);
            }
            one.slots = static_cast<int>(number_of(list, "slots"));
            one.bytes = number_of(list, "bytes");
            one.copied = number_or_0(list, "copied");
            one.empty_arrivals = static_cast<int>(number_of(list, "empty_arrivals"));
            one.full = number_of(list, "full");
            one.empty = number_of(list, "empty");
            p.channels.push_back(std::move(one));
        } else if (accept("warps")) {
            Role one;
            one.name = symbol();
            const auto list = attributes(token_.line);
            one.first_warp = static_cast<int>(number_of(list, "first"));
            one.warps = static_cast<int>(number_of(list, "count"));
            one.registers = static_cast<int>(number_of(list, "registers"));
            one.one = find(list, "one") != nullptr;
            p.roles.push_back(std::move(one));
        } else {
            return false;
        }
        return true;
    }
    std::vector<std::int64_t> find_list(const std::vector<Attribute>& list, std::string_view name) {
        const Attribute* const found = find(list, name);
        if (found == nullptr) fail(name, token_.text);
        return found->numbers;
    }

    ValueType type() {
        ValueType result;
        const std::string text = take(Token::Kind::word, "a type");
        if (text == "count") {
            result.is_count = true;
            return result;
        }
        result.type.dtype = dtype(text);
        if (is("[")) {
            const auto dims = numbers();
            result.type.shape = ir::Shape(std::span<const std::int64_t>(dims));
        }
        if (is("@")) {
            const std::string name = symbol();
            const auto found = layouts_.find(name);
            if (found == layouts_.end()) fail("a layout", name);
            result.layout = found->second;
        }
        result.packed = accept("packed");
        return result;
    }
    Value define(const std::string& name, ValueType of) {
        const Value value = program_.add(std::move(of), name);
        if (!values_.emplace(name, value).second) fail("a new name", name);
        return value;
    }
    Value use(const std::string& name) {
        const auto found = values_.find(name);
        if (found == values_.end()) fail("a value that is defined", name);
        return found->second;
    }
    std::vector<std::string> value_names() {
        std::vector<std::string> names;
        while (token_.kind == Token::Kind::value) {
            names.push_back(take(Token::Kind::value, "a value"));
            if (!accept(",")) break;
        }
        return names;
    }

    void block(Block& of) {
        while (!is("}")) {
            if (token_.kind == Token::Kind::end) fail("}", "the end");
            of.body.push_back(instruction());
        }
    }

    Instruction instruction() {
        Instruction made;
        const std::vector<std::string> results = value_names();
        if (!results.empty()) expect("=");
        const int line = token_.line;
        const std::string called = take(Token::Kind::word, "an operation");
        if (const auto op = parse_op(called)) {
            made.op = *op;
        } else if (const auto tile = ir::parse_op(called)) {
            made.tile = *tile;
        } else {
            fail("an operation", called);
        }
        if (token_.line == line) {
            for (const std::string& operand : value_names()) made.operands.push_back(use(operand));
        }
        made.attributes = attributes(line);
        std::vector<ValueType> types;
        if (accept(":")) {
            types.push_back(type());
            while (accept(",")) types.push_back(type());
        }
        if (types.size() != results.size()) fail("one type for each result", token_.text);
        for (Attribute& one : made.attributes) {
            if (one.kind == Attribute::Kind::element) element(one, types.at(0).type.dtype);
        }
        if (is("{")) {
            do {
                advance();
                Block inner;
                if (accept("(")) {
                    while (!is(")")) {
                        const std::string name = take(Token::Kind::value, "an argument");
                        expect(":");
                        inner.arguments.push_back(define(name, type()));
                        if (!accept(",")) break;
                    }
                    expect(")");
                }
                block(inner);
                expect("}");
                made.blocks.push_back(std::move(inner));
            } while (is("{"));
        }
        for (std::size_t i = 0; i < results.size(); ++i) {
            made.results.push_back(define(results[i], types[i]));
        }
        return made;
    }
    void element(Attribute& one, DType of) {
        if (is_float(of)) {
            one.numbers = {std::bit_cast<std::int64_t>(std::strtod(one.text.c_str(), nullptr))};
        } else if (of == DType::boolean) {
            one.numbers = {one.text == "true" ? 1 : 0};
        } else if (of == DType::u64) {
            std::uint64_t value = 0;
            std::from_chars(one.text.data(), one.text.data() + one.text.size(), value);
            one.numbers = {static_cast<std::int64_t>(value)};
        } else {
            std::int64_t value = 0;
            std::from_chars(one.text.data(), one.text.data() + one.text.size(), value);
            one.numbers = {value};
        }
    }

    ir::Lexer lexer_;
    Token token_;
    Program program_;
    std::map<std::string, Value> values_;
    std::map<std::string, Layout> layouts_;
};

}  // namespace

Program parse(std::string_view text) {
    return Parser(text).run();
}

}  // namespace tilewright::cuda::schedule
