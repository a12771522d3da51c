#!/usr/bin/env python3
"""Times PyTorch's operations for `tilewright bench --baseline`.

A line of standard input that is a JSON object sets what to run from then on, and is answered with
`ready` or `error: why`; a line `run N` is answered with the seconds per execution of N executions
back to back. With "compiled" the operation goes through torch.compile; with "graph": N it is a CUDA
graph of N executions.
"""

import contextlib
import functools
import gc
import json
import signal
import sys
import time
import warnings

import flash_attention


def flex_mods(job):
    """The score and mask functions of a case of `tilewright bench flex`, as in the notebook."""
    import torch

    name, length, heads = job["case"], job["q_len"], job["heads"]

    def causal(b, h, q, kv):
        return q >= kv

    def ids_of(ids):
        table = torch.tensor(ids, device=job["device"])
        return lambda b, h, q, kv: (q >= kv) & (table[q] == table[kv])

    width = min(128, length)
    while length % width:
        width -= 1

    def sasa(b, h, q, kv):
        rows, columns = (q // width - kv // width).abs(), (q % width - kv % width).abs()
        return (rows <= 8) & (columns <= 8)

    def natten(b, h, q, kv):
        def near(q, kv, size):
            low = min(3, size - 1)
            return (q.clamp(low, max(size - 4, low)) - kv).abs() <= 3

        return near(q // width, kv // width, length // width) & near(q % width, kv % width, width)

    def checkerboard(score, b, h, q, kv):
        score = torch.where((kv - q).abs() % 1 == 0, score * 0.5, score)
        return torch.where((kv - q).abs() % 2 == 0, score * 2, score)

    device = job["device"]
    slopes = torch.exp2(-8.0 / heads * (torch.arange(heads, device=device) + 1))
    intervals = torch.tensor([[0, 7], [1, 7], [7, 12]], device=device)
    mods = {
        "noop": (None, None),
        "checkerboard": (checkerboard, None),
        "causal_score": (lambda s, b, h, q, kv: torch.where(q >= kv, s, -float("inf")), None),
        "causal": (None, causal),
        "sliding_window": (None, lambda b, h, q, kv: (q >= kv) & (q - kv <= 1024)),
        "prefix_lm": (None, lambda b, h, q, kv: (kv <= 2048) | (q >= kv)),
        "sasa": (None, sasa),
        "natten": (None, natten),
        "alibi_table": (lambda s, b, h, q, kv: s + (q - kv) * slopes[h], causal),
        "alibi_computed": (
            lambda s, b, h, q, kv: s + (q - kv) * torch.exp2(-(h + 1) * 8.0 / heads),
            causal,
        ),
        "soft_cap": (lambda s, b, h, q, kv: 2 * torch.tanh(s / 2), causal),
        "vision": (
            None,
            lambda b, h, q, kv: (intervals[kv // 3, 0] <= q) & (q < intervals[kv // 3, 1]),
        ),
    }
    if name == "jagged":
        starts = job["starts"]
        return None, ids_of(
            [n for n in range(len(starts) - 1) for _ in range(starts[n], starts[n + 1])]
        )
    if name == "document":
        return None, ids_of([(0, 1, 2, 2, 3, 3, 4, 4)[i * 8 // length] for i in range(length)])
    mods["soft_cap_approx"] = mods["soft_cap"]  # torch has only one tanh
    if name not in mods:
        raise ValueError(f"torch's flex_attention has no case {name!r}")
    return mods[name]


def prepare(job):
    """Returns a function that executes the operation once."""
    import torch
    import torch.nn.functional as F

    device = job.get("device", "cpu")
    if device == "cpu":
        torch.set_num_threads(job["threads"])
    if "graph" in job:  # autograd uses the stream of the forward pass
        torch.cuda.set_stream(torch.cuda.Stream())
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[job["dtype"]]
    # A process runs jobs one after the other.
    torch.set_float32_matmul_precision("high" if job.get("precision") == "tf32" else "highest")
    torch.manual_seed(0)
    backward = job["direction"] == "backward"

    def random(*shape):  # uniform in [-1, 1), as in `tilewright bench`: power depends on it
        values = 2 * torch.rand(*shape, device=device) - 1
        return values.to(dtype).requires_grad_(backward)

    if job["operation"] == "attention":
        b, heads, kv_heads = job["batch"], job["heads"], job["kv_heads"]
        q = random(b, heads, job["seq_len"], job["head_dim"])
        k = random(b, kv_heads, job["kv_len"], job["head_dim"])
        v = random(b, kv_heads, job["kv_len"], job["head_dim"])
        options = {"is_causal": job["causal"], "enable_gqa": heads != kv_heads}
        scope = contextlib.nullcontext
        if job.get("backend") in ("cudnn", "fa2"):
            from torch.nn.attention import SDPBackend, sdpa_kernel

            backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}
            scope = functools.partial(sdpa_kernel, backends[job["backend"]])

        def forward():
            with scope():
                return F.scaled_dot_product_attention(q, k, v, **options)

        if job.get("backend") == "triton":
            import triton_kernels

            def forward():
                return triton_kernels.attention(q, k, v, job["causal"])

        if job.get("backend") in flash_attention.MODULES:
            q, k, v = rows_in_memory(q, k, v, backward)
            flash = flash_attention.flash_attention(job["backend"], job["causal"])

            def forward():
                return flash(q, k, v)

        inputs = [q, k, v]
    elif job["operation"] == "flex":
        from torch.nn.attention import flex_attention as flex

        ours = job.get("front_end") == "tilewright.torch"
        if backward and device == "cpu" and not ours:
            raise ValueError("torch's flex_attention has no backward on the CPU")
        b, heads, dim = job["batch"], job["heads"], job["head_dim"]
        kv_heads = job["kv_heads"]
        q = random(b, heads, job["q_len"], dim)
        k, v = (random(b, kv_heads, job["kv_len"], dim) for _ in range(2))
        score_mod, mask_mod = flex_mods(job)
        if ours:
            return direction(*through_tilewright(job, q, k, v, score_mod, mask_mod), backward)
        if job.get("backend") in flash_attention.MODULES:
            q, k, v = rows_in_memory(q, k, v, backward)
            flash = flash_flex(job)

            def forward():
                return flash(q, k, v)

        elif "backend" in job:
            forward = scaled_dot_product(job, q, k, v, score_mod, mask_mod)
        else:
            mask = None
            if mask_mod:
                sizes = None, None, job["q_len"], job["kv_len"]
                mask = flex.create_block_mask(mask_mod, *sizes, device)
            compiled = torch.compile(flex.flex_attention, dynamic=False)

            def forward():
                return compiled(
                    q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=heads != kv_heads
                )

        inputs = [q, k, v]
    elif job["operation"] == "matmul":
        x, y = random(job["m"], job["k"]), random(job["k"], job["n"])

        def forward():
            return x @ y

        if job.get("backend") == "triton":
            import triton_kernels

            def forward():
                return triton_kernels.product(x, y)

        inputs = [x, y]
    elif job["operation"] in ("rms_norm", "layer_norm"):
        layer = job["operation"] == "layer_norm"
        inputs = [random(job["rows"], job["n"])]
        inputs += [random(job["n"]) for _ in range(2 if layer else 1)]
        norm = getattr(F, job["operation"])

        def apply(x, *parameters):
            return norm(x, (job["n"],), *parameters, eps=1e-5)

        if job.get("compiled"):
            apply = torch.compile(apply, dynamic=False)

        def forward():
            return apply(*inputs)
    elif job["operation"] == "softmax":
        inputs = [random(job["rows"], job["n"])]
        apply = functools.partial(F.softmax, dim=-1)
        if job.get("compiled"):
            apply = torch.compile(apply, dynamic=False)

        def forward():
            return apply(*inputs)
    else:
        raise ValueError(f"unknown operation {job['operation']!r}")

    return direction(forward, inputs, backward)


def rows_in_memory(q, k, v, backward):
    """The same values with the heads of a row side by side in memory."""
    inputs = [x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    return [x.requires_grad_(backward) for x in inputs]


def flash_flex(job):
    """FlashAttention-3 or -4 on a case of `tilewright bench flex`."""
    import torch

    name, heads, length, device = job["case"], job["heads"], job["q_len"], job["device"]
    options = {"sign": -1, "causal": name != "noop"}
    if name == "sliding_window":
        options["window"] = 1024
    elif name == "soft_cap":
        options["softcap"] = 2.0
    elif name == "alibi_computed":
        options["slopes"] = heads
    elif name == "alibi_table":
        options["slopes"] = torch.exp2(-8.0 / heads * (torch.arange(heads, device=device) + 1))
    elif name == "document":
        ids = [(0, 1, 2, 2, 3, 3, 4, 4)[i * 8 // length] for i in range(length)]
        options["ids"] = torch.tensor(ids, dtype=torch.int32, device=device)
    elif name not in ("noop", "causal"):
        raise ValueError(f"FlashAttention has no case {name!r}")
    flash = flash_attention.flash_attention(job["backend"], **options)
    if flash is None:
        raise ValueError(f"{job['backend']} has no case {name!r}")
    return flash


def scaled_dot_product(job, q, k, v, score_mod, mask_mod):
    """What the notebook's test_mask times beside FlexAttention: causal FlashAttention-2, and
    attention with the mask or the change of scores as a dense array."""
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, flex_attention, sdpa_kernel

    options = {"enable_gqa": job["heads"] != job["kv_heads"]}
    if job["backend"] == "fa2-causal":

        def forward():
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, **options)

        return forward
    sizes = 1, 1, job["q_len"], job["kv_len"]
    dense = flex_attention.create_mask(mask_mod or score_mod, *sizes, device=job["device"])
    if dense.is_floating_point():
        dense = dense.to(q.dtype)
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=dense, **options)


def through_tilewright(job, q, k, v, score_mod, mask_mod):
    """The case through tilewright.torch, as `tilewright bench flex` passes it to the C++ functions,
    and its inputs."""
    import torch

    import tilewright.torch as twt

    options = {"enable_gqa": job["heads"] != job["kv_heads"], "causal": job["causal"]}
    if job["case"] == "soft_cap_approx":
        score_mod = twt.scores.softcap(2, approx=True)
    if "starts" in job:
        starts = torch.tensor(job["starts"], dtype=torch.int32)
        options.update(cu_seqlens=starts, layout="bshd")
        q, k, v = (x.detach().transpose(1, 2).contiguous() for x in (q, k, v))
        for x in (q, k, v):
            x.requires_grad_(job["direction"] == "backward")
    elif mask_mod and not job["causal"]:
        sizes = None, None, job["q_len"], job["kv_len"]
        options["block_mask"] = twt.create_block_mask(mask_mod, *sizes, device=q.device)
    return lambda: twt.flex_attention(q, k, v, score_mod, **options), [q, k, v]


def direction(forward, inputs, backward):
    """A function that executes the forward or the backward pass once."""
    import torch

    if not backward:

        def run():
            with torch.no_grad():
                forward()

        return run
    out = forward()
    gradient = 2 * torch.rand_like(out) - 1
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def captured(run, count):
    """A function that replays a CUDA graph of `count` executions."""
    import torch

    graph = torch.cuda.CUDAGraph()
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(count):
            run()
    return graph.replay


def wait_of(job):
    """Returns a function that waits for what runs on the device."""
    if job.get("device", "cpu") == "cpu":
        return lambda: None
    import torch

    return torch.cuda.synchronize


def clock_of(job):
    """One thread of a CPU is timed by CPU time, like the tile machine in `tilewright bench`."""
    one = job.get("device", "cpu") == "cpu" and job.get("threads") == 1
    return time.process_time if one else time.perf_counter


def forget():
    """Frees what earlier jobs left."""
    import torch

    gc.collect()
    torch.compiler.reset()
    torch.cuda.empty_cache()


def serve(prepare, wait_of, forget):
    """Answers the lines of standard input; `prepare(job)` returns a function that executes the job
    once, `wait_of(job)` one that waits until it is done, and `forget()` drops the previous job.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ends when the caller closes standard input
    # A framework that refuses a shape explains each of its choices; the error says enough.
    warnings.simplefilter("ignore")
    run = None
    for line in sys.stdin:
        if line.startswith("{"):
            if run:
                run = None
                forget()
            try:
                job = json.loads(line)
                run, wait, clock = prepare(job), wait_of(job), clock_of(job)
                run()
                wait()
                each = job.get("graph", 1)
                if "graph" in job:
                    run = captured(run, each)
            except Exception as error:  # the caller prints it
                print(f"error: {type(error).__name__}: {error}".replace("\n", " "), flush=True)
            else:
                print("ready", flush=True)
            continue
        count = max(int(line.split()[1]) // each, 1)
        start = clock()
        for _ in range(count):
            run()
        wait()
        print((clock() - start) / (count * each), flush=True)


if __name__ == "__main__":
    serve(prepare, wait_of, forget)
