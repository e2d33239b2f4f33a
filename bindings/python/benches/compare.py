"""Compares sheaf with plyvel and lmdb from PyPI, in one run and in turns.

    python benches/compare.py [--pairs 1000000] [--rounds 5] [--batch 1000] [--engine flex] [--only batch,get]

Prints the median of the rounds for each measure in thousand pairs a second, and the median of the
ratios of each round. The ratio of the CPU counts the time of all threads of the process on a
processor, so other programs disturb it less. All stores have the same pairs: keys of 16 bytes in
random order, values of 100 bytes. No store syncs within a measured call: plyvel and sheaf have
their default, lmdb `sync=False`.

`batch` fills batches pair by pair. `settled` adds the background work that follows: the flush of
sheaf, the compactions of LevelDB, and the sync of lmdb. `lists` writes lists of pairs with the fastest call of each
package: `insert_many`, `putmulti`, and for plyvel again a batch. It writes the same keys with other
values, so it is a load of updates.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import lmdb
import plyvel

import sheaf

MUSTS = {
    ("get", "plyvel"): 1.5,
    ("get", "lmdb"): 1.2,
    ("batch", "plyvel"): 3.0,
    ("lists", "plyvel"): 3.0,
    ("iterate", "plyvel"): 1.5,
}


class Sheaf:
    """A keyspace of one engine."""

    def __init__(self, path: str, engine: str) -> None:
        self.db = sheaf.open(path)
        self.space = self.db.keyspace("bench", engine=engine)

    def write(self, groups: list[list[tuple[bytes, bytes]]]) -> None:
        space = self.space
        for group in groups:
            with space.batch() as batch:
                for key, value in group:
                    batch[key] = value

    def write_lists(self, groups: list[list[tuple[bytes, bytes]]]) -> None:
        for group in groups:
            self.space.insert_many(group)

    def rest(self) -> None:
        self.db.quiesce()

    def get(self, keys: list[bytes]) -> None:
        get = self.space.get
        for key in keys:
            get(key)

    def iterate(self) -> int:
        count = 0
        for _key, _value in self.space.items():
            count += 1
        return count

    def close(self) -> None:
        self.db.close()


class Plyvel:
    """LevelDB with a cache that holds all pairs."""

    def __init__(self, path: str) -> None:
        self.db = plyvel.DB(path, create_if_missing=True, lru_cache_size=1 << 30, bloom_filter_bits=10)

    def write(self, groups: list[list[tuple[bytes, bytes]]]) -> None:
        for group in groups:
            with self.db.write_batch() as batch:
                for key, value in group:
                    batch.put(key, value)

    def write_lists(self, groups: list[list[tuple[bytes, bytes]]]) -> None:
        self.write(groups)

    def rest(self) -> None:
        self.db.compact_range()

    def get(self, keys: list[bytes]) -> None:
        get = self.db.get
        for key in keys:
            get(key)

    def iterate(self) -> int:
        count = 0
        for _key, _value in self.db.iterator():
            count += 1
        return count

    def close(self) -> None:
        self.db.close()


class Lmdb:
    """LMDB without syncs; one transaction for each batch and one for all reads."""

    def __init__(self, path: str) -> None:
        self.env = lmdb.open(path, map_size=8 << 30, sync=False, metasync=False)

    def write(self, groups: list[list[tuple[bytes, bytes]]]) -> None:
        for group in groups:
            with self.env.begin(write=True) as txn:
                for key, value in group:
                    txn.put(key, value)

    def write_lists(self, groups: list[list[tuple[bytes, bytes]]]) -> None:
        for group in groups:
            with self.env.begin(write=True) as txn:
                txn.cursor().putmulti(group)

    def rest(self) -> None:
        self.env.sync()

    def get(self, keys: list[bytes]) -> None:
        with self.env.begin() as txn:
            get = txn.get
            for key in keys:
                get(key)

    def iterate(self) -> int:
        count = 0
        with self.env.begin() as txn:
            for _key, _value in txn.cursor():
                count += 1
        return count

    def close(self) -> None:
        self.env.close()


MEASURES = ("batch", "get", "iterate", "lists")


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that a call takes, and those that all threads were on a processor."""
    begin, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - begin, time.process_time() - cpu


def run_round(makers: dict[str, Callable[[str], Any]], args: argparse.Namespace, seed: int) -> Any:
    """Measure every store once, each measure in turns."""
    choice = random.Random(seed)
    keys = [choice.randbytes(16) for _ in range(args.pairs)]
    value = choice.randbytes(100)
    pairs = [(key, value) for key in keys]
    groups = [pairs[at : at + args.batch] for at in range(0, len(pairs), args.batch)]
    updates = [[(key, value[::-1]) for key, value in group] for group in groups]
    wanted = list(keys)
    choice.shuffle(wanted)
    paths = {name: tempfile.mkdtemp(prefix="sheaf-bench-") for name in makers}
    stores = {name: make(paths[name]) for name, make in makers.items()}
    order = list(stores)
    results: dict[tuple[str, str], tuple[float, float]] = {}
    try:
        for measure in [name for name in MEASURES if name == "batch" or name in args.only]:
            choice.shuffle(order)
            for name in order:
                store = stores[name]
                call = {
                    "batch": lambda store=store: store.write(groups),
                    "get": lambda store=store: store.get(wanted),
                    "iterate": store.iterate,
                    "lists": lambda store=store: store.write_lists(updates),
                }[measure]
                if measure in ("get", "iterate"):
                    call()  # fills the caches
                results[measure, name] = timed(call)
                if measure == "batch":
                    rest = timed(store.rest)
                    results["settled", name] = (
                        results["batch", name][0] + rest[0],
                        results["batch", name][1] + rest[1],
                    )
    finally:
        for name, store in stores.items():
            store.close()
            shutil.rmtree(paths[name])
    return results


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--engine", default="flex")
    parser.add_argument("--only", default=",".join(MEASURES), help="measures; `batch` is always one")
    args = parser.parse_args()
    makers: dict[str, Callable[[str], Any]] = {
        "sheaf": lambda path: Sheaf(path, args.engine),
        "plyvel": Plyvel,
        "lmdb": Lmdb,
    }
    rounds = [run_round(makers, args, seed) for seed in range(args.rounds)]
    print(f"{args.pairs} pairs, batches of {args.batch}, engine {args.engine}, {args.rounds} rounds")
    for measure in ("get", "batch", "settled", "lists", "iterate"):
        for name in makers if (measure, "sheaf") in rounds[0] else ():
            rates = [args.pairs / found[measure, name][0] / 1000 for found in rounds]
            line = f"{measure:8} {name:7} {statistics.median(rates):8.0f} thousand/s"
            if name != "sheaf":
                elapsed, cpu = (
                    statistics.median(found[measure, name][kind] / found[measure, "sheaf"][kind] for found in rounds)
                    for kind in (0, 1)
                )
                must = MUSTS.get((measure, name))
                line += f"   sheaf is {elapsed:.2f} times as fast"
                line += f" (must {must})" if must else ""
                line += f", CPU {cpu:.2f}"
            print(line)


if __name__ == "__main__":
    main()
