"""Routing in a mixture of experts: each token goes to the experts with its largest scores, weighted
by the softmax over them. The weights are returned dense, with zeros for the other experts."""

import numpy as np

import tilewright as tw

TOKENS, EXPERTS, CHOSEN, BLOCK = 50, 24, 3, 16

tokens = tw.BlockSpec((BLOCK, EXPERTS), lambda i: (i, 0))


@tw.kernel
def route(scores, weights):
    top, experts = tw.top_k(scores[...], CHOSEN)
    e = tw.exp(top - tw.max(top, 1, keepdims=True))
    share = e / tw.sum(e, 1, keepdims=True)
    chosen = tw.one_hot(experts, EXPERTS)
    weights[...] = tw.sum(chosen * share[..., None], 1)


run = tw.call(
    route,
    grid=tw.cdiv(TOKENS, BLOCK),
    in_specs=tokens,
    out_specs=tokens,
    out_shape=tw.ShapeDtype((TOKENS, EXPERTS), np.float32),
)

scores = np.random.default_rng(0).normal(size=(TOKENS, EXPERTS)).astype(np.float32)
weights = run(scores)

order = np.argsort(-scores, axis=1)[:, :CHOSEN]
e = np.exp(np.take_along_axis(scores, order, 1))
expected = np.zeros_like(scores)
np.put_along_axis(expected, order, e / e.sum(1, keepdims=True), 1)
print(weights[0])
np.testing.assert_allclose(weights, expected, atol=1e-6)
