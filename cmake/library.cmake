# The one library that users link, tilewright::tilewright, and its CMake package.
#
# It holds the whole of every module below the CLI. Its headers name nothing of our dependencies,
# so these are private: a consumer needs this package alone.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

get_property(modules GLOBAL PROPERTY TILEWRIGHT_MODULES)
get_property(libraries GLOBAL PROPERTY TILEWRIGHT_LIBRARIES)
list(REMOVE_ITEM modules tw_cli)
list(REMOVE_DUPLICATES libraries)
list(TRANSFORM modules REPLACE ".+" "$<TARGET_OBJECTS:\\0>" OUTPUT_VARIABLE objects)

# Not named tilewright: in the build folder, that file is the program.
add_library(tilewright_library SHARED ${objects})
add_library(tilewright::tilewright ALIAS tilewright_library)
set_target_properties(tilewright_library PROPERTIES
  OUTPUT_NAME tilewright EXPORT_NAME tilewright
  LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
target_compile_features(tilewright_library INTERFACE cxx_std_20)
target_include_directories(tilewright_library INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(tilewright_library PRIVATE ${libraries} Threads::Threads)
target_link_options(tilewright_library PRIVATE -Wl,--no-undefined)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/tilewright)
install(TARGETS tilewright_library EXPORT tilewright)
install(DIRECTORY include/tilewright DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT tilewright NAMESPACE tilewright:: FILE tilewright-config.cmake DESTINATION ${package_folder})
write_basic_package_version_file(tilewright-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tilewright-config-version.cmake DESTINATION ${package_folder})

if(TILEWRIGHT_BUILD_TESTS AND NOT TILEWRIGHT_SANITIZE)
  # Installs to an empty prefix, then builds and runs a project that knows nothing but that prefix.
  add_test(NAME consumer COMMAND ${CMAKE_COMMAND}
    -D BUILD=${PROJECT_BINARY_DIR} -D CONSUMER=${PROJECT_SOURCE_DIR}/tests/consumer
    -D GENERATOR=${CMAKE_GENERATOR} -D COMPILER=${CMAKE_CXX_COMPILER}
    -P ${PROJECT_SOURCE_DIR}/tests/consumer/run.cmake)
endif()
