"""Measures how gets of several threads scale, for a free-threaded interpreter.

    python3.14t benches/threads.py [--pairs 1000000] [--threads 8] [--rounds 5] [--engine flex]

Reads all pairs of a keyspace in random order, first with one thread and then with several that share
the keys. Prints the medians of the ratios of all rounds. The times on the clock depend on the other
programs of the machine; `cost` is the processor time for each get. If the threads do not wait for
each other, the ratio on two cores that are free is twice the ratio of the costs.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time

import sheaf


def read(space: sheaf.Keyspace, keys: list[bytes], begin: threading.Event | None = None) -> None:
    if begin is not None:
        begin.wait()
    get = space.get
    for key in keys:
        get(key)


def timed(space: sheaf.Keyspace, shares: list[list[bytes]]) -> tuple[float, float]:
    """Return the seconds on the clock and on processors in which threads read one share each."""
    go = threading.Event()
    threads = [threading.Thread(target=read, args=(space, share, go)) for share in shares]
    for thread in threads:
        thread.start()
    begin, cpu = time.perf_counter(), time.process_time()
    go.set()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", default="flex")
    args = parser.parse_args()
    choice = random.Random(1)
    keys = [choice.randbytes(16) for _ in range(args.pairs)]
    path = tempfile.mkdtemp(prefix="sheaf-bench-")
    ratios, costs = [], []
    try:
        with sheaf.open(path) as db:
            space = db.keyspace("bench", engine=args.engine)
            space.update((key, bytes(100)) for key in keys)
            db.quiesce()
            choice.shuffle(keys)
            shares = [keys[part :: args.threads] for part in range(args.threads)]
            read(space, keys)  # fills the caches
            is_locked = getattr(sys, "_is_gil_enabled", lambda: True)()
            print(f"{sys.version.split()[0]}, GIL {'on' if is_locked else 'off'}, load {os.getloadavg()[0]:.0f}")
            for _ in range(args.rounds):
                one, several = timed(space, [keys]), timed(space, shares)
                ratios.append(one[0] / several[0])
                costs.append(one[1] / several[1])
                for count, (clock, cpu) in ((1, one), (args.threads, several)):
                    rate, cost = args.pairs / clock / 1000, cpu / args.pairs * 1e6
                    print(f"{count} threads {rate:5.0f} thousand/s  cost {cost:.2f} us")
    finally:
        shutil.rmtree(path)
    print(f"{statistics.median(ratios):.2f} times as fast, costs {statistics.median(costs):.2f}")


if __name__ == "__main__":
    main()
