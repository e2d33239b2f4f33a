"""Databases and snapshots."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from . import _reports, _sheaf
from ._batch import Batch
from ._changes import ChangeCursor, ChangeRetention
from ._keyspace import Durability, Keyspace, SnapshotKeyspace
from ._sheaf import Changes, RawBulkLoader, RawDatabase, RawSnapshot
from ._transaction import Transaction, transact

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

StrPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Progress = Callable[[str, int, int], object]
_Key = TypeVar("_Key", bound="Buffer")
_Result = TypeVar("_Result")
# Pairs of a bulk load that one call passes: at most so many, and bytes of values to that amount.
_CHUNK_PAIRS = 1000
_CHUNK_BYTES = 1 << 20


def _frozen(buffer: Buffer) -> bytes:
    """Return the bytes of a buffer that its owner may change later."""
    return buffer if isinstance(buffer, bytes) else memoryview(buffer).tobytes()


class Snapshot(RawSnapshot):
    """One state of all keyspaces. Closing it frees the old versions that it pins."""

    __slots__ = ()

    def keyspace(self, name: str) -> SnapshotKeyspace:
        """Return a keyspace; raise ``KeyspaceNotFoundError`` if the snapshot has none of this name."""
        return SnapshotKeyspace(self, name)

    def __getitem__(self, name: str) -> SnapshotKeyspace:
        return self.keyspace(name)

    def __contains__(self, name: object) -> bool:
        return name in self.keyspaces()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keyspaces())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sheaf.Snapshot of commit {self.seq}>"


class Database:
    """Open database: a collection of keyspaces. Made by :func:`sheaf.open`.

    All methods may be called by several threads at once. A forked child cannot use the database.
    """

    __slots__ = ("__weakref__", "_keyspaces", "_path", "_raw")

    def __init__(self, path: StrPath, options: dict[str, object]) -> None:
        self._path = os.fsdecode(path)
        self._raw = RawDatabase(self._path, options)
        self._keyspaces: dict[str, Keyspace] = {}

    @property
    def path(self) -> str:
        """Directory of the database, as it was given."""
        return self._path

    @property
    def closed(self) -> bool:
        """True after :meth:`close`, and in a forked child."""
        return self._raw.is_closed

    @property
    def seq(self) -> int:
        """Number of the newest visible commit."""
        return self._raw.seq

    def close(self) -> None:
        """Close the database. Every later use of its objects raises ``ClosedError``."""
        self._keyspaces.clear()
        self._raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def keyspace(
        self, name: str, *, create: bool = True, engine: str | None = None, **options: int | str
    ) -> Keyspace:
        """Return a keyspace, and create it if it is missing and ``create`` is true.

        ``engine`` and ``options`` (see :func:`sheaf.engine_options`) must agree with those of an
        existing keyspace. Without an engine, a new keyspace gets ``flex``. ``merge`` names the
        merge operator: ``add``, ``append``, ``max``, ``min``, ``or`` or ``union``.
        """
        found = Keyspace(self._raw, name, create, engine, options or None)
        self._keyspaces[name] = found
        return found

    def __getitem__(self, name: str) -> Keyspace:
        found = self._keyspaces.get(name)
        # A closed database or a forked child gets the exception of an opening. A keyspace may have
        # been renamed since.
        if found is None or self.closed or found.name != name:
            return self.keyspace(name)
        return found

    def __delitem__(self, name: str) -> None:
        if not self.drop_keyspace(name):
            raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(info.name == name for info in self.keyspaces())

    def __iter__(self) -> Iterator[str]:
        return iter([info.name for info in self.keyspaces()])

    def __len__(self) -> int:
        return len(self.keyspaces())

    def __bool__(self) -> bool:
        return True

    def keyspaces(self) -> list[_reports.KeyspaceInfo]:
        """Return name, engine and damage of each keyspace."""
        return [_reports.KeyspaceInfo(*info) for info in self._raw.keyspaces()]

    def drop_keyspace(self, name: str) -> bool:
        """Remove a keyspace and its pairs. Return false if there is none of this name."""
        self._keyspaces.pop(name, None)
        return self._raw.drop_keyspace(name)

    def rename_keyspace(self, name: str, to: str) -> None:
        """Give a keyspace another name, as one durable commit. Works for a damaged keyspace too.

        Raise ``KeyspaceExistsError`` if there is a keyspace of the new name.
        """
        self._raw.rename_keyspace(name, to)

    def batch(self, *, durability: Durability | None = None) -> Batch:
        """Return an empty batch."""
        return Batch(self._raw, False, durability)

    def transaction(self, *, durability: Durability | None = None) -> Transaction:
        """Begin a transaction: its reads show the newest state, and its own changes.

        The commit raises ``ConflictError`` if another commit changed a key or range that was read.
        """
        return Transaction(self._raw, durability)

    def transact(
        self,
        body: Callable[[Transaction], _Result],
        *,
        attempts: int = 1000,
        durability: Durability | None = None,
    ) -> _Result:
        """Call ``body`` with a transaction, commit, and return its result.

        After a conflict ``body`` is called again with a new transaction, up to ``attempts`` times in
        all, so it must have no other side effects. An exception of ``body`` rolls back.
        """
        return transact(lambda: self.transaction(durability=durability), body, attempts)

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the newest state of all keyspaces."""
        return Snapshot(self._raw)

    def changes(
        self,
        position: str | None = None,
        *,
        keyspaces: Iterable[str] = (),
        prefixes: Iterable[Buffer] = (),
        include_unsynced: bool = False,
    ) -> Changes:
        """Return the changes of all commits after ``position``, in commit order.

        ``None`` begins with the oldest change that is retained. ``keyspaces`` and ``prefixes`` select
        changes; empty ones select all. A commit is delivered when it is on the device, or, with
        ``include_unsynced``, when it is visible. The database must retain changes
        (``sheaf.open(retain_changes=...)``).
        """
        return Changes(self._raw, position, list(keyspaces), list(prefixes), include_unsynced)

    def oldest_change(self) -> str:
        """Return the position before the oldest change that is retained."""
        return self._raw.oldest_change()

    def newest_change(self) -> str:
        """Return the position after the newest commit, when that is on the device."""
        return self._raw.newest_change()

    def change_cursor(self, name: str) -> ChangeCursor:
        """Return the named cursor ``name``. A new one is before the oldest change that is retained."""
        return ChangeCursor(self._raw, name)

    def change_cursors(self) -> dict[str, str]:
        """Return the positions of all named cursors by their names."""
        return self._raw.change_cursors()

    def remove_change_cursor(self, name: str) -> bool:
        """Remove a named cursor. Return false if there is none of this name."""
        return self._raw.remove_change_cursor(name)

    def sync(self) -> None:
        """Wait until all commits that were acknowledged before are on the device."""
        self._raw.sync()

    def quiesce(self) -> None:
        """Wait until all commits are on the device and no background work is due."""
        self._raw.quiesce()

    def stats(self) -> _reports.DatabaseStats:
        """Return the figures of the whole database. Reads no data."""
        return _reports.database_stats(self._raw.raw_stats())

    def verify(self, on_damage: Callable[[BaseException], object] | None = None) -> _reports.VerifyReport:
        """Read all data and verify every checksum.

        ``on_damage`` gets a ``CorruptError`` for each damage. A verification cannot be cancelled:
        after an exception of a signal handler it ends in the background.
        """
        return _reports.VerifyReport(**self._raw.raw_verify(on_damage))

    def backup(
        self,
        path: StrPath,
        *,
        base: StrPath | None = None,
        verify: bool = True,
        rate: int | str | None = None,
        progress: Progress | None = None,
    ) -> _reports.BackupReport:
        """Copy the database, as of one moment during the call, to an empty or missing directory.

        ``base`` is an earlier backup whose unchanged files are linked. ``rate`` is a number of bytes
        per second, ``"unlimited"``, or ``None`` to yield to commits. ``progress(phase, done, total)``
        is called between steps. An exception in it cancels the backup and removes its files.
        """
        base = None if base is None else os.fsdecode(base)
        report = self._raw.raw_backup(os.fsdecode(path), base, verify, rate, progress)
        return _reports.BackupReport(**report)

    def convert(
        self, name: str, engine: str, *, progress: Progress | None = None, **options: int | str
    ) -> _reports.ConversionReport | None:
        """Change the engine of a keyspace while it is in use.

        ``progress(phase, done, total)`` is called between steps. An exception in it cancels the
        conversion; the keyspace is unchanged then.
        """
        report = self._raw.raw_convert(name, engine, options or None, progress)
        return None if report is None else _reports.ConversionReport(**report)

    def bulk_load(
        self,
        name: str,
        pairs: Mapping[_Key, Buffer] | Iterable[tuple[Buffer, Buffer]],
        *,
        mode: Literal["empty", "replace", "keep"] = "empty",
        engine: str | None = None,
        progress: Progress | None = None,
        **options: int | str,
    ) -> _reports.BulkLoadReport:
        """Load pairs with keys in ascending order, as one durable commit.

        ``engine`` and ``options`` are those of :meth:`keyspace`.

        ``mode`` decides about a keyspace that exists: ``"empty"`` requires that it has no pairs,
        ``"replace"`` discards them, and ``"keep"`` keeps those with other keys. ``"keep"`` copies the
        whole keyspace, which can be used meanwhile, and calls ``progress(phase, done, total)``. An
        exception in it, in ``pairs``, or for a key out of order ends the load; nothing is loaded then.
        """
        found: Any = pairs.items() if isinstance(pairs, Mapping) else pairs
        loader = RawBulkLoader(self._raw, name, mode, engine, options or None)
        try:
            chunk: list[tuple[bytes, bytes]] = []
            size = 0
            for key, value in found:
                pair = _frozen(key), _frozen(value)
                chunk.append(pair)
                size += len(pair[1])
                if len(chunk) == _CHUNK_PAIRS or size >= _CHUNK_BYTES:
                    loader.push(chunk)
                    chunk, size = [], 0
            loader.push(chunk)
            return _reports.BulkLoadReport(**loader.finish(progress))
        finally:
            loader.discard()

    def __reduce__(self) -> NoReturn:
        self._raw.__reduce__()

    def __repr__(self) -> str:
        return f"<sheaf.Database {self._path!r}{' (closed)' if self.closed else ''}>"


