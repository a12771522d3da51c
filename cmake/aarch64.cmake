# Toolchain of tools/check_aarch64.sh: Debian's cross compiler, the arm64 packages that the script
# unpacked to the folder TILEWRIGHT_SYSROOT, and qemu to run programs.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TILEWRIGHT_SYSROOT)

set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${TILEWRIGHT_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${TILEWRIGHT_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR}
  ${TILEWRIGHT_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${TILEWRIGHT_SYSROOT}/usr/share/pkgconfig)

# The compiler has its own C library; the packages' headers and libraries come after it.
set(libraries ${TILEWRIGHT_SYSROOT}/usr/lib/aarch64-linux-gnu)
set(CMAKE_CXX_FLAGS_INIT "-idirafter ${TILEWRIGHT_SYSROOT}/usr/include")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-L${libraries} -Wl,-rpath-link,${libraries}")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "${CMAKE_EXE_LINKER_FLAGS_INIT}")
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${TILEWRIGHT_SYSROOT})
