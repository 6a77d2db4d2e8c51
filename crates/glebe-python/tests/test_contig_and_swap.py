"""Tests contiguous memory, and stores with a budget."""

import gc
import glob
import os
import random

import numpy as np
import pytest

import glebe
from conftest import PAGE, value_of
from glebe import errors
from glebe.swap import Store
from glebe.volatile import VolatileBuffer, volatile_cache


def test_runs_cover_the_memory():
    with glebe.contig(4 << 20, source="plain") as memory:
        runs = memory.runs()
        assert len(memory) == 4 << 20
        # If page frames are hidden, base pages have no proved run.
        assert sum(pages for _, pages, _ in runs) * PAGE == (len(memory) if runs else 0)
        assert runs or os.getuid() != 0
        starts = np.cumsum([0] + [pages for _, pages, _ in runs])[: len(runs)]
        assert [first for first, _, _ in runs] == list(starts)
        assert memory.longest_run == max((pages for _, pages, _ in runs), default=1)
        array = np.frombuffer(memory, np.uint8)
        assert not array.any()
        array[:] = 3
        with pytest.raises(BufferError, match="contiguous memory"):
            memory.close()
        assert array.ctypes.data == memory.address
        assert isinstance(memory.verify(), list) and memory.proof and memory.held_by
        del array
    with pytest.raises(ValueError, match="closed"):
        memory.runs()


