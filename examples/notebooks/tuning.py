"""Make a kernel fast"""

#: Where does the time of a kernel go, why, and what changes it? The tools are `cost`, `profile`,
#: `explain` and `show`. Times below are those of the machine that ran the notebook last.
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
#: `cost` counts operations and bytes, `cpu_roofs` measures what this machine can do. Their quotient
#: is the least time that any kernel takes for this.
cost = f.cost()
print(f"{cost.array_bytes / 1e6:.1f} MB, {cost.intensity:.1f} FLOP for each byte")

# measured
peak_flops, bytes_per_second = tw.cpu_roofs()
print(f"{peak_flops / 1e9:.0f} GFLOP/s, {bytes_per_second / 1e9:.0f} GB/s")
print(f"at least {1e3 * cost.seconds():.2f} ms, under the roof of {cost.roof()}")

# ---- Where the time goes
#: With `profile=True` a call takes the time of each line of its bytecode. `share` is that of the
#: whole, `roof` the least time over the time taken.
profiled = call_of(32, 256, profile=True)
for _ in range(10):
    profiled(x, bias)

# measured
print(profiled.profile())

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


def seconds(call):
    call(x, bias)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        call(x, bias)
        times.append(time.perf_counter() - start)
    return min(times)


# measured
for block in [(1, 1024), (8, 1024), (32, 256), (64, 512), (512, 64)]:
    print(f"{block[0]:4} x {block[1]:4}: {1e3 * seconds(call_of(*block)):6.2f} ms")

#: Blocks never change the result.
assert all(np.array_equal(call_of(*block)(x, bias), want) for block in [(1, 1024), (512, 64)])
