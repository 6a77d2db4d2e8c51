"""Clients of a Mooncake store. Orders come as lines on standard input, answers go out as lines of JSON.

Usage: store.py client ADDRESS MASTER    takes the orders put, get, read, stop, ask and counts
       store.py lend ADDRESS MASTER SIZE COUNT    COUNT segments in ordinary shared memory

A value is a number's digest, and bytes of one random block from a place that depends on the number.
"""

import hashlib
import json
import mmap
import os
import random
import sys
import threading
import time

from mooncake.store import MooncakeDistributedStore

BUFFER = 64 << 20
# Values of a request.
BATCH = 64
BLOCK = random.Random(7).randbytes(4 << 20)


def value_of(number, length):
    place = number * 977 % (len(BLOCK) - length)
    return hashlib.sha256(b"%d" % number).digest() + BLOCK[place + 32:place + length]


def key_of(number, length):
    return f"{length}-{number}"


def connect(address, master):
    store = MooncakeDistributedStore()
    code = store.setup(address, "P2PHANDSHAKE", 0, BUFFER, "tcp", "", master)
    if code:
        raise OSError(f"the store's setup returned {code}")
    return store


# The package may print; its lines must not mix with the answers.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def say(**what):
    answers.write(json.dumps(what) + "\n")
    answers.flush()


class Client:
    def __init__(self, address, master):
        self.store = connect(address, master)
        self.counts = dict.fromkeys(("hits", "misses", "wrong", "puts", "refused"), 0)

    def put(self, number, length):
        value = value_of(number, length)
        begin = time.perf_counter()
        code = self.store.put(key_of(number, length), value)
        took = time.perf_counter() - begin
        self.counts["puts" if code == 0 else "refused"] += 1
        return took if code == 0 else None

    def get(self, number, length):
        """Returns the seconds of a hit, else None."""
        begin = time.perf_counter()
        value = self.store.get(key_of(number, length))
        took = time.perf_counter() - begin
        return took if self.check(number, length, value) else None

    def check(self, number, length, value):
        """Counts a hit, a miss or a wrong value. Returns true if it is a hit."""
        right = bool(value) and value == value_of(number, length)
        self.counts["hits" if right else "wrong" if value else "misses"] += 1
        return right

    def ask(self, numbers, length):
        """Gets values, and puts what is missing. Returns the number of hits."""
        values = self.store.get_batch([key_of(number, length) for number in numbers])
        missing = [n for n, value in zip(numbers, values) if not self.check(n, length, value)]
        if missing:
            keys = [key_of(number, length) for number in missing]
            code = self.store.put_batch(keys, [value_of(number, length) for number in missing])
            self.counts["puts" if code == 0 else "refused"] += len(missing)
        return len(numbers) - len(missing)

    def timed(self, what, first, count, length):
        call = {"put": self.put, "get": self.get}[what]
        took = [call(number, length) for number in range(first, first + count)]
        return [seconds * 1e6 for seconds in took if seconds is not None]

    def read(self, keys, length, stop):
        """Reads keys at random, and puts what is missing, until `stop` is set."""
        while not stop.is_set():
            self.ask(random.sample(range(keys), BATCH), length)


def serve(address, master):
    client = Client(address, master)
    say(ready=True)
    reading = None
    for line in sys.stdin:
        order, *words = line.split()
        if order in ("put", "get"):
            say(us=client.timed(order, *map(int, words)))
        elif order == "read":
            stop = threading.Event()
            keys, length = map(int, words)
            reading = threading.Thread(target=client.read, args=(keys, length, stop))
            reading.start()
            say(reads=True)
        elif order == "stop":
            stop.set()
            reading.join()
            say(stopped=True)
        elif order == "ask":
            length, *numbers = map(int, words)
            say(hits=client.ask(numbers, length))
        elif order == "counts":
            say(**client.counts)
    client.store.close()


def lend(address, master, size, count):
    store = connect(address, master)
    for _ in range(count):
        memory = os.memfd_create("stock")
        os.ftruncate(memory, size)
        # Both kinds of segments have all their pages from the beginning.
        with mmap.mmap(memory, size) as mapped:
            for page in range(0, size, mmap.PAGESIZE):
                mapped[page] = 0
        answer = store.mount_segment(f"/proc/self/fd/{memory}", size, 0, "tcp", "")
        if answer["ret"]:
            raise OSError(f"mount_segment returned {answer}")
        os.close(memory)
    say(ready=True)
    sys.stdin.read()
    store.close()


if sys.argv[1] == "client":
    serve(*sys.argv[2:])
else:
    lend(*sys.argv[2:4], *map(int, sys.argv[4:]))
os._exit(0)
