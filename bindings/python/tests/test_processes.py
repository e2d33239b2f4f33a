"""Threads, forks, processes, signals, and use after the end of the database."""

from __future__ import annotations

import copy
import mmap
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sheaf


def run_child(call: Callable[[], None]) -> int:
    """Run ``call`` in a forked child, and return its exit code: 0 if it raised nothing."""
    child = os.fork()
    if child == 0:
        try:
            call()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def every_use(db: sheaf.Database) -> list[Callable[[], Any]]:
    """Return calls of every object of a database, which must all raise ``ClosedError`` later."""
    users = db["users"]
    users.update({b"a": b"1", b"b": b"2"})
    snapshot, batch = db.snapshot(), users.batch()
    old, pairs, old_pairs = snapshot["users"], iter(users.items()), None
    old_pairs = iter(old.items())
    reader, writer = users.raw_reader(b"a"), users.writer(b"c")
    assert reader is not None
    return [
        lambda: users[b"a"],
        lambda: users.get(b"a"),
        lambda: users.view(b"a"),
        lambda: users.get_many([b"a"]),
        lambda: users.insert(b"a", b"1"),
        lambda: users.remove(b"a"),
        lambda: users.pop(b"a"),
        lambda: users.insert_many([(b"a", b"1")]),
        lambda: users.compare_and_swap(b"a", None, b"1"),
        lambda: users.modify(b"a", lambda old: old),
        lambda: users.remove_range(),
        lambda: users.clear(),
        lambda: users.size_of(b"a"),
        lambda: users.first(),
        lambda: users.stats(),
        lambda: list(users.items()),
        lambda: len(users),
        lambda: bool(users),
        lambda: b"a" in users,
        lambda: next(pairs),
        lambda: next(old_pairs),
        lambda: batch.insert(users, b"a", b"1"),
        lambda: batch.commit(),
        lambda: old[b"a"],
        lambda: len(old),
        lambda: snapshot["users"],
        lambda: snapshot.keyspaces(),
        lambda: reader.read_range(0, 1),
        lambda: writer.write(b"x"),
        lambda: db["users"],
        lambda: db["new"],
        lambda: db.snapshot(),
        lambda: db.stats(),
        lambda: db.verify(),
        lambda: db.sync(),
        lambda: db.quiesce(),
        lambda: db.seq,
        lambda: db.keyspaces(),
        lambda: db.drop_keyspace("users"),
        lambda: db.backup("/nowhere"),
        lambda: db.convert("users", "flat"),
        lambda: db.batch().commit(),
    ]


def assert_closed(uses: list[Callable[[], Any]], is_forked: bool) -> None:
    for number, use in enumerate(uses):
        try:
            use()
        except sheaf.ClosedError as error:
            assert error.is_forked == is_forked, (number, error)
            assert ("forked" in str(error)) == is_forked
        else:
            raise AssertionError(f"use {number} raised nothing")


def test_use_after_close_is_refused(path: Path) -> None:
    db = sheaf.open(path)
    uses = every_use(db)
    db.close()
    assert_closed(uses, is_forked=False)
    assert db.closed and "closed" in repr(db)
    with sheaf.open(path) as again:
        assert dict(again["users"]) == {b"a": b"1", b"b": b"2"}
        assert_closed(uses, is_forked=False)


def test_use_in_a_forked_child_is_refused(db: sheaf.Database) -> None:
    uses = every_use(db)

    def child() -> None:
        assert db.closed
        assert_closed(uses, is_forked=True)
        db.close()

    assert run_child(child) == 0
    assert db["users"][b"a"] == b"1" and not db.closed
    db["users"][b"c"] = b"3"


def test_a_child_that_frees_objects_does_not_change_the_parent(db: sheaf.Database) -> None:
    users = db["users"]
    users.update((b"%04d" % index, b"x" * 100) for index in range(1000))
    objects: list[Any] = [db.snapshot(), iter(users.items()), users.batch(), users.writer(b"big")]
    snapshot, pairs, batch, writer = objects
    value = os.urandom(3 << 20)
    writer.write(value)
    batch[b"later"] = b"1"
    next(pairs)
    users.clear()

    def child() -> None:
        nonlocal snapshot, pairs, batch, writer
        snapshot.close()
        pairs.close()
        batch.clear()
        writer.discard()
        objects.clear()
        del snapshot, pairs, batch, writer

    assert run_child(child) == 0
    assert sum(1 for _ in pairs) == 999 and len(snapshot["users"]) == 1000
    writer.commit()
    batch.commit()
    assert dict(users) == {b"big": value, b"later": b"1"}
    assert db.verify().findings == 0


