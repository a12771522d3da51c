# Installs BUILD to a fresh prefix, then configures, builds and runs the project CONSUMER against it.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(work ${BUILD}/consumer)
file(REMOVE_RECURSE ${work})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix)

# The package must not ask for a library of ours: every other package is made unfindable.
set(hidden)
foreach(package benchmark CLI11 fmt GTest hwy nlohmann_json TBB)
  list(APPEND hidden -D CMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()
run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${work}/build -G ${GENERATOR}
  -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_BUILD_TYPE=Release
  -D CMAKE_PREFIX_PATH=${work}/prefix ${hidden})
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/consumer)
