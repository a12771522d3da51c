"""The error of front ends for what they cannot trace, and the user's line in errors."""

import os
import traceback


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


def name_line(error):
    """Adds the line of the kernel or mod to the text, as errors of the core do."""
    package = os.path.dirname(__file__) + os.sep
    lines = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(package)
    ]
    if lines and len(error.args) == 1 and " (at " not in str(error):
        error.args = (f"{error} (at {lines[-1]})",)
