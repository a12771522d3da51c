#!/bin/sh
# Compiles the CPU part of the library, NEON kernels included, for 64-bit Arm with Debian's cross
# compiler, and runs its tests under qemu.
#
# usage: tools/check_aarch64.sh [--quick | TEST_PROGRAM...]      default: support_tests ir_tests lang_tests cpu_tests
#
# --quick: only the NEON kernels and tile programs, as in continuous integration: a few minutes.
# On Debian or Ubuntu; as root or with sudo if the compiler or qemu is not installed. The arm64
# packages of the libraries are unpacked to build-aarch64/sysroot: nothing of another architecture
# is installed on this machine. Status 3: a package could not be fetched.
set -eu
cd "$(dirname "$0")/.."
build=$PWD/build-aarch64
sysroot=$build/sysroot
libraries='libhwy-dev libtbb-dev libfmt-dev libcli11-dev nlohmann-json3-dev libxxhash-dev zlib1g-dev libgtest-dev libgmock-dev'

say() { printf '%s\n' "check_aarch64: $*" >&2; }

missing=
command -v aarch64-linux-gnu-g++ >/dev/null || missing="$missing g++-aarch64-linux-gnu"
command -v qemu-aarch64 >/dev/null || missing="$missing qemu-user"
for program in cmake ninja:ninja-build pkg-config; do
    command -v "${program%:*}" >/dev/null || missing="$missing ${program#*:}"
done
if [ -n "$missing" ]; then
    as_root=
    [ "$(id -u)" = 0 ] || as_root=sudo
    say "installing with apt-get:$missing"
    # shellcheck disable=SC2086  # a list of words
    { $as_root apt-get update -qq && $as_root apt-get install -y -qq --no-install-recommends $missing >&2; } || {
        say "expected packages of apt-get but could not fetch$missing"
        exit 3
    }
fi

# unpack PACKAGE...: unpacks these arm64 packages and all dependencies. apt works in separate
# folders.
unpack() {
    apt=$build/apt
    mkdir -p "$apt/lists/partial" "$apt/archives/partial"
    : >"$apt/status"
    arm64="-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
        -o Dir::State::lists=$apt/lists -o Dir::State::status=$apt/status -o Dir::Cache::archives=$apt/archives
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache="
    # shellcheck disable=SC2086  # a list of words
    apt-get $arm64 update && apt-get $arm64 -y --no-install-recommends --download-only install "$@"
    for package in "$apt"/archives/*.deb; do
        # The compiler links with its own C library; this one's linker scripts have other paths.
        case ${package##*/} in libc6-dev_*) continue ;; esac
        dpkg-deb -x "$package" "$sysroot" || return 1
    done
}
if [ "$(cat "$sysroot/done" 2>/dev/null)" != "$libraries" ]; then
    say "unpacking the arm64 packages of: $libraries"
    # shellcheck disable=SC2086  # a list of words
    unpack $libraries || { say "expected arm64 packages of apt-get but could not fetch them"; exit 3; }
    printf '%s' "$libraries" >"$sysroot/done"
fi

quick=
if [ "${1:-}" = --quick ]; then
    quick=yes
    shift
    set -- support_tests cpu_tests
fi
programs=${*:-support_tests ir_tests lang_tests cpu_tests}
# The program that runs during the build, of this machine where it has a build: else it is built for
# Arm with half of the library, and emulated.
generator=
if [ -f build/build.ninja ]; then
    cmake --build build --target generate_compiled_runs >&2
    generator=$PWD/build/src/cli/generate_compiled_runs
fi
if [ ! -f "$build/build.ninja" ]; then
    cmake -S . -B "$build" -G Ninja -D CMAKE_BUILD_TYPE=Release -D TILEWRIGHT_UNITY=ON \
        -D CMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64.cmake" -D TILEWRIGHT_SYSROOT="$sysroot" \
        -D TILEWRIGHT_RUN_GENERATOR="$generator" >&2
fi
# shellcheck disable=SC2086  # a list of words
cmake --build "$build" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" --target $programs >&2

# An emulated instruction costs tens of native ones: run fewer random programs, and no test that
# multiplies large matrices.
left_out='-*CudaCalls*:*Gpu*:*Sm90*:*/Gemm.ManyRows/*:*/Gemm.BeyondTheCache/*'
[ -z "$quick" ] || left_out="$left_out:Machine.LargeDotsOfRowsFarApart"
export TILEWRIGHT_TEST_PROGRAMS="${TILEWRIGHT_TEST_PROGRAMS:-${quick:+10}}"
export TILEWRIGHT_TEST_PROGRAMS="${TILEWRIGHT_TEST_PROGRAMS:-40}"
failed=
for program in $programs; do
    say "$program"
    qemu-aarch64 -L "$sysroot" -E LD_LIBRARY_PATH="$sysroot/usr/lib/aarch64-linux-gnu" \
        "$build/src/${program%_tests}/$program" --gtest_brief=1 --gtest_filter="$left_out" || failed="$failed $program"
done
[ -z "$failed" ] || { say "failed:$failed"; exit 1; }
say "passed: $programs"
