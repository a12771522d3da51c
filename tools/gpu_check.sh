#!/bin/sh
# Runs every GPU test and the benchmark table on a machine with an NVIDIA GPU, and sums them up.
#
# usage: tools/gpu_check.sh [--bin FOLDER] [--python FOLDER] [--suites FOLDER] [--quick | --no-tests | --sanitize]
#                           [--seconds N]
#
# --bin FOLDER     use programs built elsewhere: the test programs, tilewright, the shared libraries they need
#                  and examples/. Without it they are built here, in build-gpu/.
# --python FOLDER  holds the installed Python package; without it the Python tests run where
#                  `import tilewright` works
# --suites FOLDER  holds test files of torch or attention-gym (test_*.py), run by tools/run_torch_suite.py
# --quick          no benchmark
# --no-tests       the benchmark alone
# --sanitize       compute-sanitizer on a subset of the tests, in place of all tests and the benchmark
# --seconds N      of each benchmark case (1)
# Logs go to $OUT (default: out/). Exit status 0 if every test passed and every result was right.
set -u

root=$(cd "$(dirname "$0")/.." && pwd)
out=${OUT:-$root/out}
programs="cuda_tests run_tests norm_tests mask_tests attention_tests"
bin= quick= no_tests= sanitize= suites= seconds=1
while [ $# -gt 0 ]; do
    case $1 in
        --bin) bin=$2; shift 2 ;;
        --python) PYTHONPATH="$2${PYTHONPATH:+:$PYTHONPATH}"; export PYTHONPATH; shift 2 ;;
        --suites) suites=$2; shift 2 ;;
        --quick) quick=yes; shift ;;
        --no-tests) no_tests=yes; shift ;;
        --sanitize) sanitize=yes; shift ;;
        --seconds) seconds=$2; shift 2 ;;
        *) echo "gpu_check.sh: unknown argument $1" >&2; exit 2 ;;
    esac
done
mkdir -p "$out"

if [ -z "$bin" ]; then
    bin=$root/build-gpu/bin
    cmake -S "$root" -B "$root/build-gpu" -DCMAKE_BUILD_TYPE=Release \
        >"$out/configure.log" 2>&1 || { cat "$out/configure.log"; exit 1; }
    # shellcheck disable=SC2086
    cmake --build "$root/build-gpu" --parallel --target $programs tilewright_cli tilewright_examples \
        >"$out/build.log" 2>&1 || { tail -50 "$out/build.log"; exit 1; }
    mkdir -p "$bin"
    for program in $programs tilewright; do
        find "$root/build-gpu" -type f -name "$program" -perm -u+x ! -path "$bin/*" -exec cp {} "$bin/" \;
    done
fi
export LD_LIBRARY_PATH="$bin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
[ ! -d "$bin/examples" ] || export TILEWRIGHT_TEST_EXAMPLES="$bin/examples"
export TILEWRIGHT_CACHE_DIR="${TILEWRIGHT_CACHE_DIR:-$out/cache}"

status=0
summary=$out/summary
: >"$summary"
note() { printf '%s\n' "$*" | tee -a "$summary"; }

"$bin/tilewright" doctor >"$out/doctor.log" 2>&1 || { status=1; note "doctor: FAILED"; }
grep -E '^  (GPU|NVRTC|CUDA)' "$out/doctor.log" | tee -a "$summary"

