"""What a program can do that cannot be recorded or audited: one line each, with a code."""


class RecorderError(Exception):
    """Says what was wrong, where, and what was expected.

    Args:
        code: of the page that explains it: ``dpaudit explain DPA061``.
        text: one line.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def coded(self) -> str:
        """The code and the line, as the auditor reads them in a file."""
        return f"{self.code} {self}"
