"""RMSNorm with its pullback on NumPy arrays, checked against NumPy."""

import numpy as np

import tilewright as tw

rng = np.random.default_rng(0)
x = rng.standard_normal((4, 1024)).astype(np.float32)
weight = rng.standard_normal(1024).astype(np.float32)

y, pullback = tw.rms_norm_vjp(x, weight)
gradients = pullback(np.ones_like(y))

want = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight
print("largest difference from NumPy:", np.abs(y - want).max())
print("gradient of the weight:", gradients.weight.shape, gradients.weight.dtype)
assert np.abs(y - want).max() < 1e-5
