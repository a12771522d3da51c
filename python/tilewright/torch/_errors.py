"""The error class for bad input."""


class BadInput(ValueError, RuntimeError):  # noqa: N818
    """An argument that does not fit.

    For the same mistake some versions of torch raise ValueError, others RuntimeError: this is both.
    """
