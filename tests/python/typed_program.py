"""A typed program: tools/check_types.py checks that type checkers understand the package.

It is not run: exactly the marked lines must have errors.
"""

from typing import Any

import numpy as np

import tilewright as tw

x = np.zeros((1, 2, 16, 8), np.float32)


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


out = tw.flex_attention(x, x, x, mask_mod=causal, scale=0.5, kernel_options={"BLOCK_M": 32})
result, pullback = tw.flex_attention_vjp(x, x, x, causal=True, window=(4, 0))
gradients: tw.Gradients = pullback(result)
query: np.ndarray = gradients.query
y, norm_pullback = tw.rms_norm_vjp(x, None, 1e-6)
dx: np.ndarray = norm_pullback(y).x

mask = tw.create_block_mask(tw.masks.causal() & tw.masks.sliding_window(4), None, None, 16, 16)
sparsity: float = mask.sparsity()
dense: np.ndarray = mask.to_dense()
mod: tw.Mod = tw.scores.softcap(20)
version: str = tw.version

tw.flex_attention(x, x, x, causal=1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
tw.flex_attention(x, x, x, is_causal=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
tw.flex_attention(x, x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
tw.layer_norm(x, eps="1e-5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
wrong: int = mask.sparsity()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
