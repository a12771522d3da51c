#!/usr/bin/env python3
"""Times PyTorch's operations for `tilewright bench --baseline`.

The first line of standard input is a JSON object that says what to run; every further line `run N`
is answered with the seconds of one of N back-to-back executions. The answer to the first line is
`ready` or `error: why`.
"""

import json
import sys
import time


def prepare(job):
    """Returns a function that executes the operation once."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(job["threads"])
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[job["dtype"]]
    torch.manual_seed(0)
    backward = job["direction"] == "backward"

    def random(*shape):
        return torch.randn(*shape).to(dtype).requires_grad_(backward)

    if job["operation"] == "attention":
        b, heads, kv_heads = job["batch"], job["heads"], job["kv_heads"]
        q = random(b, heads, job["seq_len"], job["head_dim"])
        k = random(b, kv_heads, job["kv_len"], job["head_dim"])
        v = random(b, kv_heads, job["kv_len"], job["head_dim"])
        options = {"is_causal": job["causal"], "enable_gqa": heads != kv_heads}

        def forward():
            return F.scaled_dot_product_attention(q, k, v, **options)

        inputs = [q, k, v]
    elif job["operation"] == "matmul":
        x, y = random(job["m"], job["k"]), random(job["k"], job["n"])

        def forward():
            return x @ y

        inputs = [x, y]
    elif job["operation"] in ("rms_norm", "layer_norm"):
        x, weight = random(job["rows"], job["n"]), random(job["n"])
        norm = getattr(F, job["operation"])

        def forward():
            return norm(x, (job["n"],), weight=weight, eps=1e-5)

        inputs = [x, weight]
    elif job["operation"] == "softmax":
        x = random(job["rows"], job["n"])

        def forward():
            return F.softmax(x, dim=-1)

        inputs = [x]
    else:
        raise ValueError(f"unknown operation {job['operation']!r}")

    if not backward:

        def run():
            with torch.no_grad():
                forward()

        return run
    out = forward()
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def main():
    try:
        run = prepare(json.loads(sys.stdin.readline()))
        run()
    except Exception as error:  # the caller prints it
        print(f"error: {type(error).__name__}: {error}".replace("\n", " "), flush=True)
        return
    print("ready", flush=True)
    for line in sys.stdin:
        count = int(line.split()[1])
        start = time.perf_counter()
        for _ in range(count):
            run()
        print((time.perf_counter() - start) / count, flush=True)


if __name__ == "__main__":
    main()
