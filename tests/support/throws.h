// Calls that must fail, and say why.
#pragma once

#include <gmock/gmock.h>

#include <string>

#include "tests/support/googletest.h"
#include "tilewright/error.h"

namespace tilewright::testing {

/// Of a call without arguments: it throws an Error, a UserError where nothing else is said, whose
/// text has this part. EXPECT_THAT([&] { f(x); }, throws("expected 2 but got 3"));
template <typename Error = UserError>
auto throws(const std::string& part) {
    return ThrowsMessage<Error>(HasSubstr(part));
}

}  // namespace tilewright::testing