def test_a_child_opens_the_database_after_the_parent_closed_it(path: Path) -> None:
    db = sheaf.open(path)
    db["users"][b"a"] = b"1"
    db.close()

    def child() -> None:
        with sheaf.open(path) as own:
            own["users"][b"b"] = b"2"

    assert run_child(child) == 0
    with sheaf.open(path) as again:
        assert dict(again["users"]) == {b"a": b"1", b"b": b"2"}


def read_attached(path: str) -> bytes | None:
    with sheaf.open(path, read_only=True) as reader:
        return reader["users"].get(b"a")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing_attach_as_readers(
    db: sheaf.Database, path: Path, method: str
) -> None:
    db["users"][b"a"] = b"1"
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(read_attached, [str(path)] * 4) == [b"1"] * 4


def test_pickles_and_copies_are_refused_with_a_reason(db: sheaf.Database) -> None:
    users = db["users"]
    users[b"a"] = b"1"
    objects: list[Any] = [
        db,
        users,
        db.batch(),
        db.snapshot(),
        db.snapshot()["users"],
        iter(users.items()),
        users.raw_reader(b"a"),
        users.reader(b"a"),
        users.writer(b"a"),
        db.batch().submit(),
    ]
    for each in objects:
        for call in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError):
                call(each)
    with pytest.raises(TypeError, match="belongs to one process"):
        pickle.dumps(users)
    error = pickle.loads(pickle.dumps(sheaf.TooLargeError("text", object="key", got=2, max=1)))
    assert (error.object, error.got, str(error)) == ("key", 2, "text")


def run_threads(calls: list[Callable[[], None]]) -> None:
    failures: list[BaseException] = []

    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread is stuck"
    assert not failures, failures


def test_threads_share_a_keyspace(db: sheaf.Database) -> None:
    users, count = db["users"], 300

    def work(name: int) -> None:
        for index in range(count):
            key = b"%d-%04d" % (name, index)
            users[key] = key
            assert users[key] == key
            users.modify(b"counter", lambda old: b"%d" % (int(old or b"0") + 1))
            if index % 50 == 0:
                assert sum(1 for _ in users.keys(prefix=b"%d-" % name)) == index + 1
                with db.batch() as batch:
                    batch.insert(users, b"batch", key)

    run_threads([lambda name=name: work(name) for name in range(8)])  # type: ignore[misc]
    assert users[b"counter"] == b"%d" % (8 * count) and len(users) == 8 * count + 2


def test_threads_share_an_iterator_and_a_batch(users: sheaf.Keyspace) -> None:
    users.update((b"%05d" % index, b"x" * 50) for index in range(20_000))
    seen: list[bytes] = []
    pairs = iter(users.keys())
    run_threads([lambda: seen.extend(pairs) for _ in range(4)])
    assert sorted(seen) == [b"%05d" % index for index in range(20_000)]
    batch = users.batch()

    def fill(name: int) -> None:
        for index in range(500):
            batch[b"batch %d %d" % (name, index)] = b""
            if index % 100 == 99:
                batch.commit()

    run_threads([lambda name=name: fill(name) for name in range(4)])  # type: ignore[misc]
    batch.commit()
    assert len(users.keys(prefix=b"batch")) == 2000


def test_a_close_while_threads_work_is_safe(tmp_path: Path) -> None:
    for turn in range(5):
        db = sheaf.open(tmp_path / str(turn))
        users = db["users"]
        users.update((b"%05d" % index, b"x" * 200) for index in range(5000))
        begun = threading.Barrier(7)

        def until_closed(call: Callable[[], object]) -> None:
            begun.wait()
            with pytest.raises(sheaf.ClosedError):
                while True:
                    call()

        def close() -> None:
            begun.wait()
            time.sleep(0.02 * turn)
            db.close()

        snapshot = db.snapshot()
        old = snapshot["users"]
        run_threads(
            [
                lambda: until_closed(lambda: list(users.items())),
                lambda: until_closed(lambda: list(old.items(reverse=True))),
                lambda: until_closed(lambda: users.get(b"00100")),
                lambda: until_closed(lambda: users.insert(b"k", b"v")),
                lambda: until_closed(lambda: users.get_many([b"00100", b"k"])),
                lambda: until_closed(lambda: db.snapshot().close()),
                close,
            ]
        )


def test_objects_outlive_their_database(path: Path) -> None:
    users = sheaf.open(path)["users"]
    users[b"a"] = b"1"
    pairs = iter(users.items())
    del users
    assert next(pairs) == (b"a", b"1")
    del pairs
    with sheaf.open(path) as again:
        assert again["users"][b"a"] == b"1"


