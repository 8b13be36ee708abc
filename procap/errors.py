"""The one form of a complaint about what the user gave us."""

import errno
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""How the system says that there is no room: disk, quota, largest file."""


class BadInput(Exception):
    """Input that cannot be used: says what is wrong, where, what was expected and what to do.

    Commands print it without a traceback and exit with status 2; nothing half-written stays behind.
    """

    def __init__(self, what: str, *, where: str, expected: str, do: str) -> None:
        self.what, self.where, self.expected, self.do = what, where, expected, do
        super().__init__(f"{what}\n  where:    {where}\n  expected: {expected}\n  do:       {do}")

    def __reduce__(self) -> tuple:  # crosses process pools
        return (_rebuild, (self.what, self.where, self.expected, self.do))


def _rebuild(what: str, where: str, expected: str, do: str) -> BadInput:
    return BadInput(what, where=where, expected=expected, do=do)


def refusal(error: OSError) -> BadInput | None:
    """What to say of an error of the system, such as a full disk or no permission; None where it names no file."""
    if not error.filename and error.errno not in FULL:
        return None
    return BadInput(
        f"the system refuses: {error.strerror}",
        where=str(error.filename or Path.cwd()),
        expected="space, and files and folders that may be read and written",
        do="make room, or mend what is in the way; then run it again",
    )
