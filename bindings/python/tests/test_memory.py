"""Memory stays constant over many operations.

``SHEAF_OPERATIONS`` is the number of operations after the first warm-up; default: 200,000. The
acceptance uses 10,000,000.
"""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

import sheaf

OPERATIONS = int(os.environ.get("SHEAF_OPERATIONS", "200000"))
KEYS = 1000


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def work(db: sheaf.Database, operations: int) -> None:
    """Run every kind of call in turns, about ``operations`` in total."""
    users = db["users"]
    keys = [b"%04d" % index for index in range(KEYS)]
    for turn in range(max(1, operations // (KEYS * 8))):
        value = b"%d" % turn * 50
        for key in keys:
            users[key] = value
            users.get(key)
            users.view(key)
            users.get(b"missing")
            users.compare_and_swap(key, value, value + b"!")
            try:
                users[b"missing"]
            except KeyError:
                pass
        users.get_many(keys)
        list(users.items())
        next(iter(users.items(reverse=True)))
        with db.batch() as batch:
            for key in keys:
                batch.insert(users, key, value)
        batch.insert(users, b"never", b"committed")
        with db.snapshot() as snapshot:
            len(snapshot["users"])
            iter(snapshot["users"].items())
        with users.writer(b"stream") as writer:
            writer.write(value)
        for wrong in (lambda: users["text"], lambda: db.keyspace("users", engine="flat")):  # type: ignore[index]
            with pytest.raises((TypeError, ValueError)):
                wrong()
        db.stats()


def growth(measure: Callable[[], int], call: Callable[[], None]) -> int:
    gc.collect()
    before = measure()
    call()
    gc.collect()
    return measure() - before


def test_memory_is_constant(path: Path) -> None:
    with sheaf.open(path, memory=32 << 20) as db:
        # The journal and the caches of the engine reach their size during the warm-up.
        work(db, OPERATIONS // 2)
        db.quiesce()
        tracemalloc.start()
        work(db, KEYS * 8)
        traced = growth(lambda: tracemalloc.get_traced_memory()[0], lambda: work(db, OPERATIONS // 4))
        tracemalloc.stop()
        resident = growth(resident_bytes, lambda: work(db, OPERATIONS))
        db.quiesce()
    print(f"{OPERATIONS} operations: traced {traced:+} bytes, resident {resident:+} bytes")
    assert traced < 64 << 10
    # The memory budget bounds the memory of the library.
    assert resident < 24 << 20


def test_objects_are_freed(path: Path) -> None:
    with sheaf.open(path) as db:
        users = db["users"]
        users.update((b"%05d" % index, b"x" * 1000) for index in range(1000))

        def use() -> None:
            for _ in range(200):
                snapshot = db.snapshot()
                iter(snapshot["users"].items())
                iter(users.items())
                users.view(b"00001")
                users.batch()[b"k"] = b"x" * 100_000

        use()
        assert growth(resident_bytes, use) < 8 << 20
        assert db.stats().views == 0
