"""Builds large structures and drops them: dicts, lists, JSON, threads, forked processes.
Usage: structures.py [SCALE]. Prints checksums that are equal in each run."""

import ctypes
import gc
import hashlib
import json
import multiprocessing
import sqlite3
import subprocess
import sys
import threading
import time
import zlib


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def tree(depth, seed):
    if depth == 0:
        return {"seed": seed, "text": str(seed) * 5, "list": [seed / 7, None, True]}
    return {f"key {seed}.{nth}": tree(depth - 1, seed * 5 + nth) for nth in range(5)}


def build(nth):
    text = json.dumps(tree(5, nth), sort_keys=True)
    again = json.dumps(json.loads(text), sort_keys=True)
    assert text == again
    return digest(zlib.compress(text.encode()))


def large_and_small(rounds):
    """Builds and drops megabytes between small objects that stay."""
    kept, sums = [], []
    for nth in range(rounds):
        large = [bytearray([nth % 251]) * (600_000 + 1000 * piece) for piece in range(40)]
        kept.append([str(piece) * 20 for piece in range(3000)])
        assert all(piece.count(nth % 251) == len(piece) for piece in large)
        sums.append(digest(b"".join(large)))
        del large
        time.sleep(0.03)
    assert all(texts == [str(piece) * 20 for piece in range(3000)] for texts in kept)
    return digest("".join(sums).encode())


def in_threads(count):
    found = [None] * count

    def work(nth):
        found[nth] = build(nth)

    threads = [threading.Thread(target=work, args=(nth,)) for nth in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return digest("".join(found).encode())


def in_processes(count):
    with multiprocessing.get_context("fork").Pool(3) as pool:
        return digest("".join(pool.map(build, range(count))).encode())


def in_database(rows):
    base = sqlite3.connect(":memory:")
    base.execute("create table pairs (number integer primary key, text text)")
    base.executemany("insert into pairs values (?, ?)", ((n, str(n) * 9) for n in range(rows)))
    base.execute("create index by_text on pairs (text)")
    found = base.execute("select count(*), sum(length(text)), max(text) from pairs").fetchone()
    base.execute("delete from pairs where number % 3 = 0")
    return found, base.execute("select sum(number) from pairs").fetchone()


def by_hand():
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.realloc.restype = ctypes.c_void_p
    libc.realloc.argtypes = ctypes.c_void_p, ctypes.c_size_t
    libc.free.argtypes = (ctypes.c_void_p,)
    address = libc.malloc(1000)
    ctypes.memset(address, 65, 1000)
    address = libc.realloc(address, 3_000_000)
    assert ctypes.string_at(address, 1000) == b"A" * 1000
    libc.free(address)


def main():
    scale = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    print("large and small", large_and_small(6 * scale))
    print("threads", in_threads(4 * scale))
    print("processes", in_processes(6 * scale))
    print("database", in_database(20_000 * scale))
    by_hand()
    for nth in range(5 * scale):
        ran = subprocess.run(["sh", "-c", f"echo {nth} | tr 0-9 a-j"], capture_output=True)
        print("said", ran.stdout.decode().strip(), ran.returncode)
    cycle = []
    cycle.append(cycle)
    del cycle
    print("collected", gc.collect() > 0)


if __name__ == "__main__":
    main()
