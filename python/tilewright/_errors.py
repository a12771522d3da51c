"""The error of front ends: what their tracing cannot express."""


class UnsupportedError(NotImplementedError):
    """What a mod or kernel cannot hold, before the names of the call and the argument are known.

    `kind` is the exception that users get; `placed` says that the text names the user's line.
    """

    def __init__(self, text, kind=NotImplementedError, placed=False):
        super().__init__(text)
        self.kind, self.placed = kind, placed

    def at(self, text):
        """The same with another text, which names the line."""
        return UnsupportedError(text, self.kind, True)

    def public(self, prefix):
        """What users get; `prefix` names the call and the argument."""
        return self.kind(f"{prefix} {self}")
