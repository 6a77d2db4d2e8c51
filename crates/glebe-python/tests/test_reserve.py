"""Tests Reserve, Block and Promise."""

import gc
import threading
import time

import numpy as np
import pytest

import glebe
from conftest import PAGE, value_of
from glebe import errors


def test_a_block_is_an_array_that_can_be_written(reserve):
    block = reserve.alloc(3, zeroed=True, any=True)
    array = np.frombuffer(block, np.uint8)
    assert len(block) == array.nbytes == 3 * PAGE and block.pages == 3
    assert not array.any() and array.flags.writeable
    array[:] = 7
    assert bytes(memoryview(block)[-2:]) == b"\7\7"
    assert array.ctypes.data == block.address
    frame, contiguous = block.locate(PAGE)
    assert contiguous >= 1 and (frame is None or frame > 0)
    with pytest.raises(ValueError, match="offset"):
        block.locate(3 * PAGE)


def test_an_exported_block_cannot_be_freed(reserve):
    block = reserve.alloc(1)
    array = np.frombuffer(block, np.uint8)
    view = memoryview(block)
    with pytest.raises(BufferError, match="2 arrays or views of the block"):
        block.free()
    array[:] = 1
    del array
    view.release()
    block.free()
    block.free()
    with pytest.raises(ValueError, match="freed before"):
        memoryview(block)
    with pytest.raises(ValueError, match="freed before"):
        len(block)


def test_a_with_block_frees_and_refuses_while_exported(reserve):
    def free():
        return reserve.stats()["free_pages"]

    before = free()
    with reserve.alloc(100, any=True) as block:
        assert free() == before - 100 and len(block) == 100 * PAGE
    assert free() == before
    with pytest.raises(BufferError):
        with reserve.alloc(1) as block:
            array = np.frombuffer(block, np.uint8)
    assert array[0] == array[0]
    del array, block
    gc.collect()
    assert free() == before


def test_a_block_and_its_arrays_outlive_the_reserve():
    reserve = glebe.Reserve(2 << 20, source="plain")
    array = np.frombuffer(reserve.alloc(4, any=True), np.uint64)
    reserve.close()
    del reserve
    gc.collect()
    array[:] = 5
    assert int(array.sum()) == 5 * array.size


def test_refusals_name_their_values(reserve):
    longest = reserve.largest_run()
    with pytest.raises(glebe.NoRun) as refused:
        reserve.alloc(longest + 1)
    assert (refused.value.asked, refused.value.longest) == (longest + 1, longest)
    assert isinstance(refused.value, MemoryError) and str(longest) in str(refused.value)
    for wrong in ({}, {"pages": 1, "bytes": 1}, {"pages": 0}, {"pages": 1, "align": 3}):
        with pytest.raises(ValueError):
            reserve.alloc(**wrong)
    for wrong in (-1, 1 << 64):
        with pytest.raises(OverflowError):
            reserve.alloc(wrong)
    with pytest.raises(MemoryError):
        reserve.alloc(bytes=(1 << 64) - 1)
    with pytest.raises(errors.NoMemory):
        glebe.Reserve(1 << 62)
    with pytest.raises(ValueError, match="it is one of auto"):
        glebe.Reserve(1, source="best")
    with pytest.raises(ValueError, match="neither grow nor shrink"):
        reserve.grow(1)


def test_a_closed_reserve_says_so(reserve):
    reserve.close()
    reserve.close()
    for call in (reserve.largest_run, reserve.stats, lambda: reserve.alloc(1), reserve.__len__):
        with pytest.raises(ValueError, match="the reserve was closed"):
            call()


def test_the_end_of_a_reserve_ends_its_caches(reserve):
    cache, again = reserve.cache("c"), reserve.cache("c")
    cache["long"], cache["short"] = bytes(2 * PAGE), b"short"
    keys = iter(cache)
    reserve.close()
    calls = (
        lambda: cache["long"],
        lambda: cache.get("short"),
        lambda: cache.get_into("short", bytearray(8)),
        lambda: cache.put("short", b"new"),
        lambda: cache.pop("none", None),
        lambda: "long" in again,
        lambda: len(cache),
        lambda: next(keys),
        lambda: list(again),
        lambda: cache.lost,
        cache.clear,
    )
    for call in calls:
        with pytest.raises(ValueError, match="the reserve was closed"):
            call()
    assert repr(cache) == "<glebe.Cache, closed>"


def test_the_end_of_a_reserve_gives_its_memory_back_though_a_cache_object_lives(run):
    run("""
    import glebe
    def resident():
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))
    reserve = glebe.Reserve(64 << 20, source="plain")
    cache = reserve.cache("c")
    cache["long"], cache["short"] = bytes(16 << 20), b"short"
    before = resident()
    reserve.close()
    assert before - resident() >= 48 << 20, (before, resident())
    """)


def test_a_reserve_ends_beside_threads_that_use_its_caches():
    reserve = glebe.Reserve(16 << 20, source="plain")
    cache, refused = reserve.cache("c"), []
    value, limit = value_of(1 << 20), time.monotonic() + 20

    def use(key):
        try:
            while time.monotonic() < limit:
                cache[key] = value
                assert cache.get(key) in (value, None)
        except ValueError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=use, args=(key,)) for key in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    reserve.close()
    for thread in threads:
        thread.join()
    assert len(refused) == 3 and all("the reserve was closed" in text for text in refused)


def test_a_promise_keeps_its_run(reserve):
    pages = len(reserve) // PAGE
    promise = reserve.promise(pages, any=True)
    with pytest.raises(glebe.NoRun):
        reserve.alloc(1)
    block = promise.take()
    assert block.pages == pages and promise.pages == 0
    with pytest.raises(ValueError):
        promise.take()
    block.free()
    with reserve.promise(bytes=1) as promise:
        assert promise.pages == 1
        with pytest.raises(glebe.NoRun):
            reserve.alloc(pages, any=True)
    reserve.alloc(pages, any=True)


def test_a_reserve_with_room_grows_and_shrinks():
    with glebe.Reserve(4 << 20, source="plain", room=8 << 20) as reserve:
        assert reserve.grow(4 << 20) == len(reserve) == 8 << 20
        assert reserve.shrink(2 << 20) == 6 << 20
        with pytest.raises(errors.NoMemory) as refused:
            reserve.grow(4 << 20)
        assert refused.value.available == 2 << 20


def test_statistics_count(reserve):
    reserve.cache("a").put("k", b"v" * PAGE)
    reserve.alloc(1).free()
    stats = reserve.stats()
    assert stats["stored"] == stats["live_pages"] == 1 and stats["allocs"] == 1
    assert stats["total_pages"] == len(reserve) // PAGE
