"""Transactions: reads and changes that one commit makes if no other commit changed the reads."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from ._errors import ConflictError
from ._sheaf import RawTransaction

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

    from ._keyspace import Keyspace

_Result = TypeVar("_Result")

# Attempts that follow each other without a delay, and the limits of the delay in seconds.
_FIRST_ATTEMPTS = 4
_FIRST_DELAY = 20e-6
_MAX_DELAY = 2e-3


class Transaction(RawTransaction):
    """Reads of one snapshot and changes, over any number of keyspaces.

    As a context manager it commits at the end, and rolls back after an exception.
    """

    __slots__ = ()

    def items(
        self,
        keyspace: Keyspace,
        *,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over the pairs of a range, with the changes of the transaction.

        The commit checks the part that was iterated over, also for keys that did not exist.
        """
        return self.scan(keyspace, start, stop, prefix, reverse)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None and self.is_open:
            self.commit()
        else:
            self.roll_back()

    def __repr__(self) -> str:
        return f"<sheaf.Transaction{'' if self.is_open else ' (ended)'}>"


def transact(
    begin: Callable[[], Transaction], body: Callable[[Transaction], _Result], attempts: int
) -> _Result:
    """Run ``body`` in transactions until one commits without a conflict."""
    attempt = 0
    while True:
        try:
            with begin() as transaction:
                return body(transaction)
        except ConflictError:
            attempt += 1
            if attempt >= attempts:
                raise
        if attempt >= _FIRST_ATTEMPTS:
            limit = min(_FIRST_DELAY * 2 ** min(attempt - _FIRST_ATTEMPTS, 20), _MAX_DELAY)
            time.sleep(random.random() * limit)