# check_with TOOL PROGRAM FILTER: runs a compute-sanitizer tool on these tests, in the background.
check_with() {
    log=$out/$1.$2.$(printf '%s' "$3" | tr -c 'A-Za-z0-9' _).log
    (
        # Some tests pass bad images and pointers to the driver on purpose.
        timeout 500 compute-sanitizer --tool "$1" --report-api-errors no --error-exitcode 86 "$bin/$2" --gtest_filter="$3" >"$log" 2>&1
        code=$?
        case $code in
            0) result=clean ;;
            86) result="FAILED, $(grep -c '^========= [A-Z]' "$log") reports" ;;
            124) result="FAILED, not done after 500 s" ;;
            *) result="FAILED (exit $code): $(grep -m1 -iE '^=========.*(error|not supported|unable)' "$log" || tail -1 "$log")" ;;
        esac
        grep -qE '^\[  PASSED  \] [1-9]' "$log" && ! grep -q 'NOT RUN' "$log" || result="$result, NOT RUN on a GPU"
        echo "$1 $2 $3: $result" >"$log.result"
    ) &
}
if [ -n "$sanitize" ]; then
    PATH=$PATH:/usr/local/cuda/bin
    command -v compute-sanitizer >/dev/null || { echo "gpu_check.sh: compute-sanitizer is not in PATH" >&2; exit 1; }
    for tool in memcheck initcheck racecheck; do
        check_with $tool run_tests 'CudaDevice.ProgramsOfEveryPath*'
        check_with $tool run_tests 'CudaCalls.RunWhereTheirInputsAre:CudaCalls.Scratch*'
        check_with $tool norm_tests 'CudaCalls.Norms*'
    done
    for tool in memcheck initcheck; do # racecheck does not support TMA copies
        check_with $tool cuda_tests 'Gpu.*'
        check_with $tool attention_tests 'CudaCalls.NothingToAttend:CudaCalls.AMaskIsCopiedOnce'
        check_with $tool attention_tests 'Sm90Gpu.OddLengthsAgreeWithTheReference:Sm90Gpu.FewRowsOverManyKeys'
        check_with $tool attention_tests 'Sm90ProgrammableGpu.PackedSequences:Sm90ProgrammableGpu.ListedMasks'
        check_with $tool attention_tests 'Sm90BackwardGpu.OddLengths'
        check_with $tool attention_tests 'Sm90ProgrammableBackwardGpu.PackedSequences:Sm90ProgrammableBackwardGpu.Sinks'
    done
    wait
    cat "$out"/*.log.result
    ! grep -qE 'FAILED|NOT RUN' "$out"/*.log.result
    exit
fi

# In parallel, and the long one in parts: most of the time goes to compiling and to CPU references.
# Tests that emulate kernels need no GPU.
parts() { [ "$1" = attention_tests ] && seq 0 15 || echo 0; }
[ -z "$no_tests" ] || programs=
for tests in $programs; do
    total=$(parts "$tests" | wc -w)
    for part in $(parts "$tests"); do
        (
            GTEST_TOTAL_SHARDS=$total GTEST_SHARD_INDEX=$part timeout 400 "$bin/$tests" --gtest_filter='-CudaEmulated.*:CudaScheduled.*' >"$out/$tests.$part.log" 2>&1
            echo $? >"$out/$tests.$part.status"
        ) &
    done
done
wait
for tests in $programs; do
    result=passed count=0
    for part in $(parts "$tests"); do
        code=$(cat "$out/$tests.$part.status")
        [ "$code" = 0 ] || { result="FAILED (exit $code)"; status=1; }
        grep -E '^\[  FAILED  \]|: Failure$' "$out/$tests.$part.log" | sort -u | head -20
        passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) tests\{0,1\}\..*/\1/p' "$out/$tests.$part.log")
        count=$((count + ${passed:-0}))
    done
    skipped=$(cat "$out/$tests".*.log | grep -c 'NOT RUN')
    note "$tests: $result, $count passed, $skipped not run"
done

# pytests LOG TITLE SECONDS FILE...: the results of these tests.
pytests() {
    log=$1 title=$2 limit=$3; shift 3
    result=passed
    (cd "$root" && timeout "$limit" python3 -m pytest -q "$@") >"$out/$log.log" 2>&1 ||
        { result=FAILED; status=1; grep -E '^(FAILED|E  )' "$out/$log.log" | head -20; }
    note "$title: $result, $(tail -1 "$out/$log.log")"
}
if [ -n "$no_tests" ]; then
    :
elif python3 -c 'import tilewright, pytest' 2>/dev/null; then
    pytests python python 300 tests/python/test_cuda.py tests/python/test_cuda_kernel.py \
        tests/python/test_custom_op.py tests/python/test_random_kernels.py
    export TILEWRIGHT_DEVICE=cuda # for their NumPy arrays
    pytests examples "examples in Python" 300 tests/python/test_examples.py
    unset TILEWRIGHT_DEVICE
    if python3 -c 'import torch' 2>/dev/null; then
        pytests torch torch 900 tests/python/torch/test_torch_cuda.py tests/python/torch/test_two_gpus.py
        for file in ${suites:+"$suites"/test_*.py}; do
            result=passed name=$(basename "$file" .py)
            timeout 1800 python3 "$root/tools/run_torch_suite.py" "$file" --golden-torch --jobs 4 >"$out/suite-$name.log" 2>&1 ||
                { result=FAILED; status=1; }
            note "torch's $name: $result, $(grep -a "^$name.py" "$out/suite-$name.log"), $(tail -1 "$out/suite-$name.log")"
        done
    fi
else
    note "python: NOT RUN, no tilewright or no pytest"
fi
if [ -n "$no_tests" ]; then
    :
elif JAX_PLATFORMS=cuda python3 -c 'import jax, pytest, tilewright.jax; jax.devices()' 2>/dev/null; then
    export JAX_PLATFORMS=cuda XLA_PYTHON_CLIENT_PREALLOCATE=false
    pytests jax JAX 400 tests/python/jax/test_cuda.py
    pytests jax_examples "examples in JAX" 400 tests/python/jax/test_examples.py
    pytests jax_pallas "JAX's Pallas modules" 400 tests/python/jax/test_pallas_library.py
    unset JAX_PLATFORMS XLA_PYTHON_CLIENT_PREALLOCATE
else
    note "JAX: NOT RUN, no JAX with a GPU, no pytest or no tilewright.jax"
fi

bench() {
    name=$1; shift
    timeout 600 "$bin/tilewright" bench "$@" --device cuda --seconds "$seconds" --json "$out/$name.json" \
        >"$out/bench-$name.log" 2>&1 || { status=1; note "bench $name: FAILED"; }
    cat "$out/bench-$name.log"
}
if [ -z "$quick" ]; then
    bench attention attention --backward --no-deterministic
    bench flex flex --no-picture --no-deterministic
    bench matmul matmul
    bench norm norm
    bench tiles attention --engine tiles --causal --backward --no-deterministic
    bench compile compile --no-deterministic
fi
cat "$summary"
exit $status
