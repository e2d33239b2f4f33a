"""The change feed, and removals of ranges in batches and transactions."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import sheaf

RETENTION = sheaf.ChangeRetention(1 << 30, until_cursors_pass=True)


@pytest.fixture
def feed_db(path: Path) -> Iterator[sheaf.Database]:
    with sheaf.open(path, retain_changes=RETENTION) as opened:
        yield opened


def test_a_commit_has_all_its_changes(feed_db: sheaf.Database) -> None:
    users = feed_db["users"]
    users[b"alan"] = b"turing"
    changes = feed_db.changes(feed_db.newest_change(), include_unsynced=True)
    assert changes.next(0) is None
    with feed_db.batch() as batch:
        batch.insert(users, b"ada", b"lovelace")
        batch.remove(users, b"alan")
    commit = changes.next(0)
    assert commit is not None and commit.seq == feed_db.seq
    put, removed = commit.changes
    assert (put.kind, put.keyspace, put.key, put.size) == ("put", "users", b"ada", 8)
    assert put.read() == b"lovelace" and put.expires_at is None and put.end is None
    assert (removed.kind, removed.key, removed.read()) == ("removed", b"alan", None)
    assert changes.position == commit.position
    users.remove_range(b"x", b"y")
    commit = changes.next(0)
    assert commit is not None
    (range_removed,) = commit.changes
    assert (range_removed.kind, range_removed.key, range_removed.end) == ("range_removed", b"x", b"y")
    users[b"film"] = b"x" * (4 << 20)  # stored apart
    large = changes.next(0)
    assert large is not None and large.changes[0].read() == b"x" * (4 << 20)
    with pytest.raises(TypeError):
        pickle.dumps(changes)
    with pytest.raises(TypeError):
        pickle.dumps(put)


def test_a_feed_of_everything_begins_with_the_keyspaces(feed_db: sheaf.Database) -> None:
    feed_db.keyspace("logs", engine="kreon")[b"1"] = b"begin"
    feed_db["logs"].clear()
    feed_db.drop_keyspace("logs")
    feed_db["users"][b"ada"] = b"lovelace"
    feed_db.sync()
    with feed_db.changes(keyspaces=["logs"]) as changes:
        commits = iter(lambda: changes.next(0), None)
        kinds = [change.kind for commit in commits for change in commit.changes]
    assert kinds == ["created", "put", "cleared", "dropped"]
    with pytest.raises(sheaf.ClosedError):
        changes.next(0)
    with pytest.raises(sheaf.ClosedError):
        _ = changes.position
    with feed_db.changes(prefixes=[b"ad", bytearray(b"x")]) as changes:
        created = changes.next(0)
        assert created is not None and created.changes[0].engine == "kreon"
        assert created.changes[0].options == {}
    with feed_db.changes(keyspaces=["users"], prefixes=[b"none"]) as changes:
        commit = changes.next(0)
        assert commit is not None and commit.changes[0].kind == "created"
        assert changes.next(0) is None


def test_iteration_waits_and_ends_with_the_database(feed_db: sheaf.Database) -> None:
    users = feed_db["users"]
    changes = feed_db.changes(feed_db.newest_change())
    seen: list[bytes | None] = []

    def consume() -> None:
        for commit in changes:
            seen.extend(change.key for change in commit.changes)

    consumer = threading.Thread(target=consume)
    consumer.start()
    for number in range(3):
        users[b"%d" % number] = b""
        feed_db.sync()
    deadline = time.monotonic() + 20
    while len(seen) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    feed_db.close()
    consumer.join(20)
    assert not consumer.is_alive() and seen == [b"0", b"1", b"2"]
    with pytest.raises(sheaf.ClosedError):
        changes.next()


def test_positions_resume_after_a_snapshot(feed_db: sheaf.Database) -> None:
    users = feed_db["users"]
    users[b"ada"] = b"lovelace"
    with feed_db.snapshot() as snapshot:
        position = snapshot.change_position()
        users[b"alan"] = b"turing"
        assert list(snapshot["users"]) == [b"ada"]
    feed_db.sync()
    commit = feed_db.changes(position).next(5)
    assert commit is not None and [change.key for change in commit.changes] == [b"alan"]
    for wrong in ("", "x", "0" * 32 + "-1", position + "0"):
        with pytest.raises(sheaf.InvalidArgumentError):
            feed_db.changes(wrong)
    with pytest.raises(ValueError):
        feed_db.changes().next(-1)
    with pytest.raises(sheaf.ClosedError):
        snapshot.change_position()


def test_cursors_are_in_the_database(path: Path) -> None:
    with sheaf.open(path, retain_changes=RETENTION) as db:
        cursor = db.change_cursor("index")
        db["users"][b"ada"] = b"lovelace"
        db.sync()
        changes = cursor.changes()
        while changes.next(0):
            pass
        cursor.commit(changes.position)
        with pytest.raises(sheaf.InvalidArgumentError):
            cursor.commit(db.oldest_change())
        last = changes.position
    with sheaf.open(path) as db:
        assert db.change_cursors() == {"index": last}
        cursor = db.change_cursor("index")
        assert (cursor.name, cursor.position) == ("index", last) and cursor.changes().next(0) is None
        assert db.remove_change_cursor("index") and not db.remove_change_cursor("index")
        with pytest.raises(sheaf.InvalidArgumentError):
            _ = cursor.position
    with sheaf.open(path, retain_changes=False) as db, pytest.raises(sheaf.InvalidArgumentError):
        db.changes()


def test_a_database_without_retention_has_no_feed(db: sheaf.Database) -> None:
    for call in (db.changes, db.oldest_change, db.newest_change):
        with pytest.raises(sheaf.InvalidArgumentError):
            call()
    assert db.change_cursors() == {}


@pytest.mark.parametrize("engine", ["flex", "kreon"])
def test_batches_and_transactions_remove_ranges(db: sheaf.Database, engine: str) -> None:
    users = db.keyspace("users", engine=engine)
    users.update((b"%02d" % number, b"") for number in range(20))
    with db.batch() as batch:
        batch.insert(users, b"05x", b"")
        batch.remove_range(users, b"05", b"10")
        batch.insert(users, b"07", b"new")
        batch.remove_range(users, prefix=b"1")
    assert list(users) == [b"%02d" % number for number in range(5)] + [b"07"]
    with db.transaction() as tx:
        tx.remove_range(users, stop=b"07")
        assert tx.get(users, b"04") is None and tx.get(users, b"07") == b"new"
    assert list(users) == [b"07"]
    with db.batch() as batch:
        batch.remove_range(users)
    assert not users
