"""The API of plyvel (LevelDB) on a keyspace of the engine ``flex``.

>>> from sheaf.compat import plyvel

The keyspace has the name ``default``. Comparators are refused, options that tune LevelDB are
checked and have no effect, and properties describe Sheaf. The guide lists all differences.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator as IteratorOf
from types import TracebackType
from typing import TYPE_CHECKING, Any

import sheaf

from .._errors import CorruptError as CorruptionError
from .._errors import Error
from .._errors import IoError as IOError

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

__all__ = [
    "DB",
    "CorruptionError",
    "Error",
    "IOError",
    "IteratorInvalidError",
    "destroy_db",
    "repair_db",
]

__version__ = "1.5.1"
__leveldb_version__ = "1.23"

_KEYSPACE = "default"
_PAIRS, _KEYS = 0, 1


class IteratorInvalidError(Error):
    """A raw iterator was used while it was at no pair."""


def _bytes(value: Buffer) -> bytes:
    return bytes(memoryview(value).cast("B"))


def _after_prefix(prefix: bytes) -> bytes | None:
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _check_options(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value is not None and not isinstance(value, int):
            raise TypeError(f"{name} must be an integer, not {type(value).__name__}")


def _check_comparator(comparator: object, name: object) -> None:
    if comparator is None and name is None:
        return
    if comparator is None or name is None:
        raise ValueError("comparator and comparator_name belong together")
    if not callable(comparator):
        raise TypeError("comparator must be callable")
    if not isinstance(name, bytes):
        raise TypeError("comparator_name must be bytes")
    raise sheaf.InvalidArgumentError(
        "comparators are not supported: keys have the order of unsigned bytes",
        argument="comparator",
        reason="not supported",
    )


class DB:
    """LevelDB database, which is a Sheaf database with one keyspace."""

    def __init__(
        self,
        name: str,
        *,
        create_if_missing: bool = False,
        error_if_exists: bool = False,
        paranoid_checks: bool | None = None,
        write_buffer_size: int | None = None,
        max_open_files: int | None = None,
        lru_cache_size: int | None = None,
        block_size: int | None = None,
        block_restart_interval: int | None = None,
        max_file_size: int | None = None,
        compression: str | None = "snappy",
        bloom_filter_bits: int = 0,
        comparator: Callable[[bytes, bytes], int] | None = None,
        comparator_name: bytes | None = None,
    ) -> None:
        if not isinstance(name, (str, bytes, os.PathLike)):
            raise TypeError("name must be a path")
        _check_comparator(comparator, comparator_name)
        _check_options(
            {
                "write_buffer_size": write_buffer_size,
                "max_open_files": max_open_files,
                "lru_cache_size": lru_cache_size,
                "block_size": block_size,
                "block_restart_interval": block_restart_interval,
                "max_file_size": max_file_size,
                "bloom_filter_bits": bloom_filter_bits,
            }
        )
        if compression not in (None, "snappy"):
            raise ValueError("compression must be None or 'snappy'")
        self._name = os.fsdecode(name)
        if error_if_exists and _has_database(self._name):
            raise sheaf.InvalidArgumentError(
                f"{self._name}: exists (error_if_exists is true)", argument="name", reason="exists"
            )
        self._db = sheaf.open(
            self._name,
            create=create_if_missing,
            memory=max((lru_cache_size or 0) + (write_buffer_size or 0), 256 << 20),
            open_files=max_open_files,
        )
        self._space = self._db.keyspace(_KEYSPACE, engine="flex")

    @property
    def name(self) -> str:
        """Path of the database."""
        return self._name

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._db.closed

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def get(
        self,
        key: Buffer,
        default: Any = None,
        *,
        verify_checksums: bool | None = False,
        fill_cache: bool | None = True,
    ) -> Any:
        """Return the value, or the default. Checksums are always verified."""
        return self._space.get(key, default)

    def put(self, key: Buffer, value: Buffer, *, sync: bool = False) -> None:
        """Insert a pair."""
        self._space.insert(key, value, "sync" if sync else None)

    def delete(self, key: Buffer, *, sync: bool = False) -> None:
        """Remove a key; a missing key is no error."""
        self._space.remove(key, "sync" if sync else None)

    def write_batch(self, *, transaction: bool = False, sync: bool = False) -> WriteBatch:
        """Return an empty batch."""
        return WriteBatch(self, b"", transaction, sync)

    def iterator(self, **options: Any) -> Iterator:
        """Return an iterator over the present state; :class:`Iterator` has the options."""
        return Iterator(self, self._db.snapshot(), b"", **options)

    def __iter__(self) -> Iterator:
        return self.iterator()

    def raw_iterator(
        self, *, verify_checksums: bool = False, fill_cache: bool = True
    ) -> RawIterator:
        """Return a raw iterator over the present state."""
        return RawIterator(self, self._db.snapshot())

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the present state."""
        return Snapshot(self, self._db.snapshot(), b"")

    def prefixed_db(self, prefix: bytes) -> PrefixedDB:
        """Return a view of the keys with a prefix."""
        return PrefixedDB(self, _bytes(prefix))

    def get_property(self, name: bytes) -> bytes | None:
        """Return figures of Sheaf for ``leveldb.stats``; there are no levels and no tables."""
        name = _bytes(name)
        if name == b"leveldb.stats":
            return repr(self._db.stats()).encode()
        if name == b"leveldb.approximate-memory-usage":
            return b"%d" % self._db.stats().memory.total
        if name == b"leveldb.sstables":
            return b""
        if name.startswith(b"leveldb.num-files-at-level") and name[26:].isdigit():
            return b"0"
        return None

    def compact_range(self, *, start: Buffer | None = None, stop: Buffer | None = None) -> None:
        """Wait until the background work of the whole database is done."""
        for key in (start, stop):
            if key is not None:
                _bytes(key)
        self._db.quiesce()

    def approximate_size(self, start: Buffer, stop: Buffer) -> int:
        """Return the bytes of keys and values in a range. Reads the range."""
        pairs = self._space.items(start=_bytes(start), stop=_bytes(stop))
        return sum(len(key) + len(value) for key, value in pairs)

    def approximate_sizes(self, *ranges: tuple[Buffer, Buffer]) -> list[int]:
        """Return the size of each range."""
        return [self.approximate_size(start, stop) for start, stop in ranges]

    def _require_open(self) -> None:
        if self._db.closed:
            raise sheaf.ClosedError("the database is closed")


