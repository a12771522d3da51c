"""Rules of JAX's random keys: a key is a tile of its words; functions of it are inlined."""

import jax

from ...._errors import UnsupportedError
from .translate import rule


def _implementation(dtype):
    if "fry" not in str(dtype):
        raise UnsupportedError(f"keys of the kind {dtype}; threefry's work")
    return dtype._impl


def _mapped(function, rank):
    for _ in range(rank):
        function = jax.vmap(function)
    return function


@rule("random_wrap")
def _wrap(t, eqn, words):
    _implementation(eqn.outvars[0].aval.dtype)
    return words


@rule("random_unwrap", "random_clone")
def _unwrap(t, eqn, words):
    return words


@rule("random_seed")
def _seed(t, eqn, seeds):
    impl = _implementation(eqn.outvars[0].aval.dtype)
    return t.inline(_mapped(impl.seed, seeds.rank), seeds)


@rule("random_split")
def _split(t, eqn, words):
    impl = _implementation(eqn.invars[0].aval.dtype)
    return t.inline(_mapped(lambda k: impl.split(k, eqn.params["shape"]), words.rank - 1), words)


@rule("random_fold_in")
def _fold_in(t, eqn, words, data):
    impl = _implementation(eqn.invars[0].aval.dtype)
    if data.rank or words.rank > 1:
        raise UnsupportedError("keys folded in together; fold in one number at a time")
    return t.inline(impl.fold_in, words, data)


@rule("random_bits")
def _bits(t, eqn, words):
    impl = _implementation(eqn.invars[0].aval.dtype)
    width, shape = eqn.params["bit_width"], eqn.params["shape"]
    return t.inline(_mapped(lambda k: impl.random_bits(k, width, shape), words.rank - 1), words)


@rule("iota_2x32_shape")
def _counts(t, eqn):
    shape = tuple(eqn.params["shape"])

    def low():
        count = jax.numpy.zeros(shape, "uint32")
        step = 1
        for axis in reversed(range(len(shape))):
            along = jax.lax.broadcasted_iota("uint32", shape, axis)
            count, step = count + along * jax.numpy.uint32(step), step * shape[axis]
        return count

    return [t.number(0, "u32", shape), t.inline(low)]


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


@rule("threefry2x32")
def _threefry(t, eqn, *operands):
    def hashed(k0, k1, x0, x1):
        keys = (k0, k1, k0 ^ k1 ^ 0x1BD11BDA)
        x0, x1 = x0 + k0, x1 + k1
        for group in range(5):
            for by in _ROTATIONS[group % 2]:
                x0 = x0 + x1
                x1 = x0 ^ ((x1 << by) | (x1 >> (32 - by)))
            x0 = x0 + keys[(group + 1) % 3]
            x1 = x1 + keys[(group + 2) % 3] + (group + 1)
        return x0, x1

    return t.inline_all(hashed, *operands)
