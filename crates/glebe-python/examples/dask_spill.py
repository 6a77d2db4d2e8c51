"""Runs Dask workers that spill to files, and keep spilled values in idle memory as well.

    dask_spill.py                    three workers on this machine, and the job
    dask_spill.py worker ADDRESS     a worker on this host, for the scheduler at ADDRESS
    dask_spill.py job ADDRESS N [V]  the job, of V values, once the scheduler has N workers

The job keeps 960 MiB in workers of 300 MB each, reads all of it, lets each worker take its idle
memory for itself, and reads again. Every value is compared. Needs `distributed`.
"""

import asyncio
import os
import sys
from collections.abc import MutableMapping

import numpy as np
import zict
from distributed import Client, LocalCluster, Nanny
from distributed.spill import SpillBuffer

import glebe

LIMIT = 300_000_000                          # bytes of a worker, which its nanny enforces
TARGET = 32 << 20                            # bytes of values in a worker; it spills the others
IDLE = 32 << 20                              # bytes of the reserve of a worker
VALUES, LENGTH = 480, 2 << 20                # the job: number and bytes of its values


class Idle(MutableMapping):
    """The idle part of a reserve, for the serialized values of a worker: lists of buffers."""

    def __init__(self, reserve):
        self.cache = reserve.cache("spill")
        self.hits = self.misses = 0

    def __setitem__(self, key, value):
        is_one = isinstance(value, (bytes, bytearray, memoryview))
        self.cache[str(key)] = value if is_one else b"".join(value)

    def __getitem__(self, key):
        value = self.cache.get(str(key))
        if value is None:
            self.misses += 1
            raise KeyError(key)
        self.hits += 1
        return bytearray(value)

    def __delitem__(self, key):
        del self.cache[str(key)]

    def __contains__(self, key):
        return str(key) in self.cache

    def __len__(self):
        return len(self.cache)

    def __iter__(self):
        raise NotImplementedError("the files know the keys")


class Spill(SpillBuffer):
    """What a worker spills goes to a file, and into the idle memory until a block takes it."""

    def __init__(self, worker_local_directory, target, idle):
        super().__init__(os.path.join(worker_local_directory, "spilled"), target)
        self.reserve = glebe.Reserve(idle)
        self.idle = Idle(self.reserve)
        serializing = self.slow.data
        serializing.d = zict.Cache(serializing.d, self.idle)


OPTIONS = {"nthreads": 1, "memory_limit": LIMIT, "data": (Spill, {"target": TARGET, "idle": IDLE})}


def value(number, length):
    return np.arange(length // 8) * (number + 1)


def is_right(number, found, length):
    return bool((found == value(number, length)).all())


def peak(dask_worker):
    """Takes the whole reserve, as a worker does that needs its memory, and gives it back."""
    pages = dask_worker.data.reserve.stats()["total_pages"]
    dask_worker.data.reserve.alloc(pages, any=True).free()


def counts(dask_worker):
    data = dask_worker.data
    return os.getpid(), data.idle.hits, data.idle.misses, len(data.slow)


def job(client, values=VALUES, length=LENGTH):
    workers = client.run(counts)
    kept = client.map(value, range(values), length=length)
    for _ in range(2):
        right = client.gather(client.map(is_right, range(values), kept, length=length, pure=False))
        assert all(right), f"{right.count(False)} of {values} values are wrong"
        client.run(peak)
    ends = client.run(counts)
    assert {pid for pid, *_ in workers.values()} == {pid for pid, *_ in ends.values()}, "a worker died"
    hits, misses, spilled = (sum(each) for each in list(zip(*ends.values()))[1:])
    print(f"{values} values are right, {spilled} of them spilled, in {len(ends)} workers: "
          f"{hits} reads found them in idle memory, {misses} in files")


async def worker(address):
    async with Nanny(address, **OPTIONS) as nanny:
        await nanny.finished()


def main():
    match sys.argv[1:]:
        case []:
            with LocalCluster(n_workers=3, dashboard_address=None, **OPTIONS) as cluster:
                with Client(cluster) as client:
                    job(client)
        case ["worker", address]:
            asyncio.run(worker(address))
        case ["job", address, number, *values]:
            with Client(address) as client:
                client.wait_for_workers(int(number))
                job(client, *map(int, values))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
