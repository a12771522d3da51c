"""The recurrence of state-space models, h[t] = a[t] h[t - 1] + b[t], as a scan of affine maps:
their composition is associative, so all steps of a sequence are computed in parallel."""

import numpy as np

import tilewright as tw

CHANNELS, LENGTH, BLOCK = 24, 300, 8

channels = tw.BlockSpec((BLOCK, LENGTH), lambda i: (i, 0))


def then(f, g):
    """One map after another: x -> g(f(x))."""
    return f[0] * g[0], f[1] * g[0] + g[1]


@tw.kernel
def recurrence(a, b, h):
    _, h[...] = tw.associative_scan(then, (a[...], b[...]), axis=1)


run = tw.call(
    recurrence,
    grid=CHANNELS // BLOCK,
    in_specs=[channels, channels],
    out_specs=channels,
    out_shape=tw.ShapeDtype((CHANNELS, LENGTH), np.float32),
)

rng = np.random.default_rng(0)
a, b = rng.uniform(-1, 1, (2, CHANNELS, LENGTH)).astype(np.float32)
h = run(a, b)

expected, state = np.empty_like(h), np.zeros(CHANNELS)
for t in range(LENGTH):
    state = a[:, t] * state + b[:, t]
    expected[:, t] = state
print(h[:2, -3:])
np.testing.assert_allclose(h, expected, atol=1e-5)
