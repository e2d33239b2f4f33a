"""``sheaf.aio``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import sheaf
import sheaf.aio


def test_calls_are_awaitable(path: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with await sheaf.aio.open(path, durability="sync") as db:
            users = await db.keyspace("users")
            await asyncio.gather(*(users.insert(b"%03d" % n, b"%d" % n) for n in range(200)))
            assert await users.get(b"007") == b"7" and await users.get(b"none") is None
            assert await users.get_many([b"001", b"x"]) == [b"1", None]
            assert await users.contains(b"001") and await users.count() == 200
            assert await users.insert_if_absent(b"001", b"x") == b"1"
            assert await users.compare_and_swap(b"001", b"1", b"one")
            await users.remove(b"000")
            await db.persist()
            assert (await db.backup(tmp_path / "backup")).seq == db.sync.seq
            assert (await db.verify()).findings == 0
            await users.remove_range(prefix=b"00")
            assert await users.count() == 190
            await users.clear()
            assert users.name == "users" and await db.drop_keyspace("users")
        with pytest.raises(sheaf.ClosedError):
            await users.get(b"007")

    asyncio.run(main())


def test_commits_and_iteration(path: Path) -> None:
    async def main() -> None:
        async with await sheaf.aio.open(path) as db:
            users = await db.keyspace("users")
            async with db.batch() as batch:
                for index in range(1000):
                    batch.insert(users, b"%04d" % index, b"x")
                assert len(batch) == 1000
            with pytest.raises(ZeroDivisionError):
                async with db.batch() as batch:
                    batch.remove(users, b"0001")
                    raise ZeroDivisionError
            keys = [key async for key in users.keys(prefix=b"09")]
            assert keys == [b"%04d" % index for index in range(900, 1000)]
            assert [value async for value in users.values(start=b"0998")] == [b"x", b"x"]
            async with await db.snapshot() as snapshot:
                batch = db.batch()
                batch.expect_value(users, b"0000", b"x")
                batch.remove(users, b"0000")
                ticket = await batch.submit()
                await ticket
                await ticket.durable()
                assert ticket.is_durable and ticket.seq == db.sync.seq > snapshot.seq
                old = [pair async for pair in snapshot["users"].items(reverse=True)]
                assert len(old) == 1000 and old[-1] == (b"0000", b"x")
            assert not await users.contains(b"0000")

    asyncio.run(main())


def test_a_waiting_call_does_not_block_the_loop(path: Path) -> None:
    async def main() -> None:
        with sheaf.open(path):
            opening = asyncio.ensure_future(sheaf.aio.open(path, wait=1))
            ticks = 0
            while not opening.done():
                await asyncio.sleep(0.01)
                ticks += 1
            assert ticks > 10
            with pytest.raises(sheaf.LockedError):
                await opening

    asyncio.run(main())
