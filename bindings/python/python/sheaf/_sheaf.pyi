"""Types of the extension module. Its classes are the bases of the public ones."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, Literal, NoReturn, TypeVar, final, overload

from typing_extensions import Buffer, Self

_Durability = Literal["buffer", "sync"]
_Progress = Callable[[str, int, int], object]
_Default = TypeVar("_Default")
_Item = TypeVar("_Item", covariant=True)

MAX_BATCH: Final[int]
MAX_KEY: Final[int]
MAX_VALUE: Final[int]
__version__: Final[str]

def engines() -> list[str]: ...
def engine_options(engine: str) -> list[tuple[str, int, int, int, str]]: ...
def restore(source: str, target: str, progress: _Progress | None) -> dict[str, Any]: ...
def repair(
    source: str, target: str, keep_doubtful: bool, progress: _Progress | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]: ...

@final
class Scan(Generic[_Item]):
    """Iterator over one range of a keyspace, as of the moment of its creation."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> _Item: ...
    def take(self, count: int) -> list[_Item]: ...
    def close(self) -> None: ...

@final
class CommitTicket:
    """Ticket of a commit that is visible to readers."""

    @property
    def seq(self) -> int: ...
    @property
    def is_durable(self) -> bool: ...
    def wait(self) -> None: ...
    def wait_durable(self) -> None: ...
    def start_wait(self, is_sync: bool) -> CommitWait: ...

@final
class PollNotifier:
    """Descriptor that is readable when a wait of an event loop can be polled again."""

    def fileno(self) -> int: ...
    def take(self) -> list[int]: ...

@final
class CommitWait:
    """Wait for the durability of a commit."""

    def poll(self, notifier: PollNotifier, number: int) -> bool: ...

