#!/bin/sh
# Runs every GPU test and the benchmark table on a machine with an NVIDIA GPU; a short table comes last.
#
# usage: tools/gpu_check.sh [--bin FOLDER] [--quick] [-- ARGUMENTS OF bench/attention_cuda.py]
#
# --bin FOLDER  use programs built elsewhere: cuda_tests, run_tests, attention_tests, libtw_bench_cuda.so and the
#               shared libraries they need. Without it they are built here, in build-gpu/.
# --quick       no benchmark
# Logs go to $OUT (default: out/).
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
out=${OUT:-$root/out}
bin=
quick=
while [ $# -gt 0 ]; do
    case $1 in
        --bin) bin=$2; shift 2 ;;
        --quick) quick=yes; shift ;;
        --) shift; break ;;
        *) echo "gpu_check.sh: unknown argument $1" >&2; exit 2 ;;
    esac
done
mkdir -p "$out"

if [ -z "$bin" ]; then
    bin=$root/build-gpu/bin
    cmake -S "$root" -B "$root/build-gpu" -DCMAKE_BUILD_TYPE=Release -DTILEWRIGHT_BUILD_BENCH=ON \
        >"$out/configure.log" 2>&1 || { cat "$out/configure.log"; exit 1; }
    cmake --build "$root/build-gpu" --parallel --target cuda_tests run_tests attention_tests tw_bench_cuda \
        >"$out/build.log" 2>&1 || { tail -50 "$out/build.log"; exit 1; }
    mkdir -p "$bin"
    find "$root/build-gpu" -type f \( -name cuda_tests -o -name run_tests \
        -o -name attention_tests \
        -o -name libtw_bench_cuda.so \) ! -path "$bin/*" -exec cp {} "$bin/" \;
fi
export LD_LIBRARY_PATH="$bin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export TILEWRIGHT_CACHE_DIR="${TILEWRIGHT_CACHE_DIR:-$out/cache}"

status=0
summary=
for tests in cuda_tests run_tests attention_tests; do
    if "$bin/$tests" >"$out/$tests.log" 2>&1; then result=passed; else result=FAILED; status=1; fi
    grep -E '^\[  FAILED  \]|NOT RUN|against|: Failure$' "$out/$tests.log" | head -40 || true
    count=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) tests\{0,1\}\..*/\1/p' "$out/$tests.log")
    summary="$summary$tests: $result, ${count:-0} tests passed
"
done

if [ -z "$quick" ]; then
    python3 "$root/bench/attention_cuda.py" "$bin/libtw_bench_cuda.so" --json "$out/attention.json" \
        "$@" >"$out/attention.log" 2>&1 || status=1
    cat "$out/attention.log"
    python3 "$root/bench/attention_cuda_backward.py" "$bin/libtw_bench_cuda.so" --peers cudnn \
        --cases full causal d64-causal d96-causal gqa-causal window-1024 \
        --json "$out/attention_backward.json" >"$out/attention_backward.log" 2>&1 || status=1
    cat "$out/attention_backward.log"
fi
printf '%s' "$summary"
exit $status
