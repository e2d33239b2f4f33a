"""Sheaf for asyncio: every call that may block runs in an executor.

>>> import asyncio, tempfile, sheaf.aio
>>> async def main() -> bytes | None:
...     async with await sheaf.aio.open(tempfile.mkdtemp()) as db:
...         users = await db.keyspace("users")
...         await users.insert(b"ada", b"lovelace")
...         return await users.get(b"ada")
>>> asyncio.run(main())
b'lovelace'

The executor is that of the event loop. A call that is cancelled while it runs continues in its
thread: a cancelled commit may or may not have been made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import _database, _reports
from ._batch import Batch
from ._keyspace import Durability, Keyspace, SnapshotKeyspace
from ._sheaf import CommitTicket, Scan

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")

_GROUP = 256
_PAIRS, _KEYS, _VALUES = 0, 1, 2


async def _run(call: Callable[..., _Result], *arguments: Any, **options: Any) -> _Result:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, partial(call, *arguments, **options))


class AsyncScan(Generic[_Item]):
    """Asynchronous iterator over a range, which reads groups of pairs in the executor."""

    def __init__(self, open_scan: Callable[[], Scan[_Item]]) -> None:
        self._open_scan = open_scan
        self._scan: Scan[_Item] | None = None
        self._items: list[_Item] = []

    def __aiter__(self) -> AsyncIterator[_Item]:
        return self

    async def __anext__(self) -> _Item:
        if not self._items:
            if self._scan is None:
                self._scan = await _run(self._open_scan)
            self._items = await _run(self._scan.take, _GROUP)
            self._items.reverse()
            if not self._items:
                raise StopAsyncIteration
        return self._items.pop()


class AsyncSpace:
    """Reads of a keyspace of the database or of a snapshot."""

    def __init__(self, space: Keyspace | SnapshotKeyspace) -> None:
        self._space = space

    @property
    def name(self) -> str:
        """Name of the keyspace."""
        return self._space.name

    async def get(self, key: Buffer) -> bytes | None:
        """Return the value, or ``None``."""
        return await _run(self._space.get, key)

    async def get_many(self, keys: Iterable[Buffer]) -> list[bytes | None]:
        """Return the values of many keys, in the order of the keys."""
        return await _run(self._space.get_many, list(keys))

    async def contains(self, key: Buffer) -> bool:
        """Return whether the key is present."""
        return await _run(self._space.__contains__, key)

    async def count(self) -> int:
        """Return the number of pairs."""
        return await _run(len, self._space)

    def _scan(
        self,
        part: int,
        start: Buffer | None,
        stop: Buffer | None,
        prefix: Buffer | None,
        reverse: bool,
    ) -> AsyncScan[Any]:
        return AsyncScan(partial(self._space.scan, part, start, stop, prefix, reverse))

    def items(
        self,
        *,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> AsyncScan[tuple[bytes, bytes]]:
        """Iterate over the pairs of a range."""
        return self._scan(_PAIRS, start, stop, prefix, reverse)

    def keys(
        self,
        *,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> AsyncScan[bytes]:
        """Iterate over the keys of a range."""
        return self._scan(_KEYS, start, stop, prefix, reverse)

    def values(
        self,
        *,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> AsyncScan[bytes]:
        """Iterate over the values of a range."""
        return self._scan(_VALUES, start, stop, prefix, reverse)


class AsyncKeyspace(AsyncSpace):
    """Keyspace with awaitable calls."""

    _space: Keyspace

    @property
    def sync(self) -> Keyspace:
        """Keyspace with blocking calls, for example to fill a batch."""
        return self._space

    async def insert(self, key: Buffer, value: Buffer, durability: Durability | None = None) -> None:
        """Insert a pair."""
        await _run(self._space.insert, key, value, durability)

    async def merge(self, key: Buffer, operand: Buffer, durability: Durability | None = None) -> None:
        """Let the merge operator of the keyspace compute the value from the present one and an operand."""
        await _run(self._space.merge, key, operand, durability)

    async def remove(self, key: Buffer, durability: Durability | None = None) -> None:
        """Remove a key; a missing key is no error."""
        await _run(self._space.remove, key, durability)

    async def insert_if_absent(self, key: Buffer, value: Buffer) -> bytes | None:
        """Insert a pair if the key is missing; return the present value otherwise."""
        return await _run(self._space.insert_if_absent, key, value)

    async def compare_and_swap(self, key: Buffer, expected: Buffer | None, new: Buffer | None) -> bool:
        """Replace the value if it is ``expected``, and return true then."""
        return await _run(self._space.compare_and_swap, key, expected, new)

    async def remove_range(
        self, start: Buffer | None = None, stop: Buffer | None = None, prefix: Buffer | None = None
    ) -> None:
        """Remove all keys of a range, in one commit."""
        await _run(self._space.remove_range, start, stop, prefix)

    async def clear(self) -> None:
        """Remove all pairs."""
        await _run(self._space.clear)


class AsyncTicket:
    """Ticket of a commit. ``await ticket`` waits for the durability that was asked for."""

    def __init__(self, ticket: CommitTicket) -> None:
        self._ticket = ticket

    @property
    def seq(self) -> int:
        """Number of the commit."""
        return self._ticket.seq

    @property
    def is_durable(self) -> bool:
        """True if the commit is known to be on the device."""
        return self._ticket.is_durable

    def __await__(self) -> Any:
        return _run(self._ticket.wait).__await__()

    async def durable(self) -> None:
        """Wait until the commit is on the device."""
        await _run(self._ticket.wait_durable)


class AsyncBatch:
    """Batch whose commit is awaitable. As a context manager it commits, or discards its changes."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch)

    def insert(self, keyspace: AsyncKeyspace, key: Buffer, value: Buffer) -> None:
        """Add the insertion of a pair."""
        self._batch.insert(keyspace.sync, key, value)

    def merge(self, keyspace: AsyncKeyspace, key: Buffer, operand: Buffer) -> None:
        """Add the merge of an operand into the value of a key."""
        self._batch.merge(keyspace.sync, key, operand)

    def remove(self, keyspace: AsyncKeyspace, key: Buffer) -> None:
        """Add the removal of a key."""
        self._batch.remove(keyspace.sync, key)

    def remove_range(
        self,
        keyspace: AsyncKeyspace,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        prefix: Buffer | None = None,
    ) -> None:
        """Add the removal of all keys of a range."""
        self._batch.remove_range(keyspace.sync, start, stop, prefix)

    def expect_value(self, keyspace: AsyncKeyspace, key: Buffer, value: Buffer | None) -> None:
        """Add an expectation."""
        self._batch.expect_value(keyspace.sync, key, value)

    async def submit(self) -> AsyncTicket:
        """Make all changes as one commit, and return its ticket."""
        return AsyncTicket(await _run(self._batch.submit))

    async def commit(self) -> None:
        """Make all changes as one commit, and wait for its durability."""
        await _run(self._batch.commit)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.commit()
        else:
            self._batch.clear()


