"""Puts and gets of 4 KiB and 1 MiB: glebe beside dict, lmdb, diskcache and zict.File.

Usage: small.py ROUNDS DIR, with DIR on tmpfs. In each round, all peers in turn use the same keys. A
peer stores 64 MiB of each size, more than most processors' caches hold. `get` returns the value as
a new object. `get_into` copies it to a `bytearray` of the caller. Prints lines of JSON: samples
(case, who, microseconds per call), missing peers with the reason, and at the end the checks.
"""

import importlib
import json
import os
import sys
import time

import glebe

SIZES = {"4k": (4096, 16384), "1m": (1 << 20, 64)}
# Calls per sample.
CALLS = {"4k": 2048, "1m": 32}
# Number of different values. A key is put again after 8 rounds (4k) or 2 rounds (1m). Neither is a
# multiple of VALUES, so the new value differs from the old one.
VALUES = 7


def say(**what):
    print(json.dumps(what), flush=True)


class Dict:
    """A dict that copies values in and out, the least work that a cache in memory can do."""

    def __init__(self, where):
        self.map = {}

    def put(self, key, value):
        self.map[key] = bytes(memoryview(value))

    def get(self, key):
        return bytes(memoryview(self.map[key]))

    def get_into(self, key, out):
        out[:] = self.map[key]


class Lmdb:
    def __init__(self, where):
        lmdb = importlib.import_module("lmdb")
        self.env = lmdb.open(where, map_size=1 << 30, sync=False, metasync=False, writemap=True)

    def put(self, key, value):
        with self.env.begin(write=True) as transaction:
            transaction.put(key, value)

    def get(self, key):
        with self.env.begin() as transaction:
            return transaction.get(key)

    def get_into(self, key, out):
        with self.env.begin(buffers=True) as transaction:
            out[:] = transaction.get(key)


class LmdbBatched(Lmdb):
    """Uses one transaction per sample, lmdb's fastest way. A real cache cannot wait for a batch of
    calls."""

    def __init__(self, where):
        super().__init__(where)
        self.writer = self.reader = None

    def begin(self, is_put):
        self.transaction = self.env.begin(write=is_put)

    def end(self):
        self.transaction.commit()

    def put(self, key, value):
        self.transaction.put(key, value)

    def get(self, key):
        return self.transaction.get(key)

    get_into = None


class Disk:
    def __init__(self, where):
        diskcache = importlib.import_module("diskcache")
        self.map = diskcache.Cache(where, size_limit=1 << 31, sqlite_synchronous=0)

    def put(self, key, value):
        self.map.set(key, value)

    def get(self, key):
        return self.map.get(key)


class Zict:
    def __init__(self, where):
        self.map = importlib.import_module("zict").File(where)

    def put(self, key, value):
        self.map[key.decode()] = value

    def get(self, key):
        return self.map[key.decode()]


class Glebe:
    def __init__(self, where):
        self.reserve = glebe.Reserve(160 << 20)
        cache = self.reserve.cache("bench")
        self.put, self.get, self.get_into = cache.put, cache.__getitem__, cache.get_into


PEERS = {
    "glebe": Glebe,
    "dict, copied": Dict,
    "lmdb": Lmdb,
    "lmdb, one transaction": LmdbBatched,
    "diskcache": Disk,
    "zict.File": Zict,
}


def had(where):
    """Returns the installed peers, and prints the reason for each missing one."""
    found = {}
    for who, kind in PEERS.items():
        path = os.path.join(where, "".join(c for c in who if c.isalnum()))
        os.makedirs(path)
        try:
            found[who] = kind(path)
        except ImportError as why:
            say(case="put_4k", who=who, why=f"{why}: pip install it")
    return found


def sample(peer, what, keys, values, out):
    """Returns microseconds per call, and how many of up to five checked gets are wrong."""
    wrong = 0
    if hasattr(peer, "begin"):
        peer.begin(what == "put")
    put, get, get_into = peer.put, peer.get, getattr(peer, "get_into", None)
    begin = time.perf_counter()
    if what == "put":
        for key, value in zip(keys, values):
            put(key, value)
    elif what == "get":
        for key in keys:
            got = get(key)
    else:
        for key in keys:
            get_into(key, out)
    took = time.perf_counter() - begin
    if what != "put":
        last = got if what == "get" else out
        wrong += last != values[len(keys) - 1]
        wrong += sum(peer.get(key) != value for key, value in zip(keys[:4], values))
    if hasattr(peer, "end"):
        peer.end()
    return took / len(keys) * 1e6, wrong


def binding(rounds):
    """Times `get_into` of 4096 bytes that stay in the processor's cache: the binding's own cost."""
    with glebe.Reserve(4 << 20) as reserve:
        cache, out = reserve.cache("bench"), bytearray(4096)
        cache["k"] = out
        get_into = cache.get_into
        for _ in range(rounds):
            begin = time.perf_counter()
            for _ in range(20_000):
                get_into("k", out)
            took = time.perf_counter() - begin
            say(case="get_into_hot", who="glebe", us=took / 20_000 * 1e6)


def main():
    rounds, where = int(sys.argv[1]), sys.argv[2]
    wrong = 0
    for size, (length, count) in SIZES.items():
        peers = had(os.path.join(where, size))
        base = os.urandom(length)
        values = [n.to_bytes(8, "little") + base[8:] for n in range(VALUES)]
        keys = [b"key-%08d" % n for n in range(count)]
        order = sorted(range(count), key=lambda n: n * 2654435761 % (1 << 32))
        out = bytearray(length)
        for peer in peers.values():
            sample(peer, "put", keys, [values[n % VALUES] for n in range(count)], out)
        for nth in range(rounds):
            part = [order[(nth * CALLS[size] + n) % count] for n in range(CALLS[size])]
            chosen = [keys[n] for n in part], [values[(n + nth) % VALUES] for n in part]
            for what in ("put", "get", "get_into"):
                for who, peer in peers.items():
                    if what == "get_into" and not getattr(peer, what, None):
                        continue
                    took, bad = sample(peer, what, *chosen, out)
                    wrong += bad
                    say(case=f"{what}_{size}", who=who, us=took)
        del peers
    binding(rounds)
    say(checks={"wrong_bytes": wrong})


main()
