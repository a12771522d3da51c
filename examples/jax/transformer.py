"""A small transformer, trained a few steps on packed documents with soft-capped scores."""

import jax
import jax.numpy as jnp
import numpy as np

import tilewright.jax as twj

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH = 32, 64, 4, 2, 128
CAP = 20.0


def normal(key, *shape):
    return jax.random.normal(key, shape) / np.sqrt(shape[0])


def initial(key):
    def layer(key):
        keys = jax.random.split(key, 3)
        return {
            "norm": jnp.ones((2, WIDTH)),
            "qkv": normal(keys[0], WIDTH, 3 * WIDTH),
            "out": normal(keys[1], WIDTH, WIDTH),
            "up": normal(keys[2], WIDTH, WIDTH),
            "slopes": 2.0 ** -jnp.arange(1.0, HEADS + 1),  # learned
        }

    keys = jax.random.split(key, LAYERS + 1)
    return {"embedding": normal(keys[0], VOCABULARY, WIDTH), "layers": list(map(layer, keys[1:]))}


def attend(layer, x, documents):
    """Causal within each document; scores are capped, then reduced with distance."""
    q, k, v = jnp.split((x @ layer["qkv"]).reshape(*x.shape[:2], HEADS, -1), 3, -1)

    def score(s, b, h, i, j):
        return CAP * jnp.tanh(s / CAP) + layer["slopes"][h] * (j - i)

    def mask(b, h, i, j):
        return (i >= j) & (documents[b, i] == documents[b, j])

    out = twj.flex_attention(q, k, v, score, mask_mod=mask, layout="bshd")
    return out.reshape(x.shape) @ layer["out"]


def logits(parameters, tokens, documents):
    x = parameters["embedding"][tokens]
    for layer in parameters["layers"]:
        x = x + attend(layer, twj.rms_norm(x, layer["norm"][0]), documents)
        x = x + jax.nn.relu(twj.rms_norm(x, layer["norm"][1]) @ layer["up"])
    return x @ parameters["embedding"].T


def loss(parameters, tokens, documents):
    predicted = jax.nn.log_softmax(logits(parameters, tokens, documents)[:, :-1])
    right = jnp.take_along_axis(predicted, tokens[:, 1:, None], -1)[..., 0]
    inside = documents[:, 1:] == documents[:, :-1]  # no loss across documents
    return -(right * inside).sum() / inside.sum()


@jax.jit
def step(parameters, tokens, documents):
    value, gradients = jax.value_and_grad(loss)(parameters, tokens, documents)
    return jax.tree.map(lambda p, g: p - 0.2 * g, parameters, gradients), value


rng = np.random.default_rng(0)
documents = jnp.asarray(np.sort(rng.integers(0, 5, (4, LENGTH))), jnp.int32)
steps = rng.integers(1, 4, (4, 5))  # each document counts with its own step
stride = jnp.take_along_axis(jnp.asarray(steps), documents, 1)
tokens = (jnp.cumsum(stride, 1) % VOCABULARY).astype(jnp.int32)

parameters = initial(jax.random.key(0))
losses = []
for _ in range(30):
    parameters, value = step(parameters, tokens, documents)
    losses.append(float(value))
print("loss", " ".join(f"{x:.2f}" for x in losses[::5]))
print("learned slopes", np.asarray(parameters["layers"][0]["slopes"]))
assert losses[-1] < 0.7 * losses[0]
