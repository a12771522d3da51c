// A matcher for calls that must throw with a text.
#pragma once

#include <gmock/gmock.h>

#include <string>

#include "tests/support/googletest.h"
#include "tilewright/error.h"

namespace tilewright::testing {

/// Matches a call without arguments that throws an Error, by default a UserError, whose text
/// contains this part. EXPECT_THAT([&] { f(x); }, throws("expected 2 but got 3"));
template <typename Error = UserError>
auto throws(const std::string& part) {
    return ThrowsMessage<Error>(HasSubstr(part));
}

}  // namespace tilewright::testing
