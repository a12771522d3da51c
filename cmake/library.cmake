# The one library that users link, tilewright::tilewright, its CMake package and its .pc file.
#
# It contains every module below the CLI. Its headers use none of our dependencies, which are
# private: a consumer needs only this package.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

get_property(modules GLOBAL PROPERTY TILEWRIGHT_MODULES)
get_property(libraries GLOBAL PROPERTY TILEWRIGHT_LIBRARIES)
list(REMOVE_ITEM modules tw_cli)
list(REMOVE_DUPLICATES libraries)
list(TRANSFORM modules REPLACE ".+" "$<TARGET_OBJECTS:\\0>" OUTPUT_VARIABLE objects)

# Before 1.0 a new minor version may break programs; the loader and find_package use one number.
set(soversion ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(exports ${PROJECT_SOURCE_DIR}/cmake/exports.map)

# Not named tilewright: in the build folder, that file is the program.
add_library(tilewright_library SHARED ${objects})
add_library(tilewright::tilewright ALIAS tilewright_library)
set_target_properties(tilewright_library PROPERTIES
  OUTPUT_NAME tilewright EXPORT_NAME tilewright
  LINKER_LANGUAGE CXX VERSION ${soversion} SOVERSION ${soversion}
  LINK_DEPENDS ${exports})
target_compile_features(tilewright_library INTERFACE cxx_std_20)
target_include_directories(tilewright_library INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(tilewright_library PRIVATE ${libraries} Threads::Threads)
target_link_options(tilewright_library PRIVATE -Wl,--no-undefined -Wl,--version-script=${exports})

# The component tilewright is what find_package needs, and the program; Python wheels ship it too.
# It names the library by its file, since wheels cannot hold links; the link libtilewright.so and
# the .pc file are the component system.
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/tilewright)

# Attention kernels without mods for Hopper GPUs, compiled into a file next to the library.
set(kernels ${PROJECT_BINARY_DIR}/tilewright-kernels.pack)
set(all "")
if(TILEWRIGHT_PRECOMPILE)
  set(all ALL)
endif()
add_custom_target(tilewright_kernels ${all} COMMAND tilewright_cli precompile ${kernels}
  BYPRODUCTS ${kernels} COMMENT "Compiling kernels for Hopper GPUs (minutes on two cores)" USES_TERMINAL VERBATIM)
install(FILES ${kernels} DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT tilewright OPTIONAL)

install(TARGETS tilewright_library EXPORT tilewright
  LIBRARY COMPONENT tilewright NAMELINK_COMPONENT system)
install(DIRECTORY include/tilewright DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT tilewright)
install(EXPORT tilewright NAMESPACE tilewright:: FILE tilewright-targets.cmake
  DESTINATION ${package_folder} COMPONENT tilewright)
write_basic_package_version_file(tilewright-config-version.cmake COMPATIBILITY SameMinorVersion)
configure_package_config_file(cmake/tilewright-config.cmake.in tilewright-config.cmake
  INSTALL_DESTINATION ${package_folder} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tilewright-config.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/tilewright-config-version.cmake cmake/tilewright-compiler.cmake
  DESTINATION ${package_folder} COMPONENT tilewright)

set(pc_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH to_prefix /${pc_folder} /)  # so that an installation can be moved
configure_file(cmake/tilewright.pc.in tilewright.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tilewright.pc DESTINATION ${pc_folder} COMPONENT system)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT system)

# The package for Debian and Ubuntu: cpack -G DEB.
if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_CONTACT "The developers of Tilewright <developers@tilewright.invalid>")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Block (tile) kernels and programmable attention")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
  include(CPack)
endif()

if(TILEWRIGHT_BUILD_TESTS AND NOT TILEWRIGHT_SANITIZE)
  set(consumer ${PROJECT_SOURCE_DIR}/tests/consumer)
  add_test(NAME exported_symbols COMMAND python3 ${consumer}/check_symbols.py
    $<TARGET_FILE:tilewright_library> ${PROJECT_SOURCE_DIR}/include ${PROJECT_VERSION})
  # Installs to an empty prefix, then builds and runs a project that is given only that prefix.
  set(arguments -D CONSUMER=${consumer} -D GENERATOR=${CMAKE_GENERATOR} -D COMPILER=${CMAKE_CXX_COMPILER})
  add_test(NAME consumer COMMAND ${CMAKE_COMMAND} ${arguments} -D BUILD=${PROJECT_BINARY_DIR}
    -D C_COMPILER=${CMAKE_C_COMPILER} -D EXAMPLES=${PROJECT_SOURCE_DIR}/examples
    -D LIBDIR=${CMAKE_INSTALL_LIBDIR} -D DOCDIR=${CMAKE_INSTALL_DOCDIR} -P ${consumer}/run.cmake)
  set_tests_properties(consumer PROPERTIES FIXTURES_SETUP installed)
  add_test(NAME debian_package COMMAND ${CMAKE_COMMAND} -D BUILD=${PROJECT_BINARY_DIR}
    -D CPACK=${CMAKE_CPACK_COMMAND} -D CONSUMER=${consumer} -D GENERATOR=${CMAKE_GENERATOR}
    -D COMPILER=${CMAKE_CXX_COMPILER} -P ${consumer}/debian.cmake)
  set_tests_properties(debian_package PROPERTIES SKIP_REGULAR_EXPRESSION "no such program")
  foreach(case none standard old_clang clang)
    add_test(NAME consumer_${case} COMMAND ${CMAKE_COMMAND} ${arguments} -D CASE=${case}
      -D MAKE=${CMAKE_MAKE_PROGRAM}
      -D PREFIX=${PROJECT_BINARY_DIR}/consumer/prefix -D WORK=${PROJECT_BINARY_DIR}/consumer
      -P ${consumer}/compilers.cmake)
    set_tests_properties(consumer_${case} PROPERTIES
      FIXTURES_REQUIRED installed SKIP_REGULAR_EXPRESSION "no such compiler")
  endforeach()
endif()
