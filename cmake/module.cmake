# One module = one folder = one namespace = one CMake target = one test folder.
#
# tw_module(NAME name SOURCES a.cpp ... [DEPENDS module ...] [LIBRARIES target ...] [TESTS t.cpp ...]
#           [OPTIMIZE level] [OBJECTS] [UNITY])
#   DEPENDS    modules of this project whose headers the module may include
#   LIBRARIES  third-party targets
#   TESTS      files of tests/<name>/, built into the ctest program <name>_tests
#   OPTIMIZE   for the Release build, -O2 by default; -O3 takes a fifth longer and pays in kernels only
#
#   OBJECTS    an object library, whose objects are linked whole
#   UNITY      its files may be compiled together: no two have the same name in an anonymous namespace
#
# Standard headers are half of most units, so they are precompiled: once for the modules, once for
# the tests, and again for each other -O (GCC 13 cannot share them across levels).
# CMAKE_DISABLE_PRECOMPILE_HEADERS turns that off; clang-tidy reads every file without them.

add_library(tw_options INTERFACE)
target_compile_options(tw_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(tw_options INTERFACE -Wno-restrict)  # false alarms on std::string (GCC PR105651)
endif()
# No contraction to FMA: sums and products round as written, on every machine.
target_compile_options(tw_options INTERFACE -ffp-contract=off)
if(TILEWRIGHT_WERROR)
  target_compile_options(tw_options INTERFACE -Werror)
endif()

set(tw_common_headers
  <algorithm> <array> <cmath> <cstdint> <cstring> <functional> <limits> <map> <memory> <optional> <span> <sstream>
  <string> <string_view> <unordered_map> <utility> <vector> <fmt/format.h> <fmt/ranges.h>)
set(tw_test_headers ${tw_common_headers} <random> <gmock/gmock.h> <gtest/gtest.h>)

# tw_precompile(target owner header...): the owner compiles the headers, other targets reuse them.
function(tw_precompile target owner)
  if(target STREQUAL owner)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()

function(tw_module)
  cmake_parse_arguments(M "OBJECTS;UNITY" "NAME;OPTIMIZE" "SOURCES;DEPENDS;LIBRARIES;TESTS" ${ARGN})
  set(target tw_${M_NAME})
  set(kind STATIC)
  if(M_OBJECTS)
    set(kind OBJECT)
  endif()
  add_library(${target} ${kind} ${M_SOURCES})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
  # Public headers mark what the library exports (TW_API); everything else is hidden.
  set_target_properties(${target} PROPERTIES
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  list(TRANSFORM M_DEPENDS PREPEND tw_)
  target_link_libraries(${target} PUBLIC ${M_DEPENDS} ${M_LIBRARIES} PRIVATE tw_options)
  if(NOT M_OPTIMIZE)
    set(M_OPTIMIZE -O2)
  endif()
  # Paths in messages and profiles start at the source folder, so that builds elsewhere have the same bytes.
  target_compile_options(${target} PRIVATE -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=
    -Wconversion $<$<CONFIG:Release>:${M_OPTIMIZE}>)
  if(M_OPTIMIZE STREQUAL "-O1")
    tw_precompile(${target} ${target} ${tw_common_headers})
  else()
    tw_precompile(${target} tw_support ${tw_common_headers})
  endif()
  if(M_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ${TILEWRIGHT_UNITY})
  endif()
  set_property(GLOBAL APPEND PROPERTY TILEWRIGHT_MODULES ${target})
  set_property(GLOBAL APPEND PROPERTY TILEWRIGHT_LIBRARIES ${M_LIBRARIES})
  if(TILEWRIGHT_BUILD_TESTS AND M_TESTS)
    tw_test(NAME ${M_NAME} MODULES ${M_NAME} SOURCES ${M_TESTS})
  endif()
endfunction()

# tw_test(NAME name MODULES module ... SOURCES file ...): files are relative to tests/<name>/.
function(tw_test)
  cmake_parse_arguments(T "" "NAME" "MODULES;SOURCES" ${ARGN})
  list(TRANSFORM T_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/tests/${T_NAME}/)
  list(TRANSFORM T_MODULES PREPEND tw_)
  add_executable(${T_NAME}_tests ${T_SOURCES})
  target_include_directories(${T_NAME}_tests PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${T_NAME}_tests PRIVATE tw_test_support ${T_MODULES} tw_options GTest::gtest_main GTest::gmock)
  set_target_properties(${T_NAME}_tests PROPERTIES UNITY_BUILD ${TILEWRIGHT_UNITY})
  target_compile_options(${T_NAME}_tests PRIVATE $<$<CONFIG:Release>:-O1>)
  tw_precompile(${T_NAME}_tests support_tests ${tw_test_headers})
  add_test(NAME ${T_NAME} COMMAND ${T_NAME}_tests)
endfunction()

# tw_bench(NAME name MODULES module ... SOURCES file ...): a Google Benchmark program of bench/;
# the target run_benchmarks runs all of them one after another.
function(tw_bench)
  cmake_parse_arguments(B "" "NAME" "MODULES;SOURCES" ${ARGN})
  list(TRANSFORM B_MODULES PREPEND tw_)
  add_executable(${B_NAME}_bench ${B_SOURCES})
  target_include_directories(${B_NAME}_bench PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${B_NAME}_bench PRIVATE ${B_MODULES} tw_options benchmark::benchmark_main)
  if(NOT TARGET run_benchmarks)
    add_custom_target(run_benchmarks)
  endif()
  add_custom_command(TARGET run_benchmarks POST_BUILD COMMAND ${B_NAME}_bench USES_TERMINAL)
  add_dependencies(run_benchmarks ${B_NAME}_bench)
endfunction()
