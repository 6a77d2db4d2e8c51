"""Hits and puts of caches that four processes share: glebe, lmdb, diskcache, memcached.

Usage: shared.py ROUNDS DIR SOCKET, with DIR on tmpfs and SOCKET of a glebe daemon. In each round,
all peers in turn get the same keys; all four processes call at once. A sample is the processor
time of a call in microseconds: that of the four processes, and of memcached's server. A peer stores
up to 32 MiB of each length. Prints lines of JSON, as small.py does.
"""

import importlib
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time

import glebe

WORKERS = 4
SIZES = {"100": (100, 8192), "4k": (4096, 8192), "64k": (1 << 16, 512), "1m": (1 << 20, 32)}
# Values that a worker checks after a sample.
LOOKS = 5
# Calls of a worker per sample.
CALLS = {"100": 2048, "4k": 2048, "64k": 256, "1m": 16}


def say(**what):
    print(json.dumps(what), flush=True)


class Glebe:
    def __init__(self, where, path):
        self.cache = glebe.shared_cache("bench", "256M", socket=path)
        self.put, self.get = self.cache.put, self.cache.get


class Lmdb:
    def __init__(self, where, path):
        self.lmdb = importlib.import_module("lmdb")
        self.where = where

    def open(self):
        options = {"map_size": 1 << 30, "sync": False, "metasync": False, "writemap": True}
        self.env = self.lmdb.open(self.where, **options)

    def put(self, key, value):
        with self.env.begin(write=True) as transaction:
            transaction.put(key, value)

    def get(self, key):
        with self.env.begin() as transaction:
            return transaction.get(key)


class Disk:
    def __init__(self, where, path):
        self.kind = importlib.import_module("diskcache").Cache
        self.where = where

    def open(self):
        self.cache = self.kind(self.where, size_limit=1 << 31, sqlite_synchronous=0)
        self.put, self.get = self.cache.set, self.cache.get


class Memcached:
    """The server on a Unix socket, and the shortest client there can be."""

    def __init__(self, where, path):
        if not shutil.which("memcached"):
            raise ImportError("no memcached on this machine")
        self.path = os.path.join(where, "socket")
        words = ["memcached", "-s", self.path, "-m", "256", "-t", "2", "-I", "2m"]
        words += ["-u", "root"] if os.getuid() == 0 else []
        self.server = subprocess.Popen(words)
        while not os.path.exists(self.path):
            time.sleep(0.01)

    def open(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(self.path)
        self.answers = self.socket.makefile("rb", buffering=1 << 17)

    def put(self, key, value):
        self.socket.sendall(b"set %b 0 0 %d\r\n%b\r\n" % (key, len(value), value))
        self.answers.readline()

    def get(self, key):
        self.socket.sendall(b"get %b\r\n" % key)
        head = self.answers.readline()
        if head == b"END\r\n":
            return None
        value = self.answers.read(int(head.rsplit(b" ", 1)[1]) + 2)[:-2]
        self.answers.readline()
        return value

    def used(self):
        """Returns the server's processor time in seconds, from the scheduler."""
        tasks = os.listdir(f"/proc/{self.server.pid}/task")
        read = lambda task: open(f"/proc/{self.server.pid}/task/{task}/schedstat").read().split()
        return sum(int(read(task)[0]) for task in tasks) / 1e9

    def end(self):
        self.server.terminate()
        self.server.wait()


PEERS = {"glebe": Glebe, "lmdb": Lmdb, "diskcache": Disk, "memcached": Memcached}


def had(where, path):
    found = {}
    for who, kind in PEERS.items():
        folder = os.path.join(where, who)
        os.makedirs(folder)
        try:
            found[who] = kind(folder, path)
        except ImportError as why:
            say(case="shared_get_4k", who=who, why=str(why))
    return found


def key_of(size, n):
    return b"%s-%08d" % (size.encode(), n)


def worker(peers, values, orders, answers):
    """Serves orders, one a line: peer, what, length, first key. Answers processor seconds, and how
    many values were wrong or missing."""
    for peer in peers.values():
        if hasattr(peer, "open"):
            peer.open()
    for line in orders:
        who, what, size, first = line.split()
        peer, count = peers[who], SIZES[size][1]
        keys = [key_of(size, (int(first) + n * 617) % count) for n in range(CALLS[size])]
        value, wrong, missing, call = values[size], 0, 0, getattr(peer, what)
        begin = time.process_time()
        if what == "put":
            for key in keys:
                call(key, value)
        else:
            for key in keys:
                got = call(key)
        took = time.process_time() - begin
        if what == "get":
            looked = [peer.get(key) for key in keys[:LOOKS]]
            missing = looked.count(None)
            wrong = LOOKS - missing - looked.count(value)
        answers.write(f"{took} {wrong} {missing}\n")
        answers.flush()
    os._exit(0)


def main():
    rounds, where, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    peers = had(where, path)
    values = {size: os.urandom(length) for size, (length, _) in SIZES.items()}
    workers = []
    for _ in range(WORKERS):
        (order_out, order_in), (answer_out, answer_in) = os.pipe(), os.pipe()
        if os.fork() == 0:
            os.close(order_in)
            worker(peers, values, os.fdopen(order_out), os.fdopen(answer_in, "w"))
        os.close(order_out)
        os.close(answer_in)
        workers.append((os.fdopen(order_in, "w"), os.fdopen(answer_out)))

    def sample(who, what, size, nth):
        used = getattr(peers[who], "used", lambda: 0.0)
        before = used()
        for index, (orders, _) in enumerate(workers):
            orders.write(f"{who} {what} {size} {nth * 31 + index * 997}\n")
            orders.flush()
        said = [answers.readline().split() for _, answers in workers]
        took = sum(float(seconds) for seconds, _, _ in said) + used() - before
        us = took / CALLS[size] / WORKERS * 1e6
        return us, sum(int(wrong) for _, wrong, _ in said), sum(int(gone) for _, _, gone in said)

    wrong = 0
    for size in SIZES:
        lines = SIZES[size][1] // CALLS[size] + 1
        for who in peers:
            for nth in range(4 * lines):
                sample(who, "put", size, nth)
        for nth in range(rounds):
            for what in ("get", "put"):
                for who in peers:
                    us, bad, gone = sample(who, what, size, nth)
                    wrong += bad
                    say(case=f"shared_{what}_{size}", who=who, us=us)
                    if what == "get":
                        hits = 1 - gone / LOOKS / WORKERS
                        say(case=f"shared_hits_{size}", who=who, percent=hits * 100)
    say(checks={"wrong_bytes": wrong})
    for peer in peers.values():
        if hasattr(peer, "end"):
            peer.end()


main()
