"""Differences between the supported versions of JAX."""

import jax


def scan_sizes(params):
    """How many operands of a `scan` equation are constants and how many are carried."""
    if "ft_in" in params:  # JAX 0.11
        consts, carry, _ = params["ft_in"].unpack()
        return len(consts), len(carry)
    return params["num_consts"], params["num_carry"]


def expanded(equation):
    """The jaxpr that a `call_hi_primitive` equation (JAX 0.12) stands for."""
    primitive = equation.params["_prim"]

    def flat(*arguments):
        results = primitive.expand(*jax.tree.unflatten(primitive.in_tree, arguments))
        return jax.tree.leaves(results)

    return jax.make_jaxpr(flat)(*(atom.aval for atom in equation.invars))