class AsyncSnapshot:
    """One state of all keyspaces."""

    def __init__(self, snapshot: _database.Snapshot) -> None:
        self._snapshot = snapshot

    @property
    def seq(self) -> int:
        """Number of the newest commit that the snapshot shows."""
        return self._snapshot.seq

    def __getitem__(self, name: str) -> AsyncSpace:
        return AsyncSpace(self._snapshot[name])

    async def close(self) -> None:
        """Free the state that the snapshot pins."""
        await _run(self._snapshot.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncDatabase:
    """Database with awaitable calls."""

    def __init__(self, db: _database.Database) -> None:
        self._db = db

    @property
    def sync(self) -> _database.Database:
        """Database with blocking calls."""
        return self._db

    async def keyspace(
        self, name: str, *, create: bool = True, engine: str | None = None, **options: int | str
    ) -> AsyncKeyspace:
        """Return a keyspace; the arguments are those of :meth:`sheaf.Database.keyspace`."""
        space = await _run(self._db.keyspace, name, create=create, engine=engine, **options)
        return AsyncKeyspace(space)

    async def drop_keyspace(self, name: str) -> bool:
        """Remove a keyspace and its pairs. Return false if there is none of this name."""
        return await _run(self._db.drop_keyspace, name)

    def batch(self, *, durability: Durability | None = None) -> AsyncBatch:
        """Return an empty batch."""
        return AsyncBatch(self._db.batch(durability=durability))

    async def snapshot(self) -> AsyncSnapshot:
        """Return a snapshot of the newest state."""
        return AsyncSnapshot(await _run(self._db.snapshot))

    async def persist(self) -> None:
        """Wait until all commits that were acknowledged before are on the device."""
        await _run(self._db.sync)

    async def backup(self, path: _database.StrPath, **options: Any) -> _reports.BackupReport:
        """Make a backup; the options are those of :meth:`sheaf.Database.backup`."""
        return await _run(self._db.backup, path, **options)

    async def verify(self) -> _reports.VerifyReport:
        """Read all data and verify every checksum."""
        return await _run(self._db.verify)

    async def close(self) -> None:
        """Close the database."""
        await _run(self._db.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


async def open(path: _database.StrPath, **options: Any) -> AsyncDatabase:
    """Open a database; the options are those of :func:`sheaf.open`."""
    return AsyncDatabase(await _run(_database.open, path, **options))