def interrupt(program: str, tmp_path: Path, delay: float = 0.5) -> tuple[str, float]:
    """Interrupt a program after it printed "ready". Return its output, and the time it took."""
    # A job in the background of a shell inherits an ignored SIGINT.
    handler = "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    source = "import sheaf, signal, sys\n" + handler + textwrap.dedent(program)
    child = subprocess.Popen(
        [sys.executable, "-u", "-c", source, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    time.sleep(delay)
    begin = time.monotonic()
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(timeout=60)
    return output, time.monotonic() - begin


def test_an_interrupt_ends_a_waiting_opening(db: sheaf.Database, tmp_path: Path) -> None:
    program = """
        print("ready")
        try:
            sheaf.open(sys.argv[1] + "/db", wait=60)
        except KeyboardInterrupt:
            print("interrupted")
    """
    output, seconds = interrupt(program, tmp_path)
    assert output == "interrupted\n" and seconds < 20


def test_an_interrupt_cancels_a_backup(tmp_path: Path) -> None:
    program = """
        db = sheaf.open(sys.argv[1] + "/own")
        db["users"].update((b"%06d" % index, b"x" * 1000) for index in range(20000))
        print("ready")
        try:
            db.backup(sys.argv[1] + "/backup", rate=100000)
        except KeyboardInterrupt:
            print("interrupted")
        print(len(db["users"]))
        db.close()
    """
    output, seconds = interrupt(program, tmp_path)
    assert output == "interrupted\n20000\n" and seconds < 40
    assert not (tmp_path / "backup" / "BACKUP").exists()


def test_an_interrupt_ends_a_removal_between_commits(tmp_path: Path) -> None:
    program = """
        db = sheaf.open(sys.argv[1] + "/own")
        users = db["users"]
        users.update((b"%06d" % index, b"") for index in range(200000))
        print("ready")
        try:
            while True:
                users.remove_range(start=b"9")
                users.remove_range(start=b"1")
                users.update((b"%06d" % index, b"") for index in range(100000, 200000))
        except KeyboardInterrupt:
            print("interrupted")
        assert users[b"000007"] == b""
        db.close()
    """
    output, _ = interrupt(program, tmp_path, 0.3)
    assert output == "interrupted\n"


def test_an_exception_of_a_stall_callback_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)

    def fail(kind: str, keyspace: str | None, seconds: float) -> None:
        raise ZeroDivisionError(kind)

    with sheaf.open(tmp_path / "db", on_stall=fail, stall_threshold=0.0, durability="sync") as db:
        for index in range(20):
            db["users"][b"%d" % index] = b"x"
        assert len(db["users"]) == 20
    assert raised and isinstance(raised[0].exc_value, ZeroDivisionError)


def test_the_interpreter_ends_with_an_open_database(tmp_path: Path) -> None:
    program = """
        import threading
        db = sheaf.open(sys.argv[1] + "/own")
        users = db["users"]
        users[b"a"] = b"1"
        pairs = iter(users.items())
        def write():
            index = 0
            while True:
                users[b"%d" % index] = b"x"
                index += 1
        threading.Thread(target=write, daemon=True).start()
    """
    source = "import sheaf, sys\n" + textwrap.dedent(program)
    for _ in range(3):
        subprocess.run([sys.executable, "-c", source, str(tmp_path)], check=True, timeout=60)
    with sheaf.open(tmp_path / "own") as db:
        assert db["users"][b"a"] == b"1"


def test_wrong_types_and_sizes_are_refused(users: sheaf.Keyspace) -> None:
    bad: list[Any] = ["text", 7, None, [b"k"], object()]
    for key in bad:
        for use in (
            lambda key: users[key],
            lambda key: users.get(key),
            lambda key: users.insert(key, b"v"),
            lambda key: users.insert(b"k", key),
            lambda key: users.view(key),
            lambda key: key in users,
            lambda key: users.get_many([key]),
            lambda key: users.batch().__setitem__(b"k", key),
            lambda key: users.writer(key),
        ):
            with pytest.raises(TypeError):
                use(key)
    with pytest.raises(TypeError):
        users.keys(start="a")  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        users[memoryview(b"abcd")[::2]] = b""
    with pytest.raises(sheaf.TooLargeError) as long_key:
        users[b"k" * 65_536] = b""
    assert (long_key.value.got, long_key.value.max) == (65_536, sheaf.MAX_KEY)
    assert isinstance(long_key.value, ValueError)
    users[b"k" * 65_535] = b"longest"
    assert users[b"k" * 65_535] == b"longest" and not users.get(b"k" * 70_000)
    with pytest.raises(sheaf.TooLargeError), users.batch() as batch:
        for index in range(70_000):
            batch[b"%d" % index] = b"x" * 1024
    assert len(users) == 1
    with mmap.mmap(-1, 1 << 32) as longest, pytest.raises(sheaf.TooLargeError) as long_value:
        users[b"k"] = longest  # refused before it is copied
    assert (long_value.value.got, long_value.value.max) == (1 << 32, sheaf.MAX_VALUE)
    huge = os.urandom(100 << 20)
    users[b"huge"] = huge
    assert users[b"huge"] == huge and bytes(users.view(b"huge") or b"") == huge and len(dict(users)) == 2
