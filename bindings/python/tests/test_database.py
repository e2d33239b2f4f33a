"""Databases: opening, batches, snapshots, streams, backup, statistics."""

from __future__ import annotations

import io
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sheaf


def test_pairs_survive_a_reopening(path: Path) -> None:
    with sheaf.open(path) as db:
        db["users"][b"ada"] = b"lovelace"
        assert not db.closed
    assert db.closed
    db.close()
    with sheaf.open(path, create=False) as db:
        assert db["users"][b"ada"] == b"lovelace"
        assert db.stats().opening.is_clean


def test_options_of_the_opening(path: Path) -> None:
    waits: list[str] = []
    with sheaf.open(
        path,
        wait=1,
        memory=64 << 20,
        durability="sync",
        sync_interval=0.05,
        background_threads=2,
        space_limit=2.5,
        open_files=32,
        ipc=False,
        permissions=(0o640, 0o750),
        on_stall=lambda kind, keyspace, seconds: waits.append(kind),
        stall_threshold=0.5,
    ) as db:
        db["users"][b"k"] = b"v"
        stats = db.stats()
        assert stats.memory.budget == 64 << 20 and stats.descriptors.limit == 32
        assert not stats.has_ipc and stats.durable_seq == stats.visible_seq
        assert path.stat().st_mode & 0o777 == 0o750


def test_bad_options_are_refused(path: Path) -> None:
    with pytest.raises(sheaf.DatabaseNotFoundError) as missing:
        sheaf.open(path, create=False)
    assert missing.value.path == path and isinstance(missing.value, FileNotFoundError)
    bad: list[dict[str, Any]] = [{"wait": -1}, {"durability": "later"}, {"space_limit": 1.0}, {"sync_interval": 0}]
    for options in bad:
        with pytest.raises(ValueError):
            sheaf.open(path, **options)
    with pytest.raises(TypeError):
        sheaf.open(path, memory="much")  # type: ignore[arg-type]
    with pytest.raises((ValueError, OverflowError)):
        sheaf.open(path, memory=-1)
    with pytest.raises(TypeError):
        sheaf.open(7)  # type: ignore[arg-type]


def test_paths_need_not_be_utf_8(tmp_path: Path) -> None:
    raw = os.fsencode(tmp_path) + b"/\xff\xfe"
    with sheaf.open(raw) as db:
        db["users"][b"k"] = b"v"
    with sheaf.open(Path(os.fsdecode(raw)), create=False) as db:
        assert db["users"][b"k"] == b"v"
        db.backup(os.fsencode(tmp_path) + b"/\xfd")
    with pytest.raises(sheaf.InvalidArgumentError, match="NUL"):
        sheaf.open(tmp_path / "a\0b")
    with pytest.raises(sheaf.InvalidArgumentError, match="NUL"):
        sheaf.restore(tmp_path / "a\0b", tmp_path / "to")
    with pytest.raises(sheaf.InvalidArgumentError, match="empty"):
        sheaf.open("")


def test_foreign_files_need_not_have_utf_8_names(path: Path, tmp_path: Path) -> None:
    foreign = os.fsencode(tmp_path) + b"/foreign"
    os.mkdir(foreign)
    open(foreign + b"/\xff", "wb").close()
    with pytest.raises(sheaf.NotADatabaseError):
        sheaf.open(foreign)
    with sheaf.open(path) as db:
        db["users"][b"k"] = b"v"
        with pytest.raises(sheaf.InvalidArgumentError, match="not empty"):
            db.backup(foreign)
    open(os.fsencode(path) + b"/\xff", "wb").close()
    with sheaf.open(path) as db:
        assert db["users"][b"k"] == b"v" and db.verify().findings == 0


def test_a_second_opening_is_refused(db: sheaf.Database, path: Path) -> None:
    with pytest.raises(sheaf.LockedError) as locked:
        sheaf.open(path)
    assert locked.value.pid == os.getpid() and isinstance(locked.value, OSError)


def test_a_reader_attaches_to_its_owner(db: sheaf.Database, path: Path) -> None:
    db["users"][b"k"] = b"v"
    with sheaf.open(path, read_only=True) as reader:
        users = reader["users"]
        assert users[b"k"] == b"v"
        with pytest.raises(sheaf.ReadOnlyError):
            users[b"k"] = b"w"


