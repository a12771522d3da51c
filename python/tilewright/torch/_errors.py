"""The class of errors about bad input."""


class BadInput(ValueError, RuntimeError):  # noqa: N818
    """An argument that does not fit.

    Versions of torch differ in whether they raise ValueError or RuntimeError for the same mistake:
    this is both.
    """
