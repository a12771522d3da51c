# tilewright_check_compiler(PROBLEM): what is wrong with this project's C++ compiler, or empty. The
# versions are those of include/tilewright/compiler.h.
function(tilewright_check_compiler problem)
  set(${problem} "" PARENT_SCOPE)
  set(least_GNU 12)
  set(least_Clang 15)
  set(least_AppleClang 15)
  set(least "${least_${CMAKE_CXX_COMPILER_ID}}")
  if(NOT CMAKE_CXX_COMPILER_LOADED)
    set(${problem} "Tilewright is a C++ library: project(... LANGUAGES CXX) must come before it" PARENT_SCOPE)
  elseif(least AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS least)
    set(${problem} "Tilewright needs GCC ${least_GNU} or Clang ${least_Clang}, or newer, for C++20, but \
${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}. Name another one by \
-D CMAKE_CXX_COMPILER=... in a fresh build folder (Debian 12 has g++, clang++-15 and clang++-16)" PARENT_SCOPE)
  endif()
endfunction()