class PrefixedDB:
    """View of the keys of a database that begin with a prefix."""

    def __init__(self, db: DB, prefix: bytes) -> None:
        self._db, self._prefix = db, prefix

    @property
    def db(self) -> DB:
        """Database of the view."""
        return self._db

    @property
    def prefix(self) -> bytes:
        """Prefix of all keys."""
        return self._prefix

    def get(
        self,
        key: Buffer,
        default: Any = None,
        *,
        verify_checksums: bool | None = False,
        fill_cache: bool | None = True,
    ) -> Any:
        """Return the value, or the default."""
        return self._db.get(self._prefix + _bytes(key), default)

    def put(self, key: Buffer, value: Buffer, *, sync: bool = False) -> None:
        """Insert a pair."""
        self._db.put(self._prefix + _bytes(key), value, sync=sync)

    def delete(self, key: Buffer, *, sync: bool = False) -> None:
        """Remove a key."""
        self._db.delete(self._prefix + _bytes(key), sync=sync)

    def write_batch(self, *, transaction: bool = False, sync: bool = False) -> WriteBatch:
        """Return an empty batch."""
        return WriteBatch(self._db, self._prefix, transaction, sync)

    def iterator(self, **options: Any) -> Iterator:
        """Return an iterator over the present state."""
        return Iterator(self._db, self._db._db.snapshot(), self._prefix, **options)

    def __iter__(self) -> Iterator:
        return self.iterator()

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the present state."""
        return Snapshot(self._db, self._db._db.snapshot(), self._prefix)

    def prefixed_db(self, prefix: bytes) -> PrefixedDB:
        """Return a view of the keys with a longer prefix."""
        return PrefixedDB(self._db, self._prefix + _bytes(prefix))


class WriteBatch:
    """Changes that :meth:`write` makes as one commit. They stay in the batch until :meth:`clear`."""

    def __init__(self, db: DB, prefix: bytes, transaction: bool, sync: bool) -> None:
        db._require_open()
        self._db, self._prefix, self._transaction, self._sync = db, prefix, transaction, sync
        self._changes: list[tuple[bytes, bytes | None]] = []

    def put(self, key: Buffer, value: Buffer) -> None:
        """Add the insertion of a pair."""
        self._db._require_open()
        self._changes.append((self._prefix + _bytes(key), _bytes(value)))

    def delete(self, key: Buffer) -> None:
        """Add the removal of a key."""
        self._db._require_open()
        self._changes.append((self._prefix + _bytes(key), None))

    def append(self, source: WriteBatch) -> None:
        """Add the changes of another batch."""
        self._changes += source._changes

    def approximate_size(self) -> int:
        """Return the bytes of the changes."""
        return 12 + sum(len(key) + len(value or b"") + 3 for key, value in self._changes)

    def clear(self) -> None:
        """Remove all changes."""
        self._changes.clear()

    def write(self) -> None:
        """Make all changes as one commit."""
        with self._db._space.batch(durability="sync" if self._sync else None) as batch:
            for key, value in self._changes:
                if value is None:
                    del batch[key]
                else:
                    batch[key] = value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None or not self._transaction:
            self.write()
        self.clear()


class Snapshot:
    """State of the database at the moment of the creation."""

    def __init__(self, db: DB, snapshot: sheaf.Snapshot, prefix: bytes) -> None:
        self._db, self._snapshot, self._prefix = db, snapshot, prefix
        self._space = snapshot[_KEYSPACE]

    def get(
        self,
        key: Buffer,
        default: Any = None,
        *,
        verify_checksums: bool | None = False,
        fill_cache: bool | None = True,
    ) -> Any:
        """Return the value, or the default."""
        return self._space.get(self._prefix + _bytes(key), default)

    def iterator(self, **options: Any) -> Iterator:
        """Return an iterator over the snapshot."""
        return Iterator(self._db, self._snapshot, self._prefix, **options)

    def __iter__(self) -> Iterator:
        return self.iterator()

    def raw_iterator(
        self, *, verify_checksums: bool = False, fill_cache: bool = True
    ) -> RawIterator:
        """Return a raw iterator over the snapshot."""
        return RawIterator(self._db, self._snapshot)

    def close(self) -> None:
        """Free the snapshot. A second call does nothing."""
        self._snapshot.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Position:
    """Position between two keys of a range, which moves in both directions.

    ``_key`` is the key at the position, and ``_is_after`` whether the position is after it. Without
    a key the position is at the stop of the range if ``_is_after`` is true, and at the start
    otherwise. Pairs are read by a scan that is replaced when the direction changes.
    """

    def __init__(
        self,
        space: sheaf.SnapshotKeyspace,
        start: tuple[bytes | None, bool] = (None, True),
        stop: tuple[bytes | None, bool] = (None, False),
        part: int = _PAIRS,
    ) -> None:
        self._space, self._start, self._stop, self._part = space, start, stop, part
        self._scan: IteratorOf[Any] | None = None
        self._is_forward = True
        self.seek_to(None, False)

    def seek_to(self, key: bytes | None, is_after: bool) -> None:
        """Move before or after a key, or to an end of the range."""
        self._scan, self._key, self._is_after = None, key, is_after

    def seek(self, key: bytes) -> None:
        """Move before a key, within the range."""
        start, stop = self._start[0], self._stop[0]
        if start is not None and key <= start:
            self.seek_to(None, False)
        elif stop is not None and (key > stop or (key == stop and not self._stop[1])):
            self.seek_to(None, True)
        else:
            self.seek_to(key, False)

    def _open_scan(self, is_forward: bool) -> IteratorOf[Any]:
        start, stop = self._start, self._stop
        if self._key is None:
            if self._is_after == is_forward:
                return iter(())
        elif is_forward:
            start = (self._key, not self._is_after)
        else:
            stop = (self._key, self._is_after)
        return self._space.scan(
            self._part, start[0], stop[0], None, not is_forward, start[1], stop[1]
        )

    def move(self, is_forward: bool) -> Any:
        """Move over the next pair and return it; return ``None`` at the end of the range."""
        if self._scan is None or self._is_forward != is_forward:
            self._scan, self._is_forward = self._open_scan(is_forward), is_forward
        item = next(self._scan, None)
        if item is None:
            self.seek_to(None, is_forward)
            return None
        self._key, self._is_after = item[0] if self._part == _PAIRS else item, is_forward
        return item


class Iterator:
    """Iterator over the keys from ``start`` to ``stop``, or those with a prefix, in two directions."""

    def __init__(
        self,
        db: DB,
        snapshot: sheaf.Snapshot,
        own_prefix: bytes,
        *,
        reverse: bool = False,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        include_start: bool = True,
        include_stop: bool = False,
        prefix: Buffer | None = None,
        include_key: bool = True,
        include_value: bool = True,
        verify_checksums: bool = False,
        fill_cache: bool = True,
    ) -> None:
        if prefix is not None and (start is not None or stop is not None):
            raise TypeError("prefix cannot be used with start or stop")
        if prefix is not None:
            own, include_start, include_stop = own_prefix + _bytes(prefix), True, False
            bounds = (own or None, _after_prefix(own))
        else:
            low = own_prefix + _bytes(start) if start is not None else own_prefix or None
            high = own_prefix + _bytes(stop) if stop is not None else _after_prefix(own_prefix)
            include_stop = include_stop and stop is not None
            include_start = include_start or start is None
            bounds = (low, high)
        self._db, self._own_prefix, self._is_reverse = db, own_prefix, reverse
        self._has_key, self._has_value = include_key, include_value
        self._at: _Position | None = _Position(
            snapshot[_KEYSPACE],
            (bounds[0], include_start),
            (bounds[1], include_stop),
            _PAIRS if include_value else _KEYS,
        )
        self._position().seek_to(None, reverse)

    def _position(self) -> _Position:
        self._db._require_open()
        if self._at is None:
            raise RuntimeError("the iterator is closed")
        return self._at

    def _move(self, is_forward: bool) -> Any:
        item = self._position().move(is_forward)
        if item is None:
            raise StopIteration
        key, value = item if self._has_value else (item, None)
        if not self._has_key:
            return value
        key = key[len(self._own_prefix) :]
        return (key, value) if self._has_value else key

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._move(not self._is_reverse)

    def prev(self) -> Any:
        """Move one pair back and return it."""
        return self._move(self._is_reverse)

    def seek(self, target: Buffer) -> None:
        """Move before a key."""
        self._position().seek(self._own_prefix + _bytes(target))

    def seek_to_start(self) -> None:
        """Move to the start of the range, the smallest keys."""
        self._position().seek_to(None, False)

    def seek_to_stop(self) -> None:
        """Move to the stop of the range, the largest keys."""
        self._position().seek_to(None, True)

    def close(self) -> None:
        """Free the state that the iterator reads."""
        self._at = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class RawIterator:
    """Iterator with the interface of LevelDB: at a pair, or invalid."""

    def __init__(self, db: DB, snapshot: sheaf.Snapshot) -> None:
        self._db = db
        self._at: _Position | None = _Position(snapshot[_KEYSPACE])
        self._pair: tuple[bytes, bytes] | None = None

    def _position(self) -> _Position:
        self._db._require_open()
        if self._at is None:
            raise RuntimeError("the iterator is closed")
        return self._at

    def _current(self) -> tuple[bytes, bytes]:
        self._position()
        if self._pair is None:
            raise IteratorInvalidError("the iterator is at no pair")
        return self._pair

    def valid(self) -> bool:
        """Return true if the iterator is at a pair."""
        self._position()
        return self._pair is not None

    def seek_to_first(self) -> None:
        """Move to the first pair."""
        self._position().seek_to(None, False)
        self._pair = self._position().move(True)

    def seek_to_last(self) -> None:
        """Move to the last pair."""
        self._position().seek_to(None, True)
        self._pair = self._position().move(False)

    def seek(self, target: Buffer) -> None:
        """Move to the first pair whose key is the target or greater."""
        self._position().seek(_bytes(target))
        self._pair = self._position().move(True)

    def next(self) -> None:
        """Move to the next pair."""
        self._step(True)

    def prev(self) -> None:
        """Move to the previous pair."""
        self._step(False)

    def _step(self, is_forward: bool) -> None:
        key = self._current()[0]
        position = self._position()
        if position._is_after != is_forward:
            position.seek_to(key, is_forward)
        self._pair = position.move(is_forward)

    def key(self) -> bytes:
        """Return the key of the pair."""
        return self._current()[0]

    def value(self) -> bytes:
        """Return the value of the pair."""
        return self._current()[1]

    def item(self) -> tuple[bytes, bytes]:
        """Return the pair."""
        return self._current()

    def close(self) -> None:
        """Free the state that the iterator reads."""
        self._at = self._pair = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _has_database(path: str) -> bool:
    """Return whether a directory contains a database; raise if another process has it open."""
    try:
        sheaf.open(path, create=False, ipc=False).close()
    except sheaf.DatabaseNotFoundError:
        return False
    except CorruptionError:
        return True
    return True


def repair_db(name: str) -> None:
    """Salvage a damaged database in place. The damaged files stay in ``<name>.damaged``."""
    path = os.fsdecode(name).rstrip("/")
    report = sheaf.repair(path, path + ".repaired", keep_doubtful=True)
    if report.damage_count == 0 and report.is_complete:
        shutil.rmtree(path + ".repaired")
        return
    os.rename(path, path + ".damaged")
    os.rename(path + ".repaired", path)


def destroy_db(name: str) -> None:
    """Remove a database and its directory. A missing database is no error."""
    path = os.fsdecode(name)
    if _has_database(path):
        shutil.rmtree(path)