def test_a_batch_is_one_commit(db: sheaf.Database) -> None:
    users, groups = db["users"], db["groups"]
    with db.batch() as batch:
        batch.insert(users, b"ada", b"1")
        batch.insert(groups, b"admin", b"ada")
        batch.remove(groups, b"none")
        assert len(batch) == 3 and batch and "3" in repr(batch) and not users
    assert users[b"ada"] == b"1" and groups[b"admin"] == b"ada"
    with pytest.raises(ZeroDivisionError), db.batch() as batch:
        batch.insert(users, b"alan", b"2")
        raise ZeroDivisionError
    assert b"alan" not in users and len(batch) == 0


def test_a_batch_of_a_keyspace_has_items(users: sheaf.Keyspace, db: sheaf.Database) -> None:
    users[b"old"] = b"1"
    with users.batch(durability="sync") as batch:
        batch[b"a"] = b"1"
        batch[bytearray(b"b")] = memoryview(b"2")
        del batch[b"old"]
    assert dict(users) == {b"a": b"1", b"b": b"2"}
    with pytest.raises(TypeError, match="no keyspace of its own"):
        db.batch()[b"a"] = b"1"


def test_expectations_of_a_batch(users: sheaf.Keyspace, db: sheaf.Database) -> None:
    users[b"a"] = b"1"
    batch = db.batch()
    batch.expect_value(users, b"a", b"1")
    batch.expect_value(users, b"b", None)
    batch.insert(users, b"b", b"2")
    ticket = batch.submit()
    ticket.wait()
    ticket.wait_durable()
    assert ticket.is_durable and ticket.seq == db.seq
    with pytest.raises(sheaf.ConflictError), db.batch() as batch:
        batch.expect_value(users, b"a", b"other")
        batch.insert(users, b"a", b"3")
    assert users[b"a"] == b"1"


def test_a_transaction_reads_one_state_and_its_changes(users: sheaf.Keyspace, db: sheaf.Database) -> None:
    users[b"a"] = b"1"
    with db.transaction(durability="sync") as tx:
        users[b"z"] = b"later"
        assert tx.seq < db.seq and tx.is_open and "ended" not in repr(tx)
        assert tx.get(users, b"a") == b"1" and tx.untracked_get(users, bytearray(b"y")) is None
        point = tx.savepoint()
        tx.insert(users, b"b", b"2")
        later = tx.savepoint()
        tx.remove(users, b"a")
        assert list(tx.items(users, stop=b"d")) == [(b"b", b"2")]
        tx.roll_back_to(point)
        with pytest.raises(sheaf.InvalidArgumentError, match="savepoint"):
            tx.roll_back_to(later)
        tx.insert(users, b"c", b"3")
        assert list(tx.items(users, start=b"a", stop=b"d", reverse=True)) == [(b"c", b"3"), (b"a", b"1")]
    assert dict(users) == {b"a": b"1", b"c": b"3", b"z": b"later"}
    assert not tx.is_open and "ended" in repr(tx)
    with pytest.raises(sheaf.InvalidArgumentError, match="ended"):
        tx.get(users, b"a")
    with pytest.raises(ZeroDivisionError), db.transaction() as tx:
        tx.insert(users, b"d", b"4")
        raise ZeroDivisionError
    assert b"d" not in users
    with pytest.raises(TypeError, match="pickle"):
        tx.__reduce__()


def test_a_changed_read_is_a_conflict(users: sheaf.Keyspace, db: sheaf.Database) -> None:
    users[b"a"] = b"1"
    tx = db.transaction()
    assert tx.get_for_update(users, b"a") == b"1"
    users[b"a"] = b"2"
    with pytest.raises(sheaf.ConflictError) as caught:
        tx.commit()
    assert (caught.value.keyspace, caught.value.key) == ("users", b"a")
    tx = db.transaction()
    pairs = tx.items(users, prefix=b"a")
    assert next(pairs) == (b"a", b"2")
    users[b"b"] = b"outside of the range"
    tx.insert(users, b"c", b"3")
    tx.submit().wait_durable()
    tx = db.transaction()
    assert len(list(tx.items(users))) == 3
    users[b"bb"] = b"a phantom"
    tx.insert(users, b"d", b"4")
    with pytest.raises(sheaf.ConflictError):
        tx.commit()
    tx.roll_back()
    assert b"d" not in users


