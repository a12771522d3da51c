// GoogleTest, found through testing:: in our namespaces too, beside what tilewright::testing adds.
#pragma once

#include <gtest/gtest.h>

namespace tilewright::testing {
using namespace ::testing;  // NOLINT(google-build-using-namespace)
}