@final
class Changes:
    """Changes after a position, commit by commit.

    An iterator: waits for the next commit, and ends when the database is closed.
    """

    def __new__(
        cls,
        database: RawDatabase,
        position: str | None,
        keyspaces: list[str],
        prefixes: list[Buffer],
        include_unsynced: bool,
    ) -> Self: ...
    @property
    def position(self) -> str:
        """Position after all commits that were returned or filtered out."""
    def next(self, timeout: float | None = None) -> Commit | None:
        """Return the next commit, or ``None`` if there is none within ``timeout`` seconds."""
    def poll_ready(self, notifier: PollNotifier, number: int) -> bool: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Commit: ...
    def close(self) -> None:
        """Free the feed. Further calls raise ``ClosedError``."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *arguments: object) -> None: ...
    def __reduce__(self) -> NoReturn: ...

@final
class Commit:
    """All changes of one commit."""

    @property
    def position(self) -> str:
        """Position after the commit."""
    @property
    def seq(self) -> int:
        """Number of the commit."""
    @property
    def changes(self) -> list[Change]:
        """The changes, in the order of the batch."""

@final
class Change:
    """One change of a commit."""

    @property
    def keyspace(self) -> str:
        """Name of the keyspace."""
    @property
    def kind(
        self,
    ) -> Literal[
        "put",
        "removed",
        "range_removed",
        "expired",
        "created",
        "cleared",
        "loaded",
        "converted",
        "renamed",
        "dropped",
        "other",
    ]:
        """Kind of the change."""
    @property
    def to(self) -> str | None:
        """New name of a keyspace that was renamed."""
    @property
    def key(self) -> bytes | None:
        """Key of the change, or first key of a removed range; ``None`` for a change of a keyspace."""
    @property
    def end(self) -> bytes | None:
        """Key after a removed range; ``None`` if the range has no end."""
    @property
    def size(self) -> int | None:
        """Length of the value of a put in bytes."""
    @property
    def expires_at(self) -> float | None:
        """Seconds since 1970 at which the pair expires, if it does."""
    @property
    def engine(self) -> str | None:
        """Engine of a keyspace that was created, loaded or converted."""
    @property
    def options(self) -> dict[str, int]:
        """Options of this keyspace that differ from the defaults."""
    def read(self) -> bytes | None:
        """Return the value of a put, and ``None`` for other kinds. Read a large value from its file."""
    def __reduce__(self) -> NoReturn: ...

class RawChangeCursor:
    def __new__(cls, database: RawDatabase, name: str) -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def position(self) -> str:
        """Position that was committed last."""
    def commit(self, position: str) -> None:
        """Move the cursor to a position, durably."""

@final
class RawReader:
    def __len__(self) -> int: ...
    def read_into(self, offset: int, target: Buffer) -> int: ...
    def read_range(self, start: int, stop: int) -> bytes: ...
    def close(self) -> None: ...
    def __reduce__(self) -> NoReturn: ...

@final
class RawWriter:
    def __len__(self) -> int: ...
    def write(self, bytes: Buffer) -> int: ...
    def commit(self, durability: _Durability | None = None) -> None: ...
    def discard(self) -> None: ...
    def __reduce__(self) -> NoReturn: ...

@final
class RawBulkLoader:
    def __new__(
        cls,
        database: RawDatabase,
        name: str,
        mode: str,
        engine: str | None,
        options: dict[str, int | str] | None,
    ) -> Self: ...
    def push(self, pairs: list[tuple[bytes, bytes]]) -> None: ...
    def finish(self, progress: _Progress | None) -> dict[str, Any]: ...
    def discard(self) -> None: ...
    def __reduce__(self) -> NoReturn: ...

@final
class RawDatabase:
    def __new__(cls, path: str, options: dict[str, object]) -> Self: ...
    def close(self) -> None: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def seq(self) -> int: ...
    def keyspaces(self) -> list[tuple[str, str, str | None]]: ...
    def drop_keyspace(self, name: str) -> bool: ...
    def rename_keyspace(self, name: str, to: str) -> None: ...
    def oldest_change(self) -> str: ...
    def newest_change(self) -> str: ...
    def change_cursors(self) -> dict[str, str]: ...
    def remove_change_cursor(self, name: str) -> bool: ...
    def sync(self) -> None: ...
    def quiesce(self) -> None: ...
    def raw_stats(self) -> dict[str, Any]: ...
    def raw_verify(self, on_damage: Callable[[BaseException], object] | None = None) -> dict[str, Any]: ...
    def raw_backup(
        self,
        path: str,
        base: str | None,
        verify: bool,
        rate: int | str | None,
        progress: _Progress | None,
    ) -> dict[str, Any]: ...
    def raw_convert(
        self, name: str, engine: str, options: dict[str, int | str] | None, progress: _Progress | None
    ) -> dict[str, Any] | None: ...
    def __reduce__(self) -> NoReturn: ...

class RawBatch:
    def __new__(
        cls, keyspace: RawDatabase | RawKeyspace, is_own: bool, durability: _Durability | None = None
    ) -> Self: ...
    def insert(self, keyspace: RawKeyspace, key: Buffer, value: Buffer) -> None:
        """Add the insertion of a pair."""
    def merge(self, keyspace: RawKeyspace, key: Buffer, operand: Buffer) -> None:
        """Add the merge of an operand into the value of a key; see ``Keyspace.merge``."""
    def remove(self, keyspace: RawKeyspace, key: Buffer) -> None:
        """Add the removal of a key."""
    def remove_range(
        self,
        keyspace: RawKeyspace,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        prefix: Buffer | None = None,
    ) -> None:
        """Add the removal of all keys of a range. It also removes earlier changes of this batch."""
    def expect_value(self, keyspace: RawKeyspace, key: Buffer, value: Buffer | None) -> None:
        """Add an expectation: the commit fails with ``ConflictError`` if the key has another value."""
    def __setitem__(self, key: Buffer, value: Buffer) -> None: ...
    def __delitem__(self, key: Buffer) -> None: ...
    def append(self, other: RawBatch) -> None:
        """Move the changes and expectations of ``other`` to the end of this batch."""
    def clear(self) -> None:
        """Remove all changes and expectations."""
    def __len__(self) -> int: ...
    def submit(self) -> CommitTicket:
        """Make all changes as one commit, and return its ticket without waiting for durability."""
    def commit(self) -> None:
        """Make all changes as one commit, and wait for its durability."""

class RawTransaction:
    def __new__(cls, database: RawDatabase, durability: _Durability | None = None) -> Self: ...
    @property
    def seq(self) -> int:
        """Number of the newest commit that the reads show."""
    @property
    def is_open(self) -> bool:
        """True until the commit or the rollback."""
    def get(self, keyspace: RawKeyspace, key: Buffer) -> bytes | None:
        """Return the value of a key, or ``None``. The commit checks that the key is unchanged."""
    def get_for_update(self, keyspace: RawKeyspace, key: Buffer) -> bytes | None:
        """Return a value like ``get``. The commit checks all reads even if nothing is changed."""
    def untracked_get(self, keyspace: RawKeyspace, key: Buffer) -> bytes | None:
        """Return a value like ``get``, but the commit does not check the key."""
    def insert(self, keyspace: RawKeyspace, key: Buffer, value: Buffer) -> None:
        """Set a key to a value."""
    def merge(self, keyspace: RawKeyspace, key: Buffer, operand: Buffer) -> None:
        """Merge an operand into the value of a key, which counts as a read; see ``Keyspace.merge``."""
    def remove(self, keyspace: RawKeyspace, key: Buffer) -> None:
        """Remove a key. A missing key is no error."""
    def remove_range(
        self,
        keyspace: RawKeyspace,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        prefix: Buffer | None = None,
    ) -> None:
        """Remove all keys of a range."""
    def scan(
        self,
        keyspace: RawKeyspace,
        start: Buffer | None,
        stop: Buffer | None,
        prefix: Buffer | None,
        reverse: bool,
    ) -> Iterator[tuple[bytes, bytes]]: ...
    def savepoint(self) -> int:
        """Return the number of a savepoint."""
    def roll_back_to(self, savepoint: int) -> None:
        """Undo all changes after a savepoint, which stays valid. Later ones do not."""
    def roll_back(self) -> None:
        """Drop all changes and end the transaction."""
    def submit(self) -> CommitTicket:
        """Commit, and return the ticket without waiting for durability.

        Raises ``ConflictError``, and writes nothing, if another commit changed a key or range that
        was read. The transaction has ended then, too.
        """
    def commit(self) -> None:
        """Commit like ``submit``, and wait for the durability."""
    def __reduce__(self) -> NoReturn: ...

class RawSpace:
    @overload
    def get(self, key: Buffer, default: None = None, /) -> bytes | None: ...
    @overload
    def get(self, key: Buffer, default: bytes | _Default, /) -> bytes | _Default: ...
    def view(self, key: Buffer) -> memoryview | None:
        """Return the value as a read-only memoryview that keeps it alive, or ``None``."""
    def get_many(self, keys: Iterable[Buffer]) -> list[bytes | None]:
        """Return the values of many keys, in the order of the keys; ``None`` for a missing key."""
    def get_range(self, key: Buffer, start: int = 0, stop: int | None = None) -> bytes | None:
        """Return a part of a value, or ``None``."""
    def first(self) -> tuple[bytes, bytes] | None: ...
    def last(self) -> tuple[bytes, bytes] | None: ...
    def scan(
        self,
        part: int,
        start: Buffer | None,
        stop: Buffer | None,
        prefix: Buffer | None,
        reverse: bool,
        include_start: bool = True,
        include_stop: bool = False,
    ) -> Scan[Any]: ...
    def raw_reader(self, key: Buffer) -> RawReader | None: ...
    def __getitem__(self, key: Buffer) -> bytes: ...
    def __contains__(self, key: object) -> bool: ...
    def __iter__(self) -> Iterator[bytes]: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __reduce__(self) -> NoReturn: ...

class RawKeyspace(RawSpace):
    def __new__(
        cls,
        database: RawDatabase,
        name: str,
        create: bool = True,
        engine: str | None = None,
        options: dict[str, int | str] | None = None,
    ) -> Self: ...
    @property
    def name(self) -> str: ...
    def rename(self, name: str) -> None:
        """Give the keyspace another name, durably. All handles have it at once.

        Raise ``KeyspaceExistsError`` if there is a keyspace of this name.
        """
    @property
    def engine(self) -> str: ...
    @property
    def options(self) -> dict[str, int | str]: ...
    @property
    def is_ordered(self) -> bool: ...
    def size_of(self, key: Buffer) -> int | None:
        """Return the length of a value in bytes without reading it, or ``None``."""
    def raw_estimate(
        self, start: Buffer | None = None, stop: Buffer | None = None, prefix: Buffer | None = None
    ) -> tuple[int, int]: ...
    def pop_first(self) -> tuple[bytes, bytes] | None: ...
    def pop_last(self) -> tuple[bytes, bytes] | None: ...
    def insert(self, key: Buffer, value: Buffer, durability: _Durability | None = None) -> None:
        """Insert a pair, replacing the value if the key is present."""
    def remove(self, key: Buffer, durability: _Durability | None = None) -> None:
        """Remove a key; a missing key is no error."""
    def merge(self, key: Buffer, operand: Buffer, durability: _Durability | None = None) -> None:
        """Let the merge operator of the keyspace compute the value from the present one and an operand.

        Raise ``InvalidArgumentError`` if the operator refuses the operand or if there is none.
        """
    def try_insert(self, key: Buffer, value: Buffer) -> None:
        """Insert a pair, or raise ``BusyError`` if the write would wait for background work."""
    def try_remove(self, key: Buffer) -> None:
        """Remove a key, or raise ``BusyError`` if the write would wait for background work."""
    def insert_many(
        self, pairs: Iterable[tuple[Buffer, Buffer]], durability: _Durability | None = None
    ) -> int:
        """Insert all pairs of an iterable as one commit, and return their number."""
    def insert_if_absent(self, key: Buffer, value: Buffer) -> bytes | None:
        """Insert a pair if the key is missing, and return ``None``; return the present value otherwise."""
    def compare_and_swap(self, key: Buffer, expected: Buffer | None, new: Buffer | None) -> bool:
        """Replace the value if it is ``expected``, and return true then. ``None`` is a missing key."""
    def modify(self, key: Buffer, change: Callable[[bytes | None], Buffer | None]) -> bytes | None:
        """Replace the value by ``change(value)``, which is called again if the value changes meanwhile."""
    def remove_range(
        self, start: Buffer | None = None, stop: Buffer | None = None, prefix: Buffer | None = None
    ) -> None:
        """Remove all keys of a range, in one commit."""
    def clear(self) -> None: ...
    def setdefault(self, key: Buffer, default: Buffer | None = None) -> bytes: ...
    @overload
    def pop(self, key: Buffer, /) -> bytes: ...
    @overload
    def pop(self, key: Buffer, default: bytes | _Default, /) -> bytes | _Default: ...
    def insert_groups(self, pairs: Iterable[tuple[Buffer, Buffer]]) -> None: ...
    def raw_writer(self, key: Buffer) -> RawWriter: ...
    def raw_compact(self) -> dict[str, Any]: ...
    def raw_stats(self) -> dict[str, Any]: ...
    def __setitem__(self, key: Buffer, value: Buffer) -> None: ...
    def __delitem__(self, key: Buffer) -> None: ...

class RawSnapshot:
    def __new__(cls, database: RawDatabase) -> Self: ...
    @property
    def seq(self) -> int: ...
    def keyspaces(self) -> list[str]: ...
    def change_position(self) -> str:
        """Return the position in the change feed after the newest commit of the snapshot."""
    def close(self) -> None: ...

class RawSnapshotKeyspace(RawSpace):
    def __new__(cls, snapshot: RawSnapshot, name: str) -> Self: ...
    @property
    def name(self) -> str: ...