def open(
    path: StrPath,
    *,
    create: bool = True,
    read_only: bool = False,
    wait: float | None = None,
    memory: int | None = None,
    durability: Durability | None = None,
    sync_interval: float | None = None,
    background_threads: int | None = None,
    space_limit: float | None = None,
    open_files: int | None = None,
    ipc: bool | None = None,
    permissions: tuple[int, int] | None = None,
    on_stall: Callable[[str, str | None, float], object] | None = None,
    stall_threshold: float | None = None,
    retain_changes: ChangeRetention | Literal[False] | None = None,
) -> Database:
    """Open the database in the directory ``path``, and create it if it is missing.

    :param create: False to raise ``DatabaseNotFoundError`` instead of creating a database.
    :param read_only: True to open for reading; attaches to the owner if another process has it open.
    :param wait: Seconds to wait for another process that has the database open. Default: none.
    :param memory: Memory budget in bytes. Default: 1 GiB.
    :param durability: ``"buffer"`` (default): commits survive the end of the process on return, and
        a power failure after about ``sync_interval`` seconds. ``"sync"``: they are on the device.
    :param sync_interval: Longest time in seconds that a commit stays unsynced. Default: 0.1.
    :param background_threads: Threads for background work. Default: half of the cores.
    :param space_limit: Disk space of the store log as a multiple of its live data, 1.1 to 10.
    :param open_files: File descriptors that the database may use.
    :param ipc: False to refuse requests of other processes.
    :param permissions: Modes of files and directories, for example ``(0o640, 0o750)``.
    :param on_stall: Called with kind, keyspace and seconds after each long wait of a writer.
    :param stall_threshold: Shortest wait in seconds that ``on_stall`` reports. Default: 0.01.
    :param retain_changes: Changes that the database retains for :meth:`Database.changes`. The setting
        is stored; False ends the retention.
    """
    retention: object = retain_changes
    if isinstance(retain_changes, ChangeRetention):
        retention = (retain_changes.bytes, retain_changes.seconds, retain_changes.until_cursors_pass)
    options: dict[str, object] = {
        "create": create,
        "read_only": read_only,
        "wait": wait,
        "memory": memory,
        "durability": durability,
        "sync_interval": sync_interval,
        "background_threads": background_threads,
        "space_limit": space_limit,
        "open_files": open_files,
        "ipc": ipc,
        "permissions": permissions,
        "on_stall": on_stall,
        "stall_threshold": stall_threshold,
        "retain_changes": retention,
    }
    return Database(path, options)


def restore(
    source: StrPath, target: StrPath, *, progress: Progress | None = None
) -> _reports.BackupReport:
    """Make a database in the empty or missing directory ``target`` from the backup ``source``."""
    report = _sheaf.restore(os.fsdecode(source), os.fsdecode(target), progress)
    return _reports.BackupReport(**report)


def repair(
    source: StrPath, target: StrPath, *, keep_doubtful: bool = False, progress: Progress | None = None
) -> _reports.RepairReport:
    """Salvage the damaged database ``source``, which is only read, into a new one in ``target``.

    Raises ``ValueError`` if both are the same directory.
    """
    report, keyspaces = _sheaf.repair(os.fsdecode(source), os.fsdecode(target), keep_doubtful, progress)
    return _reports.RepairReport(
        **report, keyspaces=[_reports.KeyspaceRepair(**keyspace) for keyspace in keyspaces]
    )


def engines() -> list[str]:
    """Return the names of all engines."""
    return _sheaf.engines()


def engine_options(engine: str) -> list[_reports.EngineOption]:
    """Return the options of an engine, with their ranges and defaults."""
    return [_reports.EngineOption(*option) for option in _sheaf.engine_options(engine)]
