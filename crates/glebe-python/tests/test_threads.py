"""Threads share one object and check every byte, on any interpreter.

On a free-threaded interpreter they really run at once.
"""

import random
import sys
import sysconfig
import threading
import time
from itertools import count

import numpy as np
import pytest

import glebe
from conftest import PAGE, SECONDS, take, value_of
from glebe import errors
from glebe.swap import Store
from glebe.volatile import VolatileBuffer, volatile_cache

THREADS = 8


def hammer(*works):
    """Calls each work repeatedly in a thread of its own, with its own source of random numbers.

    Each thread looks at the time itself, because the main thread could wait long for the global
    lock. A short switch interval makes threads alternate often."""
    stop, failed, end = threading.Event(), [], time.monotonic() + SECONDS

    def go(work, seed):
        rng = random.Random(seed)
        try:
            while not stop.is_set() and time.monotonic() < end:
                work(rng)
        except BaseException as error:
            failed.append(error)
            stop.set()

    threads = [
        threading.Thread(target=go, args=(works[n % len(works)], n)) for n in range(THREADS)
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    finally:
        sys.setswitchinterval(interval)
    if failed:
        raise failed[0]


def check(value, key):
    seed, length = int(value[:8]), len(value)
    assert seed % 16 == key and value == value_of(length, seed)


def test_a_free_threaded_interpreter_stays_free():
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("skipped: this interpreter has a global lock")
    assert glebe.Reserve and Store and not sys._is_gil_enabled()


def test_a_cache(reserve):
    cache = reserve.cache("tests")

    def put(rng):
        key = rng.randrange(16)
        cache[(key,)] = value_of(rng.randrange(8, 40_000), key + 16 * rng.randrange(1000))

    def get(rng):
        key = rng.randrange(16)
        if value := cache.get((key,)):
            check(value, key)

    def get_into(rng):
        key, out = rng.randrange(16), bytearray(40_000)
        if (length := cache.get_into((key,), out)) is not None:
            check(bytes(out[:length]), key)

    def remove(rng):
        key = rng.randrange(16)
        if value := cache.pop((key,), None):
            check(value, key)
        if rng.random() < 0.02:
            cache.clear()
        for (other,), value in cache.items():
            check(value, other)

    def recall(rng):
        take(reserve, 0.3 + rng.random() / 2).free()

    hammer(put, get, get_into, remove, put, recall)
    cache.clear()
    # A recall may keep pages from being dropped, but no key finds them.
    assert len(cache) == 0 and all(cache.get((key,)) is None for key in range(16))


def test_blocks_of_a_reserve_are_one_threads_each(reserve):
    cache = reserve.cache("tests")

    def own(rng):
        pages, mark = rng.randrange(1, 64), rng.randrange(256)
        try:
            if rng.random() < 0.5:
                block = reserve.alloc(pages, any=True)
            else:
                block = reserve.promise(pages, any=True).take()
        except (errors.NoRun, errors.WouldWait):
            return
        array = np.frombuffer(block, np.uint8)
        array[:] = mark
        cache[rng.randrange(100).to_bytes(1, "little")] = bytes([mark]) * PAGE
        assert (array == mark).all()
        del array
        block.free()

    def look(rng):
        value = cache.get(rng.randrange(100).to_bytes(1, "little"))
        assert value is None or value == value[:1] * PAGE

    hammer(own, own, own, look)
    # All blocks are free: one block can take the whole reserve.
    assert take(reserve, 1).pages == len(reserve) // PAGE


def test_a_block_that_is_freed_under_those_who_look_at_it(reserve):
    blocks = [None] * 4

    def fill(rng):
        place = rng.randrange(len(blocks))
        block = reserve.alloc(4, any=True)
        np.frombuffer(block, np.uint8)[:] = place + 1
        blocks[place] = block

    def free(rng):
        block = blocks[rng.randrange(len(blocks))]
        try:
            if block is not None:
                block.free()
        except BufferError:
            pass  # another thread looks at it

    def look(rng):
        place = rng.randrange(len(blocks))
        try:
            array = np.frombuffer(blocks[place] or b"", np.uint8)
        except ValueError:
            return  # freed, or not yet allocated
        assert (array == place + 1).all()

    hammer(fill, free, look, look)


def test_a_store():
    store = Store(256 << 10, capacity=64 << 20, pool_limit=64 << 20)
    keys = [store.insert(value_of(30_000, n)) for n in range(16)]
    refused = (errors.Stale, errors.Pinned, errors.Budget)

    def read(rng):
        place = rng.randrange(16)
        try:
            with store.pin(keys[place]) as pinned:
                check(bytes(pinned), place)
        except refused:
            pass

    def write(rng):
        place = rng.randrange(16)
        try:
            with store.pin_mut(keys[place]) as pinned:
                value = value_of(30_000, place + 16 * rng.randrange(1000))
                np.frombuffer(pinned, np.uint8)[:] = np.frombuffer(value, np.uint8)
        except refused:
            pass

    def replace(rng):
        place = rng.randrange(16)
        try:
            check(store.take(keys[place]), place)
            keys[place] = store.insert(value_of(30_000, place + 16))
        except refused:
            pass

    def hint(rng):
        try:
            rng.choice((store.cold, store.will_need))(keys[rng.randrange(16)])
        except refused:
            pass

    hammer(read, write, replace, read, hint)
    for place, key in enumerate(keys):
        check(store.take(key), place)


def test_a_volatile_buffer():
    pages = 64
    buffer = VolatileBuffer(pages * PAGE)
    whole = np.repeat(np.arange(1, pages + 1, dtype=np.uint8), PAGE)

    def fits(array, first):
        """Checks that each byte is its page's or zero. Another thread may be filling a page."""
        array, expected = array.copy(), whole[first * PAGE :][: len(array)]
        assert ((array == expected) | (array == 0)).all()

    def hold(rng):
        with buffer.held():
            array = np.frombuffer(buffer, np.uint8)
            fits(array, 0)
            if rng.random() < 0.5:
                array[:] = whole
            del array

    def read(rng):
        first = rng.randrange(pages - 4)
        if value := buffer.read(first * PAGE, rng.randrange(1, 4 * PAGE)):
            fits(np.frombuffer(value, np.uint8), first)

    def mark(rng):
        try:
            buffer.mark()
            buffer.drop_marked(rng.randrange(pages) * PAGE)
            buffer.unmark()
        except BufferError:
            pass  # in use

    hammer(hold, read, mark, hold)
    buffer.unmark()
    fits(np.frombuffer(buffer, np.uint8), 0)


def test_a_volatile_cache_counts_every_call():
    asked, places, local = [0] * THREADS, count(), threading.local()

    @volatile_cache(1 << 20, hot=0)
    def make(n):
        return np.full(PAGE // 2, n, np.uint8)

    def ask(rng):
        if not hasattr(local, "place"):
            local.place = next(places)
        n = rng.randrange(250)
        for _ in range(20):
            assert (make(n) == n).all()
        asked[local.place] += 20
        if rng.random() < 0.01:
            make.drop_unused()

    hammer(ask)
    stats = make.stats()
    assert stats["hits"] + stats["misses"] == sum(asked)
