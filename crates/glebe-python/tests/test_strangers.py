"""Runs others' tests and tools: zict's conformance kit, fsspec's caches, Arrow."""

import numpy as np
import pytest

from conftest import PAGE, take, value_of


@pytest.fixture
def pair(tmp_path, reserve):
    zict = pytest.importorskip("zict", reason="skipped: zict is not installed")
    return zict.Cache(zict.File(tmp_path / "files"), reserve.cache("spill"))


def kit():
    return pytest.importorskip(
        "zict.tests.utils_test", reason="skipped: zict's tests are not installed"
    )


def test_zict_takes_the_cache_for_a_mapping(reserve):
    kit().check_mapping(reserve.cache("alone"))


def test_zict_takes_the_pair_for_a_mapping(pair):
    kit().check_mapping(pair)


def test_the_pair_holds_under_threads(pair):
    tests = kit()
    tests.check_different_keys_threadsafe(pair)
    tests.check_same_key_threadsafe(pair)


def test_the_pair_loses_nothing_when_a_block_takes_the_cache(pair, reserve):
    values = {f"key-{n}": value_of(5 * PAGE, seed=n) for n in range(200)}
    pair.update(values)
    before = reserve.stats()["live_pages"]
    with take(reserve, 0.9):
        assert reserve.stats()["live_pages"] < before
        assert all(bytes(pair[key]) == value for key, value in values.items())
        assert pair.cache.lost > 0
    assert len(pair) == 200


def test_fsspec_reads_through_the_cache(reserve):
    fsspec = pytest.importorskip("fsspec", reason="skipped: fsspec is not installed")
    content = value_of(1 << 20)
    files = fsspec.filesystem("memory")
    files.pipe("/glebe/data", content)
    cache, fetched = reserve.cache("blocks"), []

    def fetch(start, end):
        key = ("/glebe/data", start, end)
        if (block := cache.get(key)) is None:
            fetched.append(start)
            cache[key] = block = files.cat_file("/glebe/data", start, end)
        return block

    from fsspec.caching import BlockCache

    def read():
        blocks = BlockCache(64 << 10, fetch, len(content), maxblocks=2)
        return b"".join(blocks._fetch(at, at + 10_000) for at in range(0, len(content), 10_000))

    assert read() == content and len(fetched) == 16
    assert read() == content and len(fetched) == 16
    with take(reserve, 1):
        assert read() == content and len(fetched) > 16
    files.rm("/glebe/data")


@pytest.mark.parametrize("make", ["py_buffer", "foreign_buffer"])
def test_arrow_takes_a_block(reserve, make):
    pa = pytest.importorskip("pyarrow", reason="skipped: pyarrow is not installed")
    compute = pytest.importorskip("pyarrow.compute")
    block = reserve.alloc(2, zeroed=True, any=True)
    if make == "py_buffer":
        buffer = pa.py_buffer(block)
    else:
        buffer = pa.foreign_buffer(block.address, len(block), base=memoryview(block))
    assert buffer.size == 2 * PAGE and buffer.address == block.address
    numbers = pa.Array.from_buffers(pa.int32(), PAGE // 2, [None, buffer])
    memoryview(block).cast("i")[PAGE // 2 - 1] = 7
    assert numbers[-1].as_py() == 7 and compute.sum(numbers).as_py() == 7
    del buffer
    with pytest.raises(BufferError):
        block.free()
    del numbers
    block.free()


def test_arrow_keeps_batches_in_the_cache(reserve):
    pa = pytest.importorskip("pyarrow", reason="skipped: pyarrow is not installed")
    batch = pa.record_batch({"n": list(range(10_000)), "text": ["a", None] * 5_000})
    cache = reserve.cache("batches")
    cache["b"] = batch.serialize()  # an Arrow buffer
    room = np.empty(len(cache["b"]), np.uint8)
    assert cache.get_into("b", room) == room.size
    assert pa.ipc.read_record_batch(pa.py_buffer(room), batch.schema).equals(batch)
