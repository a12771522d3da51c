"""ALiBi with learned slopes: a score mod, its captured array and that array's gradient."""

import numpy as np

import tilewright as tw

rng = np.random.default_rng(0)
query, key, value = rng.standard_normal((3, 1, 4, 256, 64))
slopes = np.exp2(-8 * np.arange(1, 5) / 4)
captured = tw.capture(slopes, "slopes")


def alibi(score, b, h, q, kv):
    return score + captured[h] * (kv - q)


out, pullback = tw.flex_attention_vjp(query, key, value, score_mod=alibi, causal=True)
gradients = pullback(np.ones_like(out))
print("out", out.shape, "gradient of the slopes", gradients.captured[0])

# A slope's derivative by finite differences of the definition.
step = 1e-5
losses = []
for sign in (1, -1):
    slopes[1] += sign * step
    losses.append(
        tw.flex_attention(query, key, value, score_mod=alibi, causal=True).sum(dtype=float)
    )
    slopes[1] -= sign * step
difference = (losses[0] - losses[1]) / (2 * step)
print("slope 1:", gradients.captured[0][1], "by differences", difference)
assert abs(gradients.captured[0][1] - difference) < 1e-6 * abs(difference)
