"""``sheaf.aio``."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
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
            assert (await users.estimate_range(prefix=b"00")).pairs == 9
            await users.remove_range(prefix=b"00")
            assert await users.count() == 190
            await users.clear()
            await users.rename("members")
            assert users.name == "members"
            await db.rename_keyspace("members", "users")
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


def test_many_tickets_wait_without_threads(path: Path) -> None:
    async def main() -> None:
        # With one thread, 200 waits that block a thread each would take 200 syncs, one by one.
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(max_workers=1))
        async with await sheaf.aio.open(path, sync_interval=60.0) as db:
            users = await db.keyspace("users")
            tickets = []
            for index in range(200):
                batch = db.batch(durability="sync")
                batch.insert(users, b"%03d" % index, b"x")
                tickets.append(await batch.submit())
            blocked = threading.Event()
            held = loop.run_in_executor(None, blocked.wait)
            await asyncio.gather(*(ticket.durable() for ticket in tickets))
            await tickets[0]
            assert all(ticket.is_durable for ticket in tickets) and not held.done()
            blocked.set()
            await held

    asyncio.run(main())


def test_a_cancelled_wait_leaves_the_ticket_usable(path: Path) -> None:
    async def main() -> None:
        async with await sheaf.aio.open(path) as db:
            users = await db.keyspace("users")
            batch = db.batch()
            batch.insert(users, b"a", b"1")
            ticket = await batch.submit()
            wait = asyncio.ensure_future(ticket.durable())
            await asyncio.sleep(0)
            wait.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wait
            await ticket.durable()
            assert ticket.is_durable

    asyncio.run(main())
    asyncio.run(main())  # each event loop has its own waits


def test_a_feed_of_changes_is_awaited(path: Path) -> None:
    async def main() -> None:
        retention = sheaf.ChangeRetention(1 << 30, seconds=3600)
        async with await sheaf.aio.open(path, retain_changes=retention) as db:
            users = await db.keyspace("users")
            begin = await db.newest_change()
            changes = await db.changes(begin, keyspaces=["users"])
            seen: list[bytes | None] = []

            async def read() -> None:
                async for commit in changes:
                    seen.extend(change.key for change in commit.changes)

            reader = asyncio.ensure_future(read())
            await asyncio.sleep(0)
            for index in range(20):
                await users.insert(b"%02d" % index, b"x", "sync")
            again = await db.changes(begin, include_unsynced=True)
            first = await again.next()
            assert [change.key for change in first.changes] == [b"00"] and again.position == first.position
            cursor = await db.change_cursor("reader")
            await cursor.commit(first.position)
            assert cursor.name == "reader" and await cursor.position() == first.position
            async with await cursor.changes() as rest:
                assert [change.key for change in (await rest.next()).changes] == [b"01"]
            while len(seen) < 20:
                await asyncio.sleep(0)
        await reader
        assert seen == [b"%02d" % index for index in range(20)]
        with pytest.raises(sheaf.ClosedError):
            await again.next()

    asyncio.run(main())


def test_a_feed_continues_after_a_cancelled_wait(path: Path) -> None:
    async def main() -> None:
        retention = sheaf.ChangeRetention(1 << 30, seconds=3600)
        async with await sheaf.aio.open(path, retain_changes=retention) as db:
            users = await db.keyspace("users")
            changes = await db.changes(await db.newest_change())
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(changes.next(), 0.05)
            position = changes.position
            await users.insert(b"a", b"1", "sync")
            commit = await changes.next()
            assert commit.changes[0].key == b"a" and changes.position != position
            waiting = asyncio.ensure_future(changes.next())
            await asyncio.sleep(0.05)
            await db.close()
            with pytest.raises(sheaf.ClosedError):
                await waiting
            await changes.close()

    asyncio.run(main())
