"""The one form of a complaint about what the user gave us."""


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
