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
thread: a cancelled commit may or may not have been made. Waits for commits and for changes use no
thread: the library wakes the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from . import _database, _reports
from ._batch import Batch
from ._changes import ChangeCursor
from ._errors import ClosedError
from ._keyspace import Durability, Keyspace, SnapshotKeyspace
from ._sheaf import Changes, Commit, CommitTicket, PollNotifier, Scan

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

_Key = TypeVar("_Key", bound="Buffer")
_Result = TypeVar("_Result")
_Item = TypeVar("_Item")

_GROUP = 256
_PAIRS, _KEYS, _VALUES = 0, 1, 2


async def _run(call: Callable[..., _Result], *arguments: Any, **options: Any) -> _Result:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, partial(call, *arguments, **options))


class _Waits:
    """Waits of one event loop, which the library wakes by a descriptor."""

    _of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Waits] = WeakKeyDictionary()

    def __init__(self) -> None:
        self._notifier = PollNotifier()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[None]] = {}

    @classmethod
    async def until(cls, poll: Callable[[PollNotifier, int], bool]) -> None:
        """Call ``poll`` again and again, when the library reports that it may return true."""
        loop = asyncio.get_running_loop()
        waits = cls._of_loops.get(loop)
        if waits is None:
            waits = cls._of_loops[loop] = cls()
        number = next(waits._numbers)
        while not poll(waits._notifier, number):
            await waits._woken(loop, number)

    async def _woken(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        if not self._waiting:
            loop.add_reader(self._notifier.fileno(), self._wake)
        woken = self._waiting[number] = loop.create_future()
        try:
            await woken
        finally:
            del self._waiting[number]
            if not self._waiting:
                loop.remove_reader(self._notifier.fileno())

    def _wake(self) -> None:
        for number in self._notifier.take():
            woken = self._waiting.get(number)
            if woken is not None and not woken.done():
                woken.set_result(None)


class _Closing(ABC):
    """Context manager that closes the object at the end of its block."""

    @abstractmethod
    async def close(self) -> None:
        """Close the object."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


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

    async def rename(self, name: str) -> None:
        """Give the keyspace another name, durably. All handles have it at once."""
        await _run(self._space.rename, name)

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

    async def estimate_range(
        self, start: Buffer | None = None, stop: Buffer | None = None, prefix: Buffer | None = None
    ) -> _reports.RangeEstimate:
        """Return the approximate number and size of the pairs in a range, without reading all of them."""
        return await _run(self._space.estimate_range, start, stop, prefix)

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
        return _Waits.until(self._ticket.start_wait(False).poll).__await__()

    async def durable(self) -> None:
        """Wait until the commit is on the device."""
        await _Waits.until(self._ticket.start_wait(True).poll)


class AsyncChanges(_Closing):
    """Changes after a position, commit by commit.

    An asynchronous iterator: waits for the next commit, and ends when the database is closed.
    """

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._turn = asyncio.Lock()

    @property
    def position(self) -> str:
        """Position after all commits that were returned or filtered out."""
        return self._changes.position

    async def next(self) -> Commit:
        """Return the next commit, when there is one."""
        async with self._turn:
            while True:
                commit = await _run(self._changes.next, 0.0)
                if commit is not None:
                    return commit
                await _Waits.until(self._changes.poll_ready)

    def __aiter__(self) -> AsyncIterator[Commit]:
        return self

    async def __anext__(self) -> Commit:
        try:
            return await self.next()
        except ClosedError as error:
            if error.is_forked:
                raise
            raise StopAsyncIteration from None

    async def close(self) -> None:
        """Free the feed. Further calls raise ``ClosedError``."""
        await _run(self._changes.close)


class AsyncChangeCursor:
    """Named, durable position of a consumer of the change feed."""

    def __init__(self, cursor: ChangeCursor) -> None:
        self._cursor = cursor

    @property
    def name(self) -> str:
        """Name of the cursor."""
        return self._cursor.name

    async def position(self) -> str:
        """Return the position that was committed last."""
        return await _run(lambda: self._cursor.position)

    async def commit(self, position: str) -> None:
        """Move the cursor to a position, durably."""
        await _run(self._cursor.commit, position)

    async def changes(self) -> AsyncChanges:
        """Return the changes after the position of the cursor."""
        return AsyncChanges(await _run(self._cursor.changes))


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


class AsyncSnapshot(_Closing):
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


class AsyncDatabase(_Closing):
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

    async def rename_keyspace(self, name: str, to: str) -> None:
        """Give a keyspace another name, as one durable commit."""
        await _run(self._db.rename_keyspace, name, to)

    def batch(self, *, durability: Durability | None = None) -> AsyncBatch:
        """Return an empty batch."""
        return AsyncBatch(self._db.batch(durability=durability))

    async def snapshot(self) -> AsyncSnapshot:
        """Return a snapshot of the newest state."""
        return AsyncSnapshot(await _run(self._db.snapshot))

    async def changes(
        self,
        position: str | None = None,
        *,
        keyspaces: Iterable[str] = (),
        prefixes: Iterable[Buffer] = (),
        include_unsynced: bool = False,
    ) -> AsyncChanges:
        """Return a feed of changes; the arguments are those of :meth:`sheaf.Database.changes`."""
        changes = await _run(
            self._db.changes,
            position,
            keyspaces=keyspaces,
            prefixes=prefixes,
            include_unsynced=include_unsynced,
        )
        return AsyncChanges(changes)

    async def newest_change(self) -> str:
        """Return the position after the newest commit, when that is on the device."""
        return await _run(self._db.newest_change)

    async def change_cursor(self, name: str) -> AsyncChangeCursor:
        """Return the named cursor ``name``. A new one is before the oldest change that is retained."""
        return AsyncChangeCursor(await _run(self._db.change_cursor, name))

    async def persist(self) -> None:
        """Wait until all commits that were acknowledged before are on the device."""
        await _run(self._db.sync)

    async def bulk_load(
        self,
        name: str,
        pairs: Mapping[_Key, Buffer] | Iterable[tuple[Buffer, Buffer]],
        **options: Any,
    ) -> _reports.BulkLoadReport:
        """Load sorted pairs; the options are those of :meth:`sheaf.Database.bulk_load`.

        ``pairs`` is iterated in another thread.
        """
        return await _run(self._db.bulk_load, name, pairs, **options)

    async def backup(self, path: _database.StrPath, **options: Any) -> _reports.BackupReport:
        """Make a backup; the options are those of :meth:`sheaf.Database.backup`."""
        return await _run(self._db.backup, path, **options)

    async def verify(self) -> _reports.VerifyReport:
        """Read all data and verify every checksum."""
        return await _run(self._db.verify)

    async def close(self) -> None:
        """Close the database."""
        await _run(self._db.close)


async def open(path: _database.StrPath, **options: Any) -> AsyncDatabase:
    """Open a database; the options are those of :func:`sheaf.open`."""
    return AsyncDatabase(await _run(_database.open, path, **options))
