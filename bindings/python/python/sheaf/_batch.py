"""Batches: changes of any number of keyspaces as one commit."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from ._sheaf import RawBatch

if TYPE_CHECKING:
    from typing_extensions import Self


class Batch(RawBatch):
    """Changes and expectations that one commit makes, over any number of keyspaces.

    As a context manager it commits at the end, and discards the changes after an exception.
    """

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.clear()

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<sheaf.Batch of {len(self)} changes>"
