"""Exceptions of the library: one class for each kind of error.

Every class has the fields of its error as attributes. The text of an exception is for humans;
programs must use the class and the fields.
"""

from __future__ import annotations

from pathlib import Path


class Error(Exception):
    """Base class of all exceptions of the library."""

    def __init__(self, message: str = "", **fields: object) -> None:
        super().__init__(message)
        for name, value in fields.items():
            setattr(self, name, value)


class IoError(Error, OSError):
    """The operating system or another process prevents an operation on a file.

    Attributes ``path`` and, for errors of a system call, ``op`` and ``errno``.
    """

    path: Path
    op: str


class NoSpaceError(IoError):
    """The disk is full. Nothing was written; reads and removals continue to work."""


class TooManyFilesError(IoError):
    """No file descriptor is left. ``limit`` is the limit of the process, or ``None``."""

    limit: int | None


class FileSizeLimitError(IoError):
    """A file would exceed the size limit of the process, ``limit`` bytes."""

    size: int
    limit: int


class LockedError(IoError):
    """Another process or handle has the database open. ``pid`` and ``program`` name it, if known."""

    pid: int | None
    program: str | None
    is_stopped: bool


class OwnerUnresponsiveError(IoError):
    """The owner of the database did not answer for ``waited`` seconds."""

    pid: int | None
    program: str | None
    is_stopped: bool
    waited: float


class OwnerClosedError(IoError):
    """The owner of an attached database closed it or ended. Open the database again."""


class DatabaseNotFoundError(IoError, FileNotFoundError):
    """There is no database in the directory ``path``."""


class CorruptError(Error):
    """Stored bytes are damaged. ``path``, ``offset``, ``structure`` and ``damage`` name the place."""

    path: Path
    offset: int
    structure: str
    damage: str


class PoisonedError(Error):
    """The database refuses writes after a failure, named by ``cause``. Reopen it."""

    cause: str


class TooLargeError(Error, ValueError):
    """A key, a value or a batch (``object``) has ``got`` bytes; the limit is ``max`` bytes."""

    object: str
    got: int
    max: int


class UnsupportedVersionError(Error):
    """The format version ``found`` is not ``supported`` by this build."""

    path: Path
    found: int
    supported: int


class NotADatabaseError(Error):
    """The directory ``path`` has other content; ``reason`` says which."""

    path: Path
    reason: str


class NotABackupError(Error):
    """The directory ``path`` is no complete backup; ``reason`` says why."""

    path: Path
    reason: str


class CancelledError(Error):
    """The operation was cancelled."""


class KeyspaceNotFoundError(Error, LookupError):
    """There is no keyspace ``name``."""

    name: str


class KeyspaceExistsError(Error):
    """A keyspace ``name`` exists already."""

    name: str


class EngineMismatchError(Error, ValueError):
    """The keyspace ``name`` has the engine or options ``found``, not ``requested``."""

    name: str
    found: str
    requested: str


class UnsupportedError(Error):
    """The ``engine`` does not support a ``feature``, for example ranges."""

    engine: str
    feature: str


class ConflictError(Error):
    """An expectation of a batch does not hold, or a read of a transaction is outdated.

    ``keyspace`` names the keyspace, and ``key`` the key, or ``None`` for a range. Nothing was
    written.
    """

    keyspace: str
    key: bytes | None


class MemoryBudgetError(Error, MemoryError):
    """The memory budget of ``budget`` bytes has no room for more keys."""

    budget: int


class BusyError(Error):
    """The write would have to wait for background work, named by ``waiting_for``."""

    waiting_for: str


class ChangesTooOldError(Error):
    """The changes after commit ``position`` are no longer retained; those after ``oldest`` are.

    Copy a snapshot, and continue from its position.
    """

    position: int
    oldest: int


class ReadOnlyError(Error):
    """The database was opened for reading only."""


class ClosedError(Error, RuntimeError):
    """The database, snapshot or handle is closed.

    ``is_forked`` is true in a process that was forked after the database was opened.
    """

    is_forked: bool = False


class InvalidArgumentError(Error, ValueError):
    """The value of ``argument`` is invalid for the given ``reason``."""

    argument: str
    reason: str
