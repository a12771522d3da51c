"""The error of front ends for what they cannot trace."""


class UnsupportedError(NotImplementedError):
    """Something unsupported in a mod or kernel, raised before the call and argument are known.

    `kind` is the exception that users get; `placed`: whether the text names the user's line.
    """

    def __init__(self, text, kind=NotImplementedError, placed=False):
        super().__init__(text)
        self.kind, self.placed = kind, placed

    def at(self, text):
        """The same error with another text, which names the line."""
        return UnsupportedError(text, self.kind, True)

    def public(self, prefix):
        """The exception that users get; `prefix` names the call and the argument."""
        return self.kind(f"{prefix} {self}")
