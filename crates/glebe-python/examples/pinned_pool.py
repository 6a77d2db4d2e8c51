"""Compares pinned memory for a GPU from a reserve, registered once and full of cache, with new.

    pinned_pool.py [FILE]

Needs PyTorch with CUDA and 20 GiB of memory. The kinds of memory take turns. Prints for each the
time to get 1 GiB in ms and the speed of copies in GB/s, and writes both to FILE as JSON.
"""

import json
import mmap
import os
import statistics
import sys
import time

import numpy as np
import torch

import glebe

GIB = 1 << 30
POOL, VALUE, ROUNDS = 8 * GIB, 1 << 20, 15
cuda = torch.cuda.cudart()


def timed(make):
    begin = time.perf_counter()
    made = make()
    return (time.perf_counter() - begin) * 1e3, made


def copied(host, device):
    """Returns the GB/s of the best of three copies to the GPU."""
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return GIB / min(times) / 1e9


def check(answer):
    assert answer == cuda.cudaError.success, answer


class Pool:
    """A reserve that is registered as a whole."""

    def __init__(self, source):
        self.reserve = glebe.Reserve(POOL, source=source)
        with self.reserve.alloc(self.reserve.stats()["total_pages"], any=True) as whole:
            self.address = whole.address
            check(cuda.cudaHostRegister(whole.address, len(whole), 0))
        self.cache = self.reserve.cache("between two peaks")
        self.value = np.random.default_rng(0).integers(0, 256, VALUE, np.uint8)

    def take(self):
        """Takes a block of 1 GiB out of a full cache."""
        for n in range(POOL // VALUE):
            self.cache.put(b"%d" % n, self.value)
        before = self.reserve.stats()["recalled"]
        took, block = timed(lambda: self.reserve.alloc(bytes=GIB, any=True))
        assert self.reserve.stats()["recalled"] - before > GIB // glebe.PAGE_BYTES // 2
        return took, torch.from_numpy(np.frombuffer(block, np.uint8)), block.free

    def close(self):
        check(cuda.cudaHostUnregister(self.address))
        self.reserve.close()


def by_torch():
    torch._C._host_emptyCache()
    took, host = timed(lambda: torch.empty(GIB, dtype=torch.uint8, pin_memory=True))
    return took, host, lambda: None


def registered_anew():
    """Times cudaHostRegister on a new mapping with huge pages, which the call populates."""

    def make():
        memory = mmap.mmap(-1, GIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        array = np.frombuffer(memory, np.uint8)
        check(cuda.cudaHostRegister(array.ctypes.data, GIB, 0))
        return array

    took, array = timed(make)
    address = array.ctypes.data
    return took, torch.from_numpy(array), lambda: check(cuda.cudaHostUnregister(address))


def pageable():
    took, host = timed(lambda: torch.ones(GIB, dtype=torch.uint8))
    return took, host, lambda: None


def main():
    device = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    pools = {f"glebe, {source}": Pool(source) for source in ("thp", "auto")}
    sides = {who: pool.take for who, pool in pools.items()}
    sides |= {"PyTorch, pinned": by_torch, "registered anew": registered_anew, "pageable": pageable}
    seen = {who: ([], []) for who in sides}
    for turn in range(ROUNDS + 1):
        for who, make in sides.items():
            took, host, end = make()
            speed = copied(host, device)
            del host
            end()
            if turn:  # The first turn does not count: it makes memory that later turns reuse.
                seen[who][0].append(took)
                seen[who][1].append(speed)
    rows = []
    for who, samples in seen.items():
        for case, unit, some in zip(("had_1g", "copied_1g"), ("ms", "GB/s"), samples):
            row = {"case": case, "who": who, "unit": unit, "median": statistics.median(some)}
            rows.append(row | {"min": min(some), "max": max(some), "runs": len(some)})
            line = "{case:10} {who:16} {median:9.3f} {unit} ({min:.3f} to {max:.3f})"
            print(line.format(**rows[-1]))
    gpu, sources = torch.cuda.get_device_name(), [pool.reserve.source for pool in pools.values()]
    machine = {"kernel": os.uname().release, "cpus": os.cpu_count(), "gpu": gpu, "sources": sources}
    for pool in pools.values():
        pool.close()
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            json.dump({"bench": "pinned_pool", "machine": machine, "rows": rows}, file, indent=1)
    print(machine)


if __name__ == "__main__":
    main()
