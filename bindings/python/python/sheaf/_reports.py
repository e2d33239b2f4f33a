"""Dataclasses of statistics and reports. Sizes are in bytes, times in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Use of the memory budget."""

    budget: int
    index: int
    versions: int
    buffers: int
    cache: int

    @property
    def total(self) -> int:
        """Bytes in use, caches included."""
        return self.index + self.versions + self.buffers + self.cache


@dataclass(frozen=True, slots=True)
class OpeningStats:
    """Work of the last opening. ``is_clean`` is true if no recovery was necessary."""

    is_clean: bool
    duration: float
    frames_scanned: int
    records_replayed: int
    discarded_bytes: int


@dataclass(frozen=True, slots=True)
class DescriptorStats:
    """Use of file descriptors."""

    limit: int
    in_use: int
    reopened: int


@dataclass(frozen=True, slots=True)
class StallStats:
    """Waits of writers for one reason, ``kind``."""

    kind: str
    count: int
    total: float
    longest: float


@dataclass(frozen=True, slots=True)
class LogStats:
    """Figures of one log."""

    name: str
    segments: int
    disk_bytes: int
    live_bytes: int
    appended_bytes: int
    relocated_bytes: int
    freed_segments: int
    damaged_segments: int


@dataclass(frozen=True, slots=True)
class DatabaseStats:
    """Figures of the whole database."""

    visible_seq: int
    durable_seq: int
    unsynced_age: float
    sync_rounds: int
    sync_waits: int
    views: int
    oldest_view_seq: int | None
    pinned_states: int
    pinned_bytes: int
    throttles: int
    checkpoints: int
    checkpoint_bytes: int
    blob_bytes_written: int
    poisoned: str | None
    has_ipc: bool
    memory: MemoryStats
    opening: OpeningStats
    descriptors: DescriptorStats
    stalls: list[StallStats]
    logs: list[LogStats]


def database_stats(figures: dict[str, Any]) -> DatabaseStats:
    """Return the figures of the extension module as a dataclass."""
    parts: dict[str, Any] = {
        "memory": MemoryStats(**figures.pop("memory")),
        "opening": OpeningStats(**figures.pop("opening")),
        "descriptors": DescriptorStats(**figures.pop("descriptors")),
        "stalls": [StallStats(**stall) for stall in figures.pop("stalls")],
        "logs": [LogStats(**log) for log in figures.pop("logs")],
    }
    return DatabaseStats(**figures, **parts)


@dataclass(frozen=True, slots=True)
class KeyspaceStats:
    """Figures of a keyspace."""

    keys: int
    index_bytes: int
    pinned_versions: int
    encoded_raw_bytes: int
    encoded_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class RangeEstimate:
    """Approximate number of the pairs in a range, and of the bytes of their keys and values as stored."""

    pairs: int
    bytes: int


@dataclass(frozen=True, slots=True)
class KeyspaceInfo:
    """Entry of the list of keyspaces. ``damage`` is set if the keyspace cannot be opened."""

    name: str
    engine: str
    damage: str | None


@dataclass(frozen=True, slots=True)
class EngineOption:
    """Option of an engine, with its range and default."""

    name: str
    min: int
    max: int
    default: int
    help: str


@dataclass(frozen=True, slots=True)
class BackupReport:
    """Result of a backup or a restore."""

    seq: int
    files: int
    copied_bytes: int
    linked_bytes: int


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Result of a verification. ``findings`` is the number of damages, ``files`` has their files."""

    pairs: int
    frames: int
    bytes: int
    findings: int
    files: list[Path]


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """Result of a compaction."""

    rewritten_pairs: int
    rewritten_bytes: int
    skipped_pairs: int


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """Result of a conversion to another engine."""

    copied_pairs: int
    bytes: int
    passes: int
    is_direct: bool


@dataclass(frozen=True, slots=True)
class BulkLoadReport:
    """Result of a bulk load. ``is_direct`` is true if the engine wrote its own files from the pairs."""

    pairs: int
    bytes: int
    is_direct: bool


@dataclass(frozen=True, slots=True)
class KeyspaceRepair:
    """Pairs of one keyspace that a repair proved to be the newest, could not prove, or lost."""

    name: str
    engine: str
    certain: int
    doubtful: int
    lost: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class RepairReport:
    """Result of a repair. ``is_complete`` is true if nothing was lost."""

    seq: int
    damage_count: int
    damaged_files: list[Path]
    is_complete: bool
    keyspaces: list[KeyspaceRepair]
