// Makes GoogleTest available as testing:: in our namespaces, beside tilewright::testing's names.
#pragma once

#include <gtest/gtest.h>

namespace tilewright::testing {
using namespace ::testing;  // NOLINT(google-build-using-namespace)
}