def test_memory_is_on_the_node_that_was_named():
    try:
        with glebe.contig(4 << 20, source="plain", node=0) as memory:
            assert memory.nodes() == [(0, (4 << 20) // PAGE, 0)]
    except (errors.NoMemory, errors.SystemRefused) as error:
        # Node 0 may be without memory, and a container may deny the choice and the question.
        print(f"skipped: {error}")
    with glebe.Reserve(4 << 20, source="plain", prefer_node=0) as reserve:
        assert len(reserve.alloc(1, any=True)) > 0
        assert {node for _, _, node in reserve.nodes()} == {0} or len(_nodes()) > 1
    for kind in ("node", "prefer_node"):
        with pytest.raises(errors.BadArgument, match="not online"):
            glebe.contig(4 << 20, source="plain", **{kind: 1 << 20})
    for both in ({"node": 0, "prefer_node": 0}, {"node": 0, "nodes": [0]}):
        with pytest.raises(ValueError, match="give one"):
            glebe.contig(4 << 20, **both)


def test_memory_is_on_the_nodes_that_were_named():
    for make in (glebe.contig, glebe.Reserve):
        for wrong in ([], [0, 1 << 20]):
            with pytest.raises(errors.BadArgument):
                make(4 << 20, source="plain", nodes=wrong)
        with pytest.raises(TypeError):
            make(4 << 20, source="plain", nodes="0")
        try:
            with make(4 << 20, source="plain", nodes=(0, 0)) as memory:
                assert {node for _, _, node in memory.nodes()} == {0}
        except (errors.NoMemory, errors.BadArgument, errors.SystemRefused) as error:
            # Node 0 may be without memory, and a container may deny the choice and the question.
            print(f"skipped: {error}")


def _nodes():
    return glob.glob("/sys/devices/system/node/node[0-9]*")


def test_the_nodes_of_a_reserve_cover_its_pages():
    reserve = glebe.Reserve(2 << 20, source="plain", room=8 << 20)
    for change in (lambda: None, lambda: reserve.grow(4 << 20), lambda: reserve.shrink(2 << 20)):
        change()
        try:
            nodes = reserve.nodes()
        except errors.SystemRefused as error:
            pytest.skip(str(error))
        assert sum(pages for _, pages, _ in nodes) * PAGE == len(reserve)
        assert nodes[0][0] == 0
        if _nodes():
            assert all(os.path.isdir(f"/sys/devices/system/node/node{node}") for _, _, node in nodes)
    reserve.close()
    with pytest.raises(ValueError, match="closed"):
        reserve.nodes()


def test_contiguous_memory_that_cannot_be_had_is_refused():
    with pytest.raises(errors.NoMemory) as refused:
        glebe.contig(1 << 60)
    assert 0 < refused.value.available < 1 << 60
    with pytest.raises(errors.BadArgument):
        glebe.contig(0)


@pytest.fixture
def store():
    return Store(256 << 10, capacity=64 << 20, pool_limit=64 << 20)


def test_objects_beyond_the_budget_come_back(store):
    values = [value_of(50_000, seed=n) for n in range(60)]
    keys = [store.insert(value) for value in values]
    for n in random.Random(1).choices(range(60), k=200):
        with store.pin(keys[n]) as pinned:
            assert bytes(pinned) == values[n] and len(pinned) == 50_000
    with store.pin_mut(keys[7]) as pinned:
        array = np.frombuffer(pinned, np.uint8)
        array[0] = 1
    assert array.flags.writeable
    del array
    gc.collect()
    assert store.take(keys[7]) == b"\1" + values[7][1:]
    with pytest.raises(errors.Stale):
        store.pin(keys[7])
    assert keys[1] != keys[2] and hash(keys[1]) == hash(keys[1])


def test_a_pin_ends_with_its_last_array(store):
    key = store.insert(b"abc")
    with store.pin(key) as pinned:
        view = memoryview(pinned)
        assert view.readonly
    with pytest.raises(errors.Pinned):
        store.pin_mut(key)
    with pytest.raises(ValueError, match="freed before"):
        memoryview(pinned)
    assert bytes(view) == b"abc"
    view.release()
    store.pin_mut(key).release()
    store.free(key)


def test_an_array_outlives_store_and_pin(store):
    array = np.frombuffer(store.pin(store.insert(value_of(9000))), np.uint8)
    del store
    gc.collect()
    assert array.tobytes() == value_of(9000)


def test_stores_refuse_with_their_values(store):
    for wrong in (b"", bytes((2 << 20) + 1)):
        with pytest.raises(errors.BadArgument, match="1 to 2097152"):
            store.insert(wrong)
    pins = [store.pin(store.insert(bytes(64 << 10))) for _ in range(4)]
    with pytest.raises(errors.Budget) as refused:
        store.insert(bytes(64 << 10))
    assert refused.value.budget == 256 << 10 >= refused.value.pinned
    [pin.release() for pin in pins]
    with pytest.raises(errors.Stale):
        Store(1 << 20).pin(store.insert(b"x"))
    with pytest.raises(errors.BadArgument):
        Store(0)


def test_hints_and_death(store, tmp_path):
    key = store.insert(b"abc")
    store.cold(key)
    store.will_need(key)
    store.dead(key)
    with pytest.raises(errors.Stale):
        store.pin(key)
    store.free(key)
    assert store.stats()["created_pages" if "created_pages" in store.stats() else "created"] > 0
    with_file = Store(64 << 10, pool_limit=1 << 20, capacity=64 << 20, file_in=tmp_path)
    noise = random.Random(1)
    values = [noise.randbytes(60_000) for _ in range(60)]
    keys = [with_file.insert(value) for value in values]
    assert all(with_file.take(key) == value for key, value in zip(keys, values))


SIZES = (1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - PAGE, (1 << 64) - 1, 1 << 64, -1)


@pytest.mark.parametrize("size", SIZES)
def test_every_size_is_refused_by_an_exception(reserve, tmp_path, size):
    buffer = VolatileBuffer(PAGE)
    calls = {
        "Reserve": lambda: glebe.Reserve(size),
        "Reserve room": lambda: glebe.Reserve(1 << 20, source="plain", room=size),
        "grow": lambda: reserve.grow(size),
        "shrink": lambda: reserve.shrink(size),
        "alloc": lambda: reserve.alloc(size),
        "alloc bytes": lambda: reserve.alloc(bytes=size),
        # Every power of two is an alignment of the first page.
        "alloc align": lambda: reserve.alloc(1, align=size if size & (size - 1) else 3),
        "promise": lambda: reserve.promise(size),
        "locate": lambda: reserve.alloc(1).locate(size),
        "contig": lambda: glebe.contig(size),
        "contig run": lambda: glebe.contig(PAGE, source="plain", require_run=size),
        "Store capacity": lambda: Store(1 << 20, capacity=size),
        "VolatileBuffer": lambda: VolatileBuffer(size),
        "mark": lambda: buffer.mark(0, size),
        "mark from": lambda: buffer.mark(size),
        "unmark": lambda: buffer.unmark(0, size),
        "drop_marked": lambda: buffer.drop_marked(0, size),
        "read": lambda: buffer.read(0, size),
        "read from": lambda: buffer.read(size, 1),
        "write": lambda: buffer.write(size, b"x"),
        "volatile_cache": lambda: volatile_cache(size)(lambda n: np.zeros(n, np.uint8))(1),
    }
    for name, call in calls.items():
        try:
            call()
        except (errors.Error, OverflowError, ValueError):
            continue
        pytest.fail(f"{name} took {size}")
    # A store accepts any budget and limit, because it takes no memory for them yet.
    for budget, limits in (
        (size, {}),
        (1 << 20, {"pool_limit": size}),
        (1 << 20, {"file_in": tmp_path, "file_limit": size}),
    ):
        if not 0 <= size < 1 << 64:
            with pytest.raises(OverflowError):
                Store(budget, **limits)
            continue
        store = Store(budget, **limits)
        assert store.take(store.insert(b"x")) == b"x"
