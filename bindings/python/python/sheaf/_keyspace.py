"""Keyspaces of the database and of snapshots, and their views."""

from __future__ import annotations

import io
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from typing import TYPE_CHECKING, Any, Literal

from . import _reports
from ._batch import Batch
from ._sheaf import RawKeyspace, RawSnapshotKeyspace, RawSpace, Scan
from ._streams import ValueReader, ValueWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer

Durability = Literal["buffer", "sync"]

_PAIRS, _KEYS, _VALUES = 0, 1, 2


def _bytes(value: Buffer | None) -> bytes | None:
    return None if value is None else bytes(memoryview(value).cast("B"))


class _Range:
    """Bounds and direction of a view."""

    __slots__ = ("prefix", "reverse", "start", "stop")

    def __init__(
        self, start: Buffer | None, stop: Buffer | None, prefix: Buffer | None, reverse: bool
    ) -> None:
        self.start, self.stop, self.prefix = _bytes(start), _bytes(stop), _bytes(prefix)
        self.reverse = reverse

    @property
    def is_all(self) -> bool:
        return self.start is None and self.stop is None and self.prefix is None

    def has(self, key: object) -> bool:
        buffer: Any = key
        key = bytes(memoryview(buffer).cast("B"))
        return (
            (self.start is None or key >= self.start)
            and (self.stop is None or key < self.stop)
            and (self.prefix is None or key.startswith(self.prefix))
        )

    def scan(self, space: _Space, part: int, is_flipped: bool = False) -> Scan[Any]:
        return space.scan(part, self.start, self.stop, self.prefix, self.reverse != is_flipped)

    def count(self, space: _Space) -> int:
        return len(space) if self.is_all else sum(1 for _ in self.scan(space, _KEYS))


class Keys(KeysView[bytes]):
    """Keys of a range. Each iteration shows the state at its begin."""

    __slots__ = ("_range",)
    _mapping: _Space

    def __init__(self, space: _Space, range: _Range) -> None:
        super().__init__(space)
        self._range = range

    def __iter__(self) -> Iterator[bytes]:
        return self._range.scan(self._mapping, _KEYS)

    def __reversed__(self) -> Iterator[bytes]:
        return self._range.scan(self._mapping, _KEYS, is_flipped=True)

    def __len__(self) -> int:
        return self._range.count(self._mapping)

    def __contains__(self, key: object) -> bool:
        return self._range.has(key) and key in self._mapping


class Items(ItemsView[bytes, bytes]):
    """Pairs of a range. Each iteration shows the state at its begin."""

    __slots__ = ("_range",)
    _mapping: _Space

    def __init__(self, space: _Space, range: _Range) -> None:
        super().__init__(space)
        self._range = range

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._range.scan(self._mapping, _PAIRS)

    def __reversed__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._range.scan(self._mapping, _PAIRS, is_flipped=True)

    def __len__(self) -> int:
        return self._range.count(self._mapping)

    def __contains__(self, item: object) -> bool:
        pair: Any = item
        key, value = pair
        return self._range.has(key) and self._mapping.get(key) == value


class Values(ValuesView[bytes]):
    """Values of a range, in the order of the keys. Each iteration shows the state at its begin."""

    __slots__ = ("_range",)
    _mapping: _Space

    def __init__(self, space: _Space, range: _Range) -> None:
        super().__init__(space)
        self._range = range

    def __iter__(self) -> Iterator[bytes]:
        return self._range.scan(self._mapping, _VALUES)

    def __reversed__(self) -> Iterator[bytes]:
        return self._range.scan(self._mapping, _VALUES, is_flipped=True)

    def __len__(self) -> int:
        return self._range.count(self._mapping)

    def __contains__(self, value: object) -> bool:
        return any(found == value for found in self)


class _Space(RawSpace, Mapping[bytes, bytes]):
    """Views and file objects of a keyspace of the database or of a snapshot."""

    __slots__ = ()

    def keys(
        self,
        *,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> Keys:
        """Return a view of the keys from ``start`` to ``stop`` (excluded) that begin with ``prefix``."""
        return Keys(self, _Range(start, stop, prefix, reverse))

    def items(
        self,
        *,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> Items:
        """Return a view of the pairs of a range; :meth:`keys` describes the range."""
        return Items(self, _Range(start, stop, prefix, reverse))

    def values(
        self,
        *,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        prefix: Buffer | None = None,
        reverse: bool = False,
    ) -> Values:
        """Return a view of the values of a range; :meth:`keys` describes the range."""
        return Values(self, _Range(start, stop, prefix, reverse))

    def reader(self, key: Buffer, *, buffer_size: int = 1 << 16) -> io.BufferedReader | None:
        """Return a binary file with the value, or ``None``. Large values are read in parts."""
        raw = self.raw_reader(key)
        return None if raw is None else io.BufferedReader(ValueReader(raw), buffer_size)

    def __reversed__(self) -> Iterator[bytes]:
        return self.scan(_KEYS, None, None, None, True)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return object.__hash__(self)


class Keyspace(RawKeyspace, _Space, MutableMapping[bytes, bytes]):
    """Ordered or unordered map from bytes to bytes, made by :meth:`Database.keyspace`.

    Keys have 0 to 65,535 bytes, values 0 to 4 GiB - 1. Ordered engines sort keys as unsigned
    bytes. Reads see the newest committed state; iterators and snapshots see one fixed state.
    """

    __slots__ = ()

    def popitem(self) -> tuple[bytes, bytes]:
        """Remove and return the pair with the largest key; raise ``KeyError`` if there is none."""
        pair = self.pop_last()
        if pair is None:
            raise KeyError("popitem(): the keyspace is empty")
        return pair

    def update(  # type: ignore[override]
        self, pairs: Mapping[bytes, bytes] | Iterable[tuple[Buffer, Buffer]] = (), /
    ) -> None:
        """Insert all pairs, in commits of at most 1,024 pairs. :meth:`insert_many` makes one commit."""
        found: Any = pairs.items() if isinstance(pairs, Mapping) else pairs
        self.insert_groups(found)

    def batch(self, *, durability: Durability | None = None) -> Batch:
        """Return a batch with ``batch[key] = value`` and ``del batch[key]`` for this keyspace."""
        return Batch(self, True, durability)

    def writer(self, key: Buffer, *, durability: Durability | None = None) -> ValueWriter:
        """Return a binary file whose bytes become the value of ``key`` when it is closed."""
        return ValueWriter(self.raw_writer(key), durability)

    def estimate_range(
        self, start: Buffer | None = None, stop: Buffer | None = None, prefix: Buffer | None = None
    ) -> _reports.RangeEstimate:
        """Return the approximate number and size of the pairs in a range, without reading all of them.

        A range of at most about 250 pairs is counted; otherwise the number is usually off by less
        than a quarter. Unordered engines estimate the whole keyspace only.
        """
        return _reports.RangeEstimate(*self.raw_estimate(start, stop, prefix))

    def stats(self) -> _reports.KeyspaceStats:
        """Return the figures of the keyspace. Counts the keys."""
        return _reports.KeyspaceStats(**self.raw_stats())

    def compact(self) -> _reports.CompactionReport:
        """Write the pairs in the order of their keys, where the engine profits from it."""
        return _reports.CompactionReport(**self.raw_compact())

    def __repr__(self) -> str:
        return f"<sheaf.Keyspace {self.name!r} ({self.engine})>"


class SnapshotKeyspace(RawSnapshotKeyspace, _Space):
    """Keyspace as of the commit of a snapshot."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<sheaf.SnapshotKeyspace {self.name!r}>"
