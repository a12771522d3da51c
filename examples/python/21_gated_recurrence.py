"""A layer of a recurrent network whose gates do not depend on its state (as in minGRU), trained:
h[t] = (1 - z[t]) h[t - 1] + z[t] v[t] with z = sigmoid(gates). The kernel of the gradients
differentiates the function that the kernel of the layer computes."""

import numpy as np

import tilewright as tw

CHANNELS, LENGTH, BLOCK = 24, 300, 8

channels = tw.BlockSpec((BLOCK, LENGTH), lambda i: (i, 0))
shape = tw.ShapeDtype((CHANNELS, LENGTH), np.float32)


def then(f, g):
    """One map after another: x -> g(f(x))."""
    return f[0] * g[0], f[1] * g[0] + g[1]


def layer(gates, values):
    z = tw.sigmoid(gates)
    return tw.associative_scan(then, (1 - z, z * values), axis=1)[1]


@tw.kernel
def forward(gates, values, h):
    h[...] = layer(gates[...], values[...])


@tw.kernel
def backward(gates, values, dh, dgates, dvalues):
    _, pullback = tw.vjp(layer, gates[...], values[...])
    dgates[...], dvalues[...] = pullback(dh[...])


grid = CHANNELS // BLOCK
run = tw.call(forward, grid=grid, in_specs=[channels] * 2, out_specs=channels, out_shape=shape)
differentiate = tw.call(
    backward,
    grid=grid,
    in_specs=[channels] * 3,
    out_specs=[channels] * 2,
    out_shape=(shape, shape),
)

rng = np.random.default_rng(0)
gates, values, noise = rng.uniform(-1, 1, (3, CHANNELS, LENGTH)).astype(np.float32)

# Step by step.
expected, state = np.empty_like(values), np.zeros(CHANNELS)
for t in range(LENGTH):
    z = 1 / (1 + np.exp(-gates[:, t]))
    state = (1 - z) * state + z * values[:, t]
    expected[:, t] = state
target = run(gates, values)
np.testing.assert_allclose(target, expected, atol=1e-5)

# Gates and values that give this output are found again by gradient descent.
gates, values = gates + noise, values - noise
losses = []
for _ in range(200):
    error = run(gates, values) - target
    losses.append(float(np.square(error).mean()))
    dgates, dvalues = differentiate(gates, values, error)
    gates -= 0.5 * dgates
    values -= 0.5 * dvalues
print(f"mean squared error {losses[0]:.4f}, after {len(losses)} steps {losses[-1]:.6f}")
assert losses[-1] < losses[0] / 50
