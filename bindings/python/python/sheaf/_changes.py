"""Named cursors and options of the change feed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._sheaf import Changes, RawChangeCursor

if TYPE_CHECKING:
    from ._sheaf import RawDatabase


@dataclass(frozen=True, slots=True)
class ChangeRetention:
    """Limits of the changes that a database retains.

    At most ``bytes`` bytes of log files beyond those in use, for ``seconds`` seconds, and with
    ``until_cursors_pass`` until all named cursors have passed them, if that is longer.
    """

    bytes: int
    seconds: float = 0.0
    until_cursors_pass: bool = False


class ChangeCursor(RawChangeCursor):
    """Named, durable position of a consumer of the change feed."""

    __slots__ = ("_database",)

    def __init__(self, database: RawDatabase, name: str) -> None:
        self._database = database

    def changes(self) -> Changes:
        """Return the changes after the position of the cursor."""
        return Changes(self._database, self.position, [], [], False)

    def __repr__(self) -> str:
        return f"<sheaf.ChangeCursor {self.name!r}>"
