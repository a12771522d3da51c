"""Make a kernel fast"""

#: Where does the time of a kernel go, why, and what changes it? The tools are `cost`, `profile`,
#: `explain` and `show`. Milliseconds depend on the machine and on what else it does, so that below
#: are shares and ratios of times that were taken alternately.
import time

import numpy as np

import tilewright as tw

rows, columns = 4096, 1024
x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
bias = np.linspace(-1, 1, columns, dtype=np.float32)

# ---- A kernel
#: Bias, GELU and a residual; the size of its blocks is a static parameter.


@tw.kernel
def bias_gelu(x, bias, out):
    t = x[...]
    out[...] = tw.gelu(t + bias[...]) + t


def call_of(block_rows, block_columns, **options):
    block = tw.BlockSpec((block_rows, block_columns), lambda i, j: (i, j))
    row = tw.BlockSpec((block_columns,), lambda i, j: (j,))
    return tw.call(
        bias_gelu,
        grid=(rows // block_rows, columns // block_columns),
        in_specs=[block, row],
        out_specs=block,
        out_shape=tw.ShapeDtype((rows, columns), np.float32),
        **options,
    )


f = call_of(32, 256)
want = f(x, bias)
print(want.shape)

# ---- What it must cost
#: `cost` counts operations and bytes, `cpu_roofs` measures what this machine can do. Their quotient,
#: `cost.seconds()`, is the least time that any kernel takes for this. Below the machine's own ratio
#: of operations to bytes a kernel waits for memory, above it for arithmetic.
cost = f.cost()
print(f"{cost.array_bytes / 1e6:.1f} MB, {cost.intensity:.1f} FLOP for each byte")

# measured
peak_flops, bytes_per_second = tw.cpu_roofs()
print(f"this machine: {peak_flops / bytes_per_second:.1f} FLOP for each byte")
print(f"the kernel is under the roof of {cost.roof()}")

# ---- Where the time goes
#: With `profile=True` a call takes the time of each line of its bytecode. `print(f.profile())` is a
#: table with times and how far each line is from its roof; here are the shares of the whole.
profiled = call_of(32, 256, profile=True)
for _ in range(10):
    profiled(x, bias)

# measured
profile = profiled.profile()
for line in sorted(profile.lines, key=lambda line: -line.ms)[:3]:
    print(f"{line.ms / profile.thread_ms:6.1%}  {line.text}")

#: `profile().save_trace("trace.json")` writes the events for chrome://tracing or
#: ui.perfetto.dev: a bar for each program of the grid and each instruction, by thread.
names = {event["name"] for event in profiled.profile().chrome_trace()["traceEvents"]}
print("bias_gelu" in names)

# ---- Why it is slow
#: `explain` names slow paths with their reasons and lines. Here a transposed array makes the
#: kernel copy its tiles; the cure is an array whose rows lie together.


@tw.kernel
def turned(x, out):
    out[...] = tw.transpose(x[...]) + x[...]


g = tw.call(turned, out_shape=tw.ShapeDtype((64, 64), np.float32))
print(g.explain("", tw.ShapeDtype((64, 64), np.float32)).split(" (at ")[0])

# ---- Choose the blocks by measurement
#: Each round times every choice once, so that other work on the machine slows all of them alike;
#: what counts is the fastest run of each.


def ratios(calls, rounds=25):
    for call in calls:
        call(x, bias)
    times = np.empty((rounds, len(calls)))
    for i in range(rounds):
        for j, call in enumerate(calls):
            start = time.perf_counter()
            call(x, bias)
            times[i, j] = time.perf_counter() - start
    return times.min(axis=0) / times.min()


blocks = [(1, 1024), (8, 1024), (32, 256), (64, 512), (512, 64)]
calls = [call_of(*block) for block in blocks]

# measured
for (block_rows, block_columns), ratio in zip(blocks, ratios(calls), strict=True):
    print(f"{block_rows:4} x {block_columns:4}: {ratio:4.2f} times the fastest")

#: Blocks never change the result.
assert all(np.array_equal(call(x, bias), want) for call in calls)
