# tw_embed(TARGET target OUTPUT file.cpp FUNCTION qualified::name FILES a.cuh ...)
#
# Embeds device headers in a target: generates a source that defines const
#   std::vector<tilewright::cuda::Header>& FUNCTION()
# with every file under its path relative to src/, by which kernels include it.
function(tw_embed)
  cmake_parse_arguments(E "" "TARGET;OUTPUT;FUNCTION" "FILES" ${ARGN})
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${E_OUTPUT})
  list(TRANSFORM E_FILES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  string(REPLACE ";" "," files "${E_FILES}")
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DFUNCTION=${E_FUNCTION} -DFILES=${files}
      -DROOT=${PROJECT_SOURCE_DIR}/src -P ${PROJECT_SOURCE_DIR}/cmake/embed_script.cmake
    DEPENDS ${E_FILES} ${PROJECT_SOURCE_DIR}/cmake/embed_script.cmake
    COMMENT "Embedding the device headers of ${E_TARGET}" VERBATIM)
  target_sources(${E_TARGET} PRIVATE ${output})
endfunction()
