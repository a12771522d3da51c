# Uses the package that `run.cmake` installed with several compilers: those that are too old get a
# short message, Clang 15 or newer builds the consumer.
#
# Called with PREFIX, CONSUMER, WORK, GENERATOR, MAKE, COMPILER (the one that built the library) and
# CASE: none (the Python package, on a machine without a compiler), standard (C++17), old_clang or
# clang. "no such compiler" skips the test.
function(expect_message text)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE out ERROR_VARIABLE out RESULT_VARIABLE status)
  message("${out}")
  string(REGEX MATCHALL "\n" lines "${out}")
  list(LENGTH lines length)
  if(status EQUAL 0 OR NOT out MATCHES "${text}" OR length GREATER 30)
    message(FATAL_ERROR "expected a failure of at most 30 lines that says `${text}`")
  endif()
endfunction()

file(MAKE_DIRECTORY ${WORK})
set(include -I${PREFIX}/include -fsyntax-only)
if(CASE STREQUAL none)
  file(REMOVE_RECURSE ${WORK}/none)
  expect_message("needs a compiler of C and C\\+\\+20.*apt-get install g\\+\\+"
    ${CMAKE_COMMAND} -E env --unset=CC --unset=CXX PATH=${WORK}/none
    ${CMAKE_COMMAND} -S ${CONSUMER}/../../python -B ${WORK}/none -G ${GENERATOR} -D CMAKE_MAKE_PROGRAM=${MAKE})
elseif(CASE STREQUAL standard)
  expect_message("needs C\\+\\+20" ${COMPILER} -std=c++17 ${include} ${CONSUMER}/main.cpp)
elseif(CASE STREQUAL old_clang)
  find_program(clang NAMES clang++-14 clang++-13)
  if(NOT clang)
    message("no such compiler: clang++-14")
    return()
  endif()
  expect_message("needs Clang 15" ${clang} -std=c++20 ${include} ${CONSUMER}/main.cpp)
  expect_message("needs GCC 12 or Clang 15" ${CMAKE_COMMAND} -S ${CONSUMER} -B ${WORK}/old_clang
    -G ${GENERATOR} -D CMAKE_CXX_COMPILER=${clang} -D CMAKE_PREFIX_PATH=${PREFIX})
elseif(CASE STREQUAL clang)
  find_program(clang NAMES clang++-21 clang++-20 clang++-19 clang++-18 clang++-17 clang++-16 clang++-15)
  if(NOT clang)
    message("no such compiler: clang++-15 or newer")
    return()
  endif()
  foreach(command
      "${clang};-std=c++20;-Wall;-Wextra;-Werror;${include};${CONSUMER}/headers.cpp"
      "${CMAKE_COMMAND};-S;${CONSUMER};-B;${WORK}/clang;-G;${GENERATOR};-D;CMAKE_CXX_COMPILER=${clang};-D;CMAKE_PREFIX_PATH=${PREFIX}"
      "${CMAKE_COMMAND};--build;${WORK}/clang"
      "${WORK}/clang/consumer")
    execute_process(COMMAND ${command} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endif()
