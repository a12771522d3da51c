"""2-D convolution by slices: a program computes one band of output rows as a sum of shifted slices
of the image. Rows outside of the image read as zero, which is the padding."""

import numpy as np

import tilewright as tw

HEIGHT, WIDTH, KERNEL, BAND = 50, 70, 3, 8


@tw.kernel
def conv2d(image, weights, z):
    top = tw.program_id(0) * BAND
    total = tw.zeros((BAND, WIDTH))
    for dy in range(KERNEL):
        for dx in range(KERNEL):
            # A traced start may leave the image; its lanes outside read 0.
            left = tw.full((), dx - 1, np.int64)
            shifted = image[tw.ds(top + (dy - 1), BAND), tw.ds(left, WIDTH)]
            total += weights[dy, dx] * shifted
    z[...] = total


call = tw.call(
    conv2d,
    grid=tw.cdiv(HEIGHT, BAND),
    out_specs=tw.BlockSpec((BAND, WIDTH), lambda i: (i, 0)),
    out_shape=tw.ShapeDtype((HEIGHT, WIDTH), np.float32),
)

generator = np.random.default_rng(1)
image = generator.uniform(-1, 1, (HEIGHT, WIDTH)).astype(np.float32)
weights = generator.uniform(-1, 1, (KERNEL, KERNEL)).astype(np.float32)
padded = np.pad(image.astype(np.float64), 1)
windows = np.lib.stride_tricks.sliding_window_view(padded, (KERNEL, KERNEL))
error = np.abs(call(image, weights) - np.einsum("ijkl,kl->ij", windows, weights)).max()
print(f"conv2d: largest error {error:.3g}")
assert error < 1e-5