def test_transact_runs_again_after_conflicts(users: sheaf.Keyspace, db: sheaf.Database) -> None:
    calls = 0

    def add_one(tx: sheaf.Transaction) -> int:
        nonlocal calls
        calls += 1
        old = int(tx.get(users, b"n") or b"0")
        if calls < 7:
            users[b"n"] = b"%d" % (old + 10)
        tx.insert(users, b"n", b"%d" % (old + 1))
        return old

    with pytest.raises(sheaf.ConflictError):
        db.transact(add_one, attempts=2)
    assert users[b"n"] == b"20" and calls == 2
    assert db.transact(add_one) == 60 and calls == 7 and users[b"n"] == b"61"

    def increment(tx: sheaf.Transaction) -> None:
        tx.insert(users, b"n", b"%d" % (int(tx.get(users, b"n") or b"0") + 1))

    threads = [
        threading.Thread(target=lambda: [db.transact(increment) for _ in range(50)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert users[b"n"] == b"261"


def test_batches_append_and_clear(users: sheaf.Keyspace) -> None:
    one, two = users.batch(), users.batch()
    one[b"a"] = b"1"
    two[b"b"] = b"2"
    one.append(two)
    one.append(one)
    assert (len(one), len(two)) == (2, 0)
    one.commit()
    one.commit()
    two[b"c"] = b"3"
    two.clear()
    two.commit()
    assert dict(users) == {b"a": b"1", b"b": b"2"}


def test_a_batch_takes_no_foreign_keyspace(db: sheaf.Database, tmp_path: Path) -> None:
    with sheaf.open(tmp_path / "other") as other:
        batch = db.batch()
        batch.insert(other["users"], b"k", b"v")
        with pytest.raises(sheaf.InvalidArgumentError):
            batch.commit()


def test_a_snapshot_shows_one_state(db: sheaf.Database) -> None:
    users = db["users"]
    users.update({b"a": b"1", b"b": b"2"})
    with db.snapshot() as snapshot:
        users[b"a"] = b"changed"
        del users[b"b"]
        old = snapshot["users"]
        assert dict(old) == {b"a": b"1", b"b": b"2"} and len(old) == 2 and old
        assert old.get(b"a") == b"1" and bytes(old.view(b"b") or b"") == b"2" and b"a" in old
        assert old.get_many([b"b", b"c"]) == [b"2", None] and old.get_range(b"a") == b"1"
        assert old.first() == (b"a", b"1") and old.last() == (b"b", b"2")
        assert list(reversed(old)) == [b"b", b"a"] == list(old.keys(reverse=True))
        assert list(old.items(start=b"b")) == [(b"b", b"2")] and list(old.values()) == [b"1", b"2"]
        reader = old.reader(b"a")
        assert reader is not None and reader.read() == b"1" and old.reader(b"none") is None
        assert list(snapshot) == ["users"] and "users" in snapshot and snapshot.seq < db.seq
        with pytest.raises(sheaf.KeyspaceNotFoundError):
            snapshot["none"]
        with pytest.raises(KeyError):
            old[b"none"]
        assert db.stats().views == 1
    assert db.stats().views == 0
    for use in (lambda: old[b"a"], lambda: snapshot["users"], lambda: snapshot.keyspaces()):
        with pytest.raises(sheaf.ClosedError):
            use()
    snapshot.close()


def test_streams_are_file_objects(users: sheaf.Keyspace) -> None:
    value = os.urandom(1 << 20) * 3 + b"end"
    with users.writer(b"big") as writer:
        shutil.copyfileobj(io.BytesIO(value), writer)
        assert writer.tell() == len(value) and b"big" not in users
    assert users.size_of(b"big") == len(value)
    with users.reader(b"big") or pytest.fail() as reader:
        assert reader.read(10) == value[:10] and reader.seek(-3, io.SEEK_END) == len(value) - 3
        assert reader.read() == b"end" and reader.seek(0) == 0 and reader.read() == value
        del users[b"big"]
        reader.seek(100)
        assert reader.read(5) == value[100:105]
    with pytest.raises(ValueError):
        reader.read()
    assert users.reader(b"none") is None


def test_an_unfinished_stream_writes_nothing(users: sheaf.Keyspace) -> None:
    with pytest.raises(ZeroDivisionError), users.writer(b"k") as writer:
        writer.write(b"x")
        raise ZeroDivisionError
    assert b"k" not in users
    writer = users.writer(b"k")
    writer.write(b"x")
    del writer
    assert b"k" not in users
    writer = users.writer(b"k", durability="sync")
    writer.write(bytearray(b"yes"))
    writer.commit()
    writer.close()
    assert users[b"k"] == b"yes"
    for use in (lambda: writer.write(b"x"), writer.commit):
        with pytest.raises(ValueError):
            use()


def test_backup_and_restore(db: sheaf.Database, tmp_path: Path) -> None:
    users = db["users"]
    users.update((b"%05d" % index, b"x" * 100) for index in range(5000))
    steps: list[tuple[str, int, int]] = []
    report = db.backup(
        tmp_path / "monday", rate="unlimited", progress=lambda *step: steps.append(step)
    )
    assert report.files > 0 and report.copied_bytes > 0 and steps[-1][1] == steps[-1][2]
    assert {step[0] for step in steps} == {"copying", "verifying"}
    second = db.backup(tmp_path / "tuesday", base=tmp_path / "monday", rate=1 << 30)
    assert second.seq == db.seq
    restored = sheaf.restore(tmp_path / "monday", tmp_path / "again", progress=lambda *step: None)
    assert restored.seq == report.seq
    with sheaf.open(tmp_path / "again") as again:
        assert len(again["users"]) == 5000
    with pytest.raises(sheaf.NotABackupError):
        sheaf.restore(tmp_path / "again", tmp_path / "more")
    with pytest.raises(sheaf.InvalidArgumentError):
        db.backup(tmp_path / "monday")
    with pytest.raises(sheaf.InvalidArgumentError):
        db.backup(tmp_path / "rate", rate=0)


def test_an_exception_of_a_callback_cancels(db: sheaf.Database, tmp_path: Path) -> None:
    db["users"].update((b"%05d" % index, b"x" * 100) for index in range(5000))

    def fail(phase: str, done: int, total: int) -> None:
        raise ZeroDivisionError(phase)

    with pytest.raises(ZeroDivisionError):
        db.backup(tmp_path / "backup", progress=fail)
    assert not (tmp_path / "backup" / "BACKUP").exists()
    with pytest.raises(ZeroDivisionError):
        db.convert("users", "flat", progress=fail)
    assert db["users"].engine == "flex"


def test_conversion(db: sheaf.Database) -> None:
    users = db["users"]
    users.update((b"%05d" % index, b"x" * 100) for index in range(1000))
    report = db.convert("users", "cedrus", branching=64)
    assert report is not None and report.copied_pairs == 1000
    assert users.engine == "cedrus" and users.options["branching"] == 64 and len(users) == 1000
    assert db.convert("users", "flat-ordered") is not None
    users.compact()


def test_a_bulk_load_adds_sorted_pairs(db: sheaf.Database) -> None:
    pairs = {number.to_bytes(4, "big"): b"old" for number in range(3000)}
    words = db["words"]
    assert db.bulk_load("words", pairs).pairs == 3000
    assert dict(words) == pairs
    with pytest.raises(sheaf.InvalidArgumentError):
        db.bulk_load("words", pairs)
    reused = bytearray(4)

    def even() -> Iterator[tuple[bytearray, bytes]]:
        for number in range(0, 4000, 2):
            reused[:] = number.to_bytes(4, "big")
            yield reused, b"new"

    seen: list[tuple[str, int, int]] = []
    report = db.bulk_load("words", even(), mode="keep", progress=lambda *at: seen.append(at))
    assert report.pairs == 2000 and seen
    pairs.update({number.to_bytes(4, "big"): b"new" for number in range(0, 4000, 2)})
    assert dict(words) == dict(sorted(pairs.items()))
    assert db.bulk_load("words", [(b"a", b"1")], mode="replace", engine="kreon").pairs == 1
    assert dict(words) == {b"a": b"1"} and words.engine == "kreon"
    assert db.bulk_load("empty", {}).pairs == 0 and not db["empty"]


def test_a_bulk_load_has_the_options_of_a_keyspace(db: sheaf.Database) -> None:
    five = (5).to_bytes(8, "little")
    db.bulk_load("counters", {b"logins": five}, engine="flat-ordered", merge="add")
    counters = db["counters"]
    assert counters.engine == "flat-ordered"
    counters.merge(b"logins", five)
    assert int.from_bytes(counters[b"logins"], "little") == 10
    assert db.bulk_load("pages", {b"home": b"p" * 4000}, compression=1).pairs == 1
    with pytest.raises(sheaf.InvalidArgumentError):
        db.bulk_load("broken", {}, merge="subtract")


def test_a_bulk_load_that_fails_loads_nothing(db: sheaf.Database) -> None:
    words = db["words"]
    words[b"k"] = b"v"

    def broken() -> Iterator[tuple[bytes, bytes]]:
        yield b"a", b"1"
        raise KeyError("source")

    def cancel(phase: str, done: int, total: int) -> None:
        raise ZeroDivisionError

    for failure, source, progress in [
        (KeyError, broken(), None),
        (sheaf.InvalidArgumentError, [(b"b", b"1"), (b"a", b"2")], None),
        (TypeError, [(b"a", "text")], None),
        (ZeroDivisionError, [(b"a", b"1")], cancel),
    ]:
        with pytest.raises(failure):
            db.bulk_load("words", source, mode="keep", progress=progress)  # type: ignore[arg-type]
        assert dict(words) == {b"k": b"v"}
    with pytest.raises(ValueError, match="mode"):
        db.bulk_load("words", {}, mode="append")  # type: ignore[arg-type]
    db.close()
    with pytest.raises(sheaf.ClosedError):
        db.bulk_load("words", {})


def test_verify_statistics_and_rest(db: sheaf.Database) -> None:
    users = db["users"]
    users.update((b"%05d" % index, b"x" * 100) for index in range(1000))
    db.sync()
    db.quiesce()
    report = db.verify()
    assert (report.pairs, report.findings) == (1000, 0)
    stats = db.stats()
    assert stats.durable_seq == stats.visible_seq == db.seq
    assert 0 < stats.memory.total <= stats.memory.budget and stats.logs and stats.stalls
    assert users.stats().keys == 1000 and users.stats().disk_bytes > 0
    assert [info.name for info in db.keyspaces()] == ["users"]


def test_damage_is_reported_and_repaired(path: Path, tmp_path: Path) -> None:
    with sheaf.open(path) as db:
        users = db.keyspace("users", engine="flat")
        users.update((b"%05d" % index, b"x" * 100) for index in range(1000))
    segment = max((path / "data").glob("*.seg"), key=lambda file: file.stat().st_size, default=None)
    segment = segment or next(file for file in path.rglob("*.seg") if b"x" * 100 in file.read_bytes())
    damaged = bytearray(segment.read_bytes())
    at = damaged.find(b"x" * 100, len(damaged) // 4)
    damaged[at] ^= 1
    segment.write_bytes(damaged)
    found: list[BaseException] = []
    try:
        with sheaf.open(path) as db:
            report = db.verify(found.append)
            assert report.findings == len(found) >= 1
            damage = found[0]
            assert isinstance(damage, sheaf.CorruptError) and damage.path == segment
            with pytest.raises(sheaf.CorruptError):
                list(db["users"].items())
    except sheaf.CorruptError as error:
        assert error.path == segment and error.offset >= 0
    repair = sheaf.repair(path, tmp_path / "repaired", keep_doubtful=True)
    assert not repair.is_complete and repair.damage_count >= 1 and repair.keyspaces[0].certain > 0
    with sheaf.open(tmp_path / "repaired") as db:
        assert len(db["users"]) >= 900


def test_a_repair_refuses_its_source_as_target(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with sheaf.open(path) as db:
        db.keyspace("users")[b"ada"] = b"lovelace"
    for target in (path, str(path)):
        with pytest.raises(ValueError, match="source and target are the same directory"):
            sheaf.repair(path, target)
    with sheaf.open(path) as db:
        assert db["users"][b"ada"] == b"lovelace"
