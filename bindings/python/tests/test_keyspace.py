"""Keyspaces: the mapping protocol and the calls on keys."""

from __future__ import annotations

import array
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sheaf

if TYPE_CHECKING:
    from typing_extensions import Buffer


def fill(users: sheaf.Keyspace, count: int = 10) -> dict[bytes, bytes]:
    pairs = {b"%03d" % index: b"value %d" % index for index in range(count)}
    users.update(pairs)
    return pairs


def test_a_keyspace_is_a_mutable_mapping(users: sheaf.Keyspace) -> None:
    assert isinstance(users, MutableMapping)
    assert not users and len(users) == 0
    users[b"ada"] = b"lovelace"
    assert users and len(users) == 1
    assert users[b"ada"] == b"lovelace" and b"ada" in users and b"alan" not in users
    assert users.get(b"alan") is None and users.get(b"alan", 7) == 7
    with pytest.raises(KeyError) as raised:
        users[b"alan"]
    assert raised.value.args == (b"alan",)
    del users[b"ada"]
    with pytest.raises(KeyError):
        del users[b"ada"]
    assert users.setdefault(b"ada", b"1") == b"1" and users.setdefault(b"ada", b"2") == b"1"
    assert users.pop(b"ada") == b"1" and users.pop(b"ada", None) is None
    with pytest.raises(KeyError):
        users.pop(b"ada")
    pairs = fill(users)
    assert dict(users) == pairs and users.popitem() == (b"009", b"value 9")
    users.clear()
    with pytest.raises(KeyError):
        users.popitem()


def test_update_takes_mappings_and_pairs(users: sheaf.Keyspace) -> None:
    users.update({b"a": b"1"})
    users.update([(b"b", b"2"), (bytearray(b"c"), memoryview(b"3"))])
    assert dict(users) == {b"a": b"1", b"b": b"2", b"c": b"3"}
    users.update((b"%05d" % index, b"x" * 500) for index in range(3000))
    assert len(users) == 3003


def test_keys_and_values_come_from_any_buffer(users: sheaf.Keyspace) -> None:
    numbers = array.array("I", [1, 2, 3])
    for key in (b"k", bytearray(b"k"), memoryview(b"k"), memoryview(b"xkx")[1:2]):
        users.clear()
        users[key] = numbers
        assert users[b"k"] == numbers.tobytes()
        assert users[key] == numbers.tobytes()
    users[b""] = b""
    assert users[b""] == b"" and users[bytearray()] == b""


def test_views_have_ranges_and_both_directions(users: sheaf.Keyspace) -> None:
    pairs = fill(users, 30)
    keys = sorted(pairs)
    assert list(users.keys()) == keys and list(users) == keys
    assert list(users.values()) == [pairs[key] for key in keys]
    assert list(users.items()) == sorted(pairs.items())
    assert list(users.keys(start=b"005", stop=b"008")) == [b"005", b"006", b"007"]
    assert list(users.keys(prefix=b"02", reverse=True)) == [b"%03d" % n for n in range(29, 19, -1)]
    assert list(users.keys(prefix=b"01", start=b"013", stop=b"016")) == [b"013", b"014", b"015"]
    assert list(users.keys(prefix=b"01", start=b"0", stop=b"9")) == keys[10:20]
    assert list(users.keys(prefix=b"9")) == [] and list(users.keys(start=b"9", stop=b"0")) == []
    assert list(reversed(users)) == keys[::-1] == list(reversed(users.keys()))
    assert list(reversed(users.items(stop=b"002"))) == [(b"001", b"value 1"), (b"000", b"value 0")]
    assert len(users.keys(prefix=b"02")) == 10 and len(users.items()) == 30
    assert b"021" in users.keys(prefix=b"02") and b"011" not in users.keys(prefix=b"02")
    assert (b"021", b"value 21") in users.items() and (b"021", b"other") not in users.items()
    assert b"value 3" in users.values() and b"none" not in users.values()
    assert users.keys() & {b"001", b"zzz"} == {b"001"}
    users[b"\xff\xff"] = b"last"
    assert list(users.keys(prefix=b"\xff")) == [b"\xff\xff"]


def test_a_long_scan_reads_every_pair_once(users: sheaf.Keyspace) -> None:
    pairs = {b"%06d" % index: b"v" * (index % 700) for index in range(5000)}
    users.update(pairs)
    assert list(users.items()) == list(pairs.items())
    assert list(users.items(reverse=True)) == list(pairs.items())[::-1]


def test_an_iterator_shows_the_state_at_its_creation(users: sheaf.Keyspace) -> None:
    fill(users, 1000)
    keys = iter(users.keys())
    assert next(keys) == b"000"
    users.clear()
    users[b"new"] = b""
    assert sum(1 for _ in keys) == 999


