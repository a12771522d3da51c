// Checks the compiler and marks what the library exports. Every public header includes it.
#pragma once

// An #include that is not found stops the compiler before it reports hundreds of errors.
#if defined(__cplusplus) && __cplusplus < 202002L
#error "Tilewright needs C++20: compile with -std=c++20, with GCC 12 or Clang 15 or newer"
#include "tilewright needs C++20"
#elif defined(__clang__) && __clang_major__ < 15
#error "Tilewright needs Clang 15 or newer, or GCC 12 or newer (Debian 12: g++, clang-15, clang-16)"
#include "tilewright needs Clang 15 or GCC 12"
#elif defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 12
#error "Tilewright needs GCC 12 or newer, or Clang 15 or newer (Ubuntu 22.04: g++-12, clang-15)"
#include "tilewright needs GCC 12 or Clang 15"
#endif

/// Declares a namespace whose functions and classes libtilewright.so exports; it hides the rest.
#define TW_API [[gnu::visibility("default")]]
