// What the tests of passes run them on: the body of one small kernel.
#pragma once

#include <string>
#include <string_view>

#include "ir/parse.h"
#include "ir/print.h"
#include "ir/verify.h"

namespace tilewright::ir {

inline constexpr std::string_view kHead =
    "func @f(%x: ref<f32[64]>, %y: ref<f32[64]>, %n: i64, %a: f32, %p: ref<f32[?]> alias 1, "
    "%q: ref<f32[?]> alias 1, %c: bool) grid [4] {\n";

// The body of a kernel with the parameters above.
inline Function kernel(std::string_view body) {
    return parse(std::string(kHead) + "  %0 = constant 0 : i64\n  %1 = constant 1 : i64\n" +
                 "  %16 = constant 16 : i64\n" + std::string(body) + "  yield\n}\n");
}

template <typename Pass>
std::string after(Pass pass, std::string_view body) {
    Function f = kernel(body);
    pass(f);
    verify(f);
    return print(f);
}

}  // namespace tilewright::ir
