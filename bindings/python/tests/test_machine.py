"""State machine: a keyspace against a dict, with reopening, killed processes and snapshots.

``SHEAF_STEPS`` is the number of steps of each of the runs of hypothesis; default: 40 in 15 runs.
A campaign of 100,000 steps is ``SHEAF_STEPS=1000 SHEAF_RUNS=100``.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import sheaf

STEPS = int(os.environ.get("SHEAF_STEPS", "40"))
RUNS = int(os.environ.get("SHEAF_RUNS", "15"))

KEYS = st.one_of(
    st.binary(max_size=3),
    st.sampled_from([b"", b"a", b"ab", b"b", b"\xff", b"\xff\xff", b"long" * 100]),
)
VALUES = st.one_of(st.binary(max_size=40), st.sampled_from([b"x" * 5000, b"y" * 200_000]))
CHANGES = st.lists(st.tuples(KEYS, st.none() | VALUES), max_size=8)
ORDERED = ("flex", "flat-ordered", "kreon", "delsm")


class KeyspaceMachine(RuleBasedStateMachine):
    """Makes the same calls to a keyspace and to a dict."""

    checks = 0

    @initialize(engine=st.sampled_from(["flex", "flex", "flat", "flat-ordered", "cedrus", "kreon", "delsm"]))
    def open(self, engine: str) -> None:
        self.engine, self.directory = engine, tempfile.mkdtemp(prefix="sheaf-machine-")
        self.path = Path(self.directory) / "db"
        self.pairs: dict[bytes, bytes] = {}
        self.old: tuple[sheaf.Snapshot, dict[bytes, bytes]] | None = None
        self.reopen()

    def reopen(self) -> None:
        self.db = sheaf.open(self.path, memory=32 << 20)
        self.space = self.db.keyspace("machine", engine=self.engine)

    @rule(key=KEYS, value=VALUES)
    def insert(self, key: bytes, value: bytes) -> None:
        self.space[key] = value
        self.pairs[key] = value

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        try:
            del self.space[key]
        except KeyError:
            assert key not in self.pairs
        else:
            del self.pairs[key]

    @rule(key=KEYS, value=VALUES)
    def conditional(self, key: bytes, value: bytes) -> None:
        old = self.pairs.get(key)
        assert self.space.insert_if_absent(key, value) == old
        self.pairs.setdefault(key, value)
        assert self.space.compare_and_swap(key, b"never", b"x") is (self.pairs[key] == b"never")
        assert self.space.compare_and_swap(key, self.pairs[key], value + b"!")
        self.pairs[key] = value + b"!"

    @rule(key=KEYS)
    def pop(self, key: bytes) -> None:
        assert self.space.pop(key, None) == self.pairs.pop(key, None)

    @rule(changes=CHANGES, is_committed=st.booleans())
    def batch(self, changes: list[tuple[bytes, bytes | None]], is_committed: bool) -> None:
        batch = self.space.batch()
        for key, value in changes:
            if value is None:
                del batch[key]
            else:
                batch[key] = value
        if is_committed:
            batch.commit()
            for key, value in changes:
                if value is None:
                    self.pairs.pop(key, None)
                else:
                    self.pairs[key] = value

    @rule(changes=CHANGES)
    def update(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        pairs = {key: value for key, value in changes if value is not None}
        self.space.update(pairs)
        self.pairs.update(pairs)

    @rule(keys=st.lists(KEYS, max_size=6))
    def read(self, keys: list[bytes]) -> None:
        assert self.space.get_many(keys) == [self.pairs.get(key) for key in keys]
        for key in keys:
            value = self.pairs.get(key)
            assert self.space.get(key) == value and (key in self.space) == (value is not None)
            assert self.space.size_of(key) == (None if value is None else len(value))
            view = self.space.view(key)
            assert (None if view is None else view.tobytes()) == value

    @precondition(lambda self: self.engine in ORDERED)
    @rule(start=st.none() | KEYS, stop=st.none() | KEYS, prefix=st.none() | KEYS, reverse=st.booleans())
    def scan(
        self, start: bytes | None, stop: bytes | None, prefix: bytes | None, reverse: bool
    ) -> None:
        expected = [
            (key, value)
            for key, value in sorted(self.pairs.items(), reverse=reverse)
            if (start is None or key >= start)
            and (stop is None or key < stop)
            and key.startswith(prefix or b"")
        ]
        found = self.space.items(start=start, stop=stop, prefix=prefix, reverse=reverse)
        assert list(found) == expected
        keys = self.space.keys(start=start, stop=stop, prefix=prefix, reverse=reverse)
        assert list(keys) == [key for key, _ in expected]

    @precondition(lambda self: self.engine in ORDERED)
    @rule(start=KEYS, stop=KEYS)
    def remove_range(self, start: bytes, stop: bytes) -> None:
        gone = [key for key in self.pairs if start <= key < stop]
        self.space.remove_range(start, stop)
        for key in gone:
            del self.pairs[key]

    @rule()
    def clear(self) -> None:
        self.space.clear()
        self.pairs.clear()

    @rule()
    def take_snapshot(self) -> None:
        if self.old is not None:
            self.old[0].close()
        self.old = (self.db.snapshot(), dict(self.pairs))

    @rule()
    def read_snapshot(self) -> None:
        if self.old is not None:
            assert dict(self.old[0]["machine"]) == self.old[1]

    @rule()
    def rest(self) -> None:
        self.db.quiesce()

    @rule()
    def close_and_open(self) -> None:
        self.old = None
        self.db.close()
        self.reopen()

    @rule(changes=CHANGES)
    def kill(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        """Let a child make changes one by one and kill itself, without closing the database."""
        self.old = None
        self.db.close()
        child = os.fork()
        if child == 0:
            try:
                self.reopen()
                for key, value in changes:
                    if value is None:
                        self.space.remove(key)
                    else:
                        self.space[key] = value
                os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        for key, value in changes:
            if value is None:
                self.pairs.pop(key, None)
            else:
                self.pairs[key] = value
        self.reopen()

    @invariant()
    def has_the_same_pairs(self) -> None:
        if hasattr(self, "space"):
            KeyspaceMachine.checks += 1
            assert dict(self.space) == self.pairs and bool(self.space) == bool(self.pairs)

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.old = None
            self.db.close()
            shutil.rmtree(self.directory)


TestKeyspaceMachine = KeyspaceMachine.TestCase
TestKeyspaceMachine.settings = settings(
    max_examples=RUNS,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


def test_the_machine_made_steps() -> None:
    """Print the number of steps, each of which was followed by a comparison of all pairs."""
    print(f"{KeyspaceMachine.checks} steps")
    assert KeyspaceMachine.checks >= RUNS
