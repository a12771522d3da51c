# Installs BUILD to a fresh prefix, then configures, builds and runs the project CONSUMER with it.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(work ${BUILD}/consumer)
file(REMOVE_RECURSE ${work})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix)

# The package must not require any of our dependencies: all of them are hidden.
set(hidden)
foreach(package benchmark CLI11 fmt GTest hwy nlohmann_json TBB)
  list(APPEND hidden -D CMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()
run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${work}/build -G ${GENERATOR}
  -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_BUILD_TYPE=Release
  -D CMAKE_PREFIX_PATH=${work}/prefix ${hidden})
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/consumer)

# The same with pkg-config, from a prefix that was moved.
file(RENAME ${work}/prefix ${work}/moved)
find_program(pkg_config pkg-config REQUIRED)
set(ENV{PKG_CONFIG_PATH} ${work}/moved/${LIBDIR}/pkgconfig)
execute_process(COMMAND ${pkg_config} --cflags --libs tilewright
  OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags)
run(${COMPILER} -std=c++20 ${CONSUMER}/main.cpp ${flags} -Wl,-rpath,${work}/moved/${LIBDIR} -o ${work}/by_pkg_config)
run(${work}/by_pkg_config)
run(${C_COMPILER} -std=c11 ${EXAMPLES}/c/attention.c ${flags} -Wl,-rpath,${work}/moved/${LIBDIR} -lm -o ${work}/from_c)
run(${work}/from_c)

# An exported operation, deployed through its C++17 header.
run(${work}/moved/bin/tilewright export rms_norm --shape 8,64 --name small_norm --out ${work}/artifact)
run(${COMPILER} -std=c++17 -Wall -Wextra -Wpedantic -Werror -I ${work}/artifact ${CONSUMER}/deploy.cpp ${flags}
  -Wl,-rpath,${work}/moved/${LIBDIR} -o ${work}/deploy)
run(${work}/deploy ${work}/artifact)
file(RENAME ${work}/moved ${work}/prefix)
if(NOT EXISTS ${work}/prefix/${DOCDIR}/LICENSE)
  message(FATAL_ERROR "expected the licence in ${DOCDIR}")
endif()