def test_view_is_read_only_and_keeps_the_value(db: sheaf.Database, users: sheaf.Keyspace) -> None:
    for value in (b"", b"short", b"x" * 1000):
        users[b"k"] = value
        view = users.view(b"k")
        assert view is not None and view.readonly and view.tobytes() == value
        with pytest.raises(TypeError):
            view[0:1] = b"y"
        del users[b"k"]
        assert bytes(view) == value
    assert users.view(b"missing") is None
    users[b"k"] = b"value"
    view = users.view(b"k")
    db.close()
    assert view is not None and view.tobytes() == b"value"


def test_get_many_keeps_the_order(users: sheaf.Keyspace) -> None:
    pairs = fill(users, 500)
    wanted: list[Buffer] = [b"499", b"nope", b"000", bytearray(b"007"), b"007"]
    assert users.get_many(wanted) == [pairs.get(bytes(memoryview(key))) for key in wanted]
    assert users.get_many(iter(pairs)) == list(pairs.values()) and users.get_many([]) == []


def test_conditional_calls(users: sheaf.Keyspace) -> None:
    assert users.insert_if_absent(b"k", b"1") is None
    assert users.insert_if_absent(b"k", b"2") == b"1"
    assert not users.compare_and_swap(b"k", b"2", b"3") and users.compare_and_swap(b"k", b"1", b"3")
    assert users.compare_and_swap(b"n", None, b"1") and not users.compare_and_swap(b"n", None, b"2")
    assert users.compare_and_swap(b"n", b"1", None) and b"n" not in users
    assert users.modify(b"k", lambda old: (old or b"") + b"!") == b"3!"
    assert users.modify(b"k", lambda old: None) is None and b"k" not in users
    with pytest.raises(ZeroDivisionError):
        users.modify(b"k", lambda old: b"%d" % (1 // 0))
    fill(users, 3)
    assert users.first() == (b"000", b"value 0") and users.last() == (b"002", b"value 2")
    assert users.pop_first() == (b"000", b"value 0") and users.pop_last() == (b"002", b"value 2")
    assert users.size_of(b"001") == 7 and users.size_of(b"nope") is None
    assert users.get_range(b"001", 2, 5) == b"lue" and users.get_range(b"001", 5) == b" 1"
    assert users.get_range(b"001", 5, 2) == b"" and users.get_range(b"nope") is None


def test_blind_and_durable_writes(users: sheaf.Keyspace) -> None:
    users.remove(b"missing")
    users.insert(b"a", b"1", durability="sync")
    users.insert(b"b", b"2", "buffer")
    users.try_insert(b"c", b"3")
    users.try_remove(b"c")
    users.remove(b"b", durability="sync")
    assert dict(users) == {b"a": b"1"}
    assert users.insert_many([(b"d", b"4"), (b"e", b"5")], durability="sync") == 2
    with pytest.raises(ValueError, match="durability"):
        users.insert(b"a", b"1", durability="later")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tuple"):
        users.insert_many([b"no pair"])  # type: ignore[list-item]


def test_insert_many_is_one_commit(users: sheaf.Keyspace) -> None:
    def pairs() -> Iterator[tuple[bytes, bytes]]:
        yield b"a", b"1"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        users.insert_many(pairs())
    assert not users


def test_remove_range(users: sheaf.Keyspace) -> None:
    pairs = fill(users, 3000)
    users.remove_range(prefix=b"00")
    users.remove_range(start=b"100", stop=b"200")
    left = [key for key in pairs if not key.startswith(b"00") and not b"100" <= key < b"200"]
    assert list(users) == sorted(left)
    users.remove_range()
    assert len(users) == 0


def test_estimates_of_ranges(users: sheaf.Keyspace, db: sheaf.Database) -> None:
    fill(users, 100)
    assert users.estimate_range(b"010", b"030").pairs == 20
    assert users.estimate_range(prefix=b"09").pairs == 10
    assert users.estimate_range(prefix=b"09", stop=b"095").pairs == 5
    tens = users.estimate_range(start=b"090")
    assert tens.pairs == 10 and 10 * 11 <= tens.bytes < 10 * 100
    users.update((b"%05d" % index, bytes(100)) for index in range(20_000))
    estimate = users.estimate_range(b"05000", b"15000")
    assert 7_500 < estimate.pairs < 12_500 and estimate.bytes > 7_500 * 105
    unordered = db.keyspace("unordered", engine="flat")
    unordered[b"a"] = b"1"
    assert unordered.estimate_range().pairs == 1
    with pytest.raises(sheaf.UnsupportedError):
        unordered.estimate_range(prefix=b"a")


@pytest.mark.parametrize("engine", ["flex", "flat", "cedrus"])
def test_merges(db: sheaf.Database, engine: str) -> None:
    log = db.keyspace("log", engine=engine, merge="append")
    assert log.options["merge"] == "append"
    log.merge(b"k", b"a")
    log.merge(b"k", bytearray(b"b"), durability="sync")
    with db.batch() as batch:
        batch.merge(log, b"k", b"c")
        batch.insert(log, b"l", b"1")
        batch.merge(log, b"l", b"2")
    with db.transaction() as tx:
        tx.merge(log, b"k", b"d")
        assert tx.get(log, b"k") == b"abcd"
    assert dict(log) == {b"k": b"abcd", b"l": b"12"}
    with pytest.raises(sheaf.ConflictError), db.transaction() as tx:
        tx.merge(log, b"k", b"x")
        log.merge(b"k", b"e")
    options: dict[str, Any] = dict(log.options)
    assert db.keyspace("log", **options)[b"k"] == b"abcde"

    counters = db.keyspace("counters", engine=engine, merge="add")
    with pytest.raises(sheaf.InvalidArgumentError, match="add"):
        counters.merge(b"n", b"3")
    for number in [5, -2]:
        counters.merge(b"n", number.to_bytes(8, "little", signed=True))
    assert counters[b"n"] == (3).to_bytes(8, "little")
    db.convert("counters", "kreon", merge="max")
    counters.merge(b"n", b"\xff")
    assert (counters[b"n"], counters.options["merge"]) == (b"\xff", "max")
    plain = db.keyspace("plain", engine=engine)
    with pytest.raises(sheaf.InvalidArgumentError, match="no merge operator"):
        plain.merge(b"k", b"v")
    with pytest.raises(sheaf.InvalidArgumentError, match="no operator"):
        db.keyspace("unknown", merge="none")


def test_engines_and_options(db: sheaf.Database) -> None:
    assert db["users"].engine == "flex" and db["users"].is_ordered
    assert set(sheaf.engines()) == {"flat", "flat-ordered", "flex", "cedrus", "kreon", "delsm"}
    for engine in sheaf.engines():
        space = db.keyspace(engine, engine=engine)
        space[b"k"] = b"v"
        assert space[b"k"] == b"v" and dict(space) == {b"k": b"v"} and space.engine == engine
    names = [option.name for option in sheaf.engine_options("cedrus")]
    assert "branching" in names
    wide = db.keyspace("wide", engine="cedrus", branching=64)
    assert wide.options["branching"] == 64 and not wide.is_ordered
    with pytest.raises(sheaf.UnsupportedError) as unsupported:
        wide.keys(start=b"a").__iter__()
    assert unsupported.value.engine == "cedrus" and "range" in unsupported.value.feature
    with pytest.raises(sheaf.EngineMismatchError) as mismatch:
        db.keyspace("users", engine="flat")
    assert (mismatch.value.found, mismatch.value.requested) == ("flex", "flat")
    with pytest.raises(sheaf.InvalidArgumentError):
        db.keyspace("more", engine="cedrus", branching=3)
    with pytest.raises(sheaf.InvalidArgumentError):
        db.keyspace("more", engine="btree")


def test_keyspaces_of_a_database(db: sheaf.Database) -> None:
    db["a"][b"k"] = b"1"
    db["b"][b"k"] = b"2"
    assert sorted(db) == ["a", "b"] and len(db) == 2 and "a" in db and "c" not in db
    assert db["a"] is db["a"]
    dropped = db["a"]
    del db["a"]
    with pytest.raises(KeyError):
        del db["a"]
    with pytest.raises(sheaf.KeyspaceNotFoundError) as missing:
        dropped[b"k"]
    assert missing.value.name == "a" and isinstance(missing.value, LookupError)
    assert not db["a"]
    with pytest.raises(sheaf.KeyspaceNotFoundError):
        db.keyspace("c", create=False)


def test_a_renamed_keyspace_keeps_its_pairs_and_handles(db: sheaf.Database, path: Path) -> None:
    users, posts = db["users"], db["posts"]
    users[b"ada"] = b"1"
    posts[b"p"] = b"2"
    before = db.snapshot()
    users.rename("members")
    assert users.name == "members" and users[b"ada"] == b"1" and sorted(db) == ["members", "posts"]
    assert dict(before["users"]) == {b"ada": b"1"} and "members" not in before
    before.close()
    assert dict(db["members"]) == {b"ada": b"1"}
    assert not db["users"], "the old name is that of a new keyspace"
    del db["users"]
    # Two keyspaces exchange their names: `db[name]` must not return the earlier one.
    db.rename_keyspace("members", "free")
    db.rename_keyspace("posts", "members")
    db.rename_keyspace("free", "posts")
    assert dict(db["members"]) == {b"p": b"2"} and dict(db["posts"]) == {b"ada": b"1"}
    with pytest.raises(sheaf.KeyspaceExistsError) as taken:
        users.rename("members")
    assert taken.value.name == "members"
    with pytest.raises(sheaf.KeyspaceNotFoundError):
        db.rename_keyspace("none", "more")
    with pytest.raises(sheaf.InvalidArgumentError):
        users.rename("")
    db.close()
    with sheaf.open(path) as reopened:
        assert dict(reopened["posts"]) == {b"ada": b"1"}


def test_views_and_keyspaces_have_a_repr(users: sheaf.Keyspace, db: sheaf.Database) -> None:
    assert "users" in repr(users) and "flex" in repr(users) and db.path in repr(db)
