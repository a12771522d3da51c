# Third-party libraries: the system's if installed, else a pinned commit of their repository.
include(FetchContent)
find_package(Threads REQUIRED)
find_package(PkgConfig)

# tw_expect_git(NAME repository): a clear error if a missing library cannot be fetched.
function(tw_expect_git name repository)
  find_package(Git QUIET)
  string(TOUPPER "FETCHCONTENT_SOURCE_DIR_${name}" given)
  if(NOT Git_FOUND AND NOT DEFINED ${given})
    message(FATAL_ERROR "Tilewright needs ${name}, which is not installed, and git to fetch it from \
https://github.com/${repository}, which is not either. Debian and Ubuntu: apt-get install git, or the libraries \
themselves: libhwy-dev libtbb-dev libfmt-dev libcli11-dev nlohmann-json3-dev libxxhash-dev zlib1g-dev libgtest-dev \
libgmock-dev")
  endif()
endfunction()

# tw_dependency(NAME repository commit [find_package arguments...])
macro(tw_dependency name repository commit)
  find_package(${name} ${ARGN} QUIET)
  if(NOT ${name}_FOUND)
    tw_expect_git(${name} ${repository})
  endif()
  FetchContent_Declare(${name}
    GIT_REPOSITORY https://github.com/${repository}.git GIT_TAG ${commit}
    FIND_PACKAGE_ARGS ${ARGN})
  FetchContent_MakeAvailable(${name})
endmacro()

# tw_pkgconfig_dependency(PREFIX module repository commit target [FetchContent arguments...]):
# PkgConfig::PREFIX, for libraries that distributions package without CMake files.
macro(tw_pkgconfig_dependency prefix module repository commit target)
  if(PKG_CONFIG_FOUND AND NOT CMAKE_DISABLE_FIND_PACKAGE_${prefix})
    pkg_check_modules(${prefix} QUIET IMPORTED_TARGET ${module})
  endif()
  if(NOT TARGET PkgConfig::${prefix})
    tw_expect_git(${prefix} ${repository})
    FetchContent_Declare(${prefix}
      GIT_REPOSITORY https://github.com/${repository}.git GIT_TAG ${commit} ${ARGN})
    FetchContent_MakeAvailable(${prefix})
    add_library(PkgConfig::${prefix} ALIAS ${target})
  endif()
endmacro()

# Warnings are errors in our code, not in fetched headers.
set_directory_properties(PROPERTIES SYSTEM ON)

# Options of fetched libraries. These policies make variables set here override their options.
set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
set(CMAKE_POLICY_DEFAULT_CMP0126 NEW)
set(BENCHMARK_ENABLE_INSTALL OFF)
set(BENCHMARK_ENABLE_TESTING OFF)
set(HWY_ENABLE_CONTRIB OFF)
set(HWY_ENABLE_EXAMPLES OFF)
set(HWY_ENABLE_INSTALL OFF)
set(HWY_ENABLE_TESTS OFF)
set(INSTALL_GTEST OFF)
set(TBB_STRICT OFF)
set(TBB_TEST OFF)
set(XXHASH_BUNDLED_MODE ON)

tw_dependency(fmt fmtlib/fmt e69e5f977d458f2650bb346dadf2ad30c5320281 9)  # 10.2.1
tw_dependency(TBB oneapi-src/oneTBB 1c4c93fc5398c4a1acb3492c02db4699f3048dea)  # 2021.13.0
tw_dependency(nlohmann_json nlohmann/json 9cca280a4d0ccf0c08f47a99aa71d1b0e52f8d03 3.10)  # 3.11.3
tw_dependency(CLI11 CLIUtils/CLI11 6c7b07a878ad834957b98d0f9ce1dbe0cb204fc9 2.1)  # 2.4.2
tw_pkgconfig_dependency(HWY libhwy google/highway 457c891775a7397bdb0376bb1031e6e027af1c48 hwy)  # 1.2.0
tw_pkgconfig_dependency(XXHASH libxxhash Cyan4973/xxHash bbb27a5efb85b92a0486cf361a8635715a53f6ba xxhash
  SOURCE_SUBDIR cmake_unofficial)  # 0.8.2
# zlib's own CMake names its targets zlib and zlibstatic, and installs itself.
find_package(ZLIB QUIET)
if(NOT ZLIB_FOUND)
  tw_expect_git(zlib madler/zlib)
  set(SKIP_INSTALL_ALL ON)
  set(ZLIB_BUILD_EXAMPLES OFF)
  FetchContent_Declare(zlib GIT_REPOSITORY https://github.com/madler/zlib.git
    GIT_TAG 51b7f2abdade71cd9bb0e7a373ef2610ec6f9daf)  # 1.3.1
  FetchContent_MakeAvailable(zlib)
  target_include_directories(zlibstatic INTERFACE ${zlib_SOURCE_DIR} ${zlib_BINARY_DIR})
  add_library(ZLIB::ZLIB ALIAS zlibstatic)
endif()
if(TILEWRIGHT_BUILD_TESTS)
  tw_dependency(GTest google/googletest f8d7d77c06936315286eb55f8de22cd23c188571)  # 1.14.0
endif()
if(TILEWRIGHT_BUILD_BENCH)
  tw_dependency(benchmark google/benchmark a6ad7fbbdc2e14fab82bb8a6d27760d700198cbf)  # 1.8.5
endif()
set_directory_properties(PROPERTIES SYSTEM OFF)
