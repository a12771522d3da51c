"""Attention with a mod and a mask, exported to a folder and run from it without tracing mods."""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import tilewright as tw

heads, length, dim = 4, 256, 64
slopes = tw.capture(np.exp2(-2.0 * np.arange(1, heads + 1)).astype(np.float32), "slopes")
ids = tw.capture(np.arange(length, dtype=np.int32) // 100, "ids")
mask = tw.create_block_mask(tw.masks.causal() & tw.masks.document(ids), 1, heads, length, length)


def attention(query, key, value):
    def alibi(score, b, h, q, kv):
        return score + slopes[h] * (kv - q)

    return tw.flex_attention(query, key, value, alibi, mask, return_lse=True)


query, key, value = np.random.default_rng(0).standard_normal(
    (3, 1, heads, length, dim), dtype=np.float32
)
names = ["query", "key", "value", "out", "lse"]
with tempfile.TemporaryDirectory() as folder:
    # With archs=["sm_90a"] the folder also has cubins, and runs on GPUs without NVRTC.
    tw.export(attention, folder, query, key, value, name="documents", names=names)
    print(*sorted(path.name for path in pathlib.Path(folder).iterdir()))

    # Another process, which has only the folder.
    np.savez(f"{folder}/arrays.npz", query=query, key=key, value=value)
    program = """
import sys, numpy as np, tilewright as tw
arrays = np.load(sys.argv[1] + "/arrays.npz")
out, lse = tw.load_artifact(sys.argv[1])(arrays["query"], arrays["key"], arrays["value"])
np.savez(sys.argv[1] + "/results.npz", out=out, lse=lse)
"""
    subprocess.run([sys.executable, "-c", program, folder], check=True)
    results = np.load(f"{folder}/results.npz")
    for got, want in zip(
        (results["out"], results["lse"]), attention(query, key, value), strict=True
    ):
        np.testing.assert_array_equal(got, want)
