"""What differs between the versions of JAX that are supported."""


def scan_sizes(params):
    """How many operands of a `scan` equation are constants and how many are carried."""
    if "ft_in" in params:  # JAX 0.11
        consts, carry, _ = params["ft_in"].unpack()
        return len(consts), len(carry)
    return params["num_consts"], params["num_carry"]
