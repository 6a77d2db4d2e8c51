"""Forked children: clear errors, no signal, and no wait for a thread of the parent."""

import pytest

HEAD = """
import os, sys, warnings
import numpy as np
import glebe
from glebe import errors
from glebe.swap import Store
from glebe.volatile import VolatileBuffer, volatile_cache

def in_child(body):
    pid = os.fork()
    if pid == 0:
        try:
            body()
            os._exit(0)
        except BaseException as error:
            print("child:", repr(error), flush=True)
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert status == 0, f"the child ended with {status}"

def forked(call):
    try:
        call()
    except errors.Forked:
        return
    raise AssertionError("not refused")
"""


def test_every_call_on_a_reserve_is_refused_in_a_child(run):
    run(HEAD + """
reserve = glebe.Reserve(4 << 20, source="plain")
cache, block, promise = reserve.cache("c"), reserve.alloc(1), reserve.promise(1)
cache["k"] = b"v"
def child():
    for call in (lambda: reserve.alloc(1), reserve.largest_run, promise.take, lambda: cache["k"],
                 lambda: cache.put("k", b"w"), lambda: len(cache), lambda: memoryview(block),
                 lambda: cache.pop("k"), cache.clear, lambda: reserve.cache("d")):
        forked(call)
    block.free()
    reserve.close()
in_child(child)
assert cache["k"] == b"v"
promise.take()
""")


def test_every_look_at_the_pages_of_contiguous_memory_is_refused_in_a_child(run):
    run(HEAD + """
memory = glebe.contig(4 << 20, source="plain")
runs, nodes = memory.runs(), memory.nodes()
def child():
    for call in (memory.runs, memory.nodes, memory.verify, lambda: memoryview(memory),
                 lambda: memory._register(print)):
        forked(call)
    assert len(memory) == 4 << 20
    memory.close()
in_child(child)
assert (memory.runs(), memory.nodes()) == (runs, nodes)
memory.close()
""")


MEMORIES = ["reserve.alloc(600, any=True)", "glebe.contig(4 << 20, source='plain')"]


@pytest.mark.parametrize("make", MEMORIES)
def test_arrays_of_contiguous_memory_read_zeros_in_a_child_and_a_warning_says_so(run, make):
    said = run(HEAD + f"""
reserve = glebe.Reserve(4 << 20, source="plain")
memory = {make}
array = np.frombuffer(memory, np.uint8)
array[:] = 7
other = np.frombuffer(reserve.alloc(1), np.uint8)
def child():
    assert not array.any() and not other.any()
    array[:] = 1
    assert int(array.sum()) == array.size
in_child(child)
in_child(lambda: in_child(child) or None)
assert (array == 7).all()
del array, other
memory.close() if hasattr(memory, "close") else memory.free()
""")
    assert "RuntimeWarning" in said and "read as zeros in this forked process" in said


def test_no_array_no_warning(run):
    said = run(HEAD + """
reserve = glebe.Reserve(4 << 20, source="plain")
memoryview(reserve.alloc(1)).release()
in_child(lambda: None)
""")
    assert "Warning" not in said


def test_volatile_memory_is_a_copy_in_a_child(run):
    run(HEAD + """
page = glebe.PAGE_BYTES
buffer = VolatileBuffer(64 * page)
np.frombuffer(buffer, np.uint8)[:] = 3
buffer.mark()
buffer.drop_marked(0, page)
def child():
    assert buffer.unmark()[0] == (0, 1)
    array = np.frombuffer(buffer, np.uint8)
    array[:] = 4
    del array
    buffer.mark()
in_child(child)
array = None
def held():
    with buffer.held() as lost:
        assert lost == [(0, 1)], lost
        array = np.frombuffer(buffer, np.uint8)
        assert (array[page:] == 3).all()
        in_child(lambda: array.fill(9))
        assert (array[page:] == 3).all()
held()
@volatile_cache(1 << 20, hot=0)
def make(n):
    return np.full(5000, n, np.uint8)
kept = make(1)
in_child(lambda: (kept.sum(), make(1).sum(), make(2).sum(), make.drop_unused(), make(2).sum()))
assert make(1)[0] == 1
""")


def test_a_child_uses_a_volatile_buffer_that_threads_of_its_parent_were_at(run):
    run(HEAD + """
import signal, threading
page = glebe.PAGE_BYTES
buffer, stop, inside = VolatileBuffer(16 << 20), threading.Event(), threading.Barrier(2)
np.frombuffer(buffer, np.uint8)[::page] = 5
buffer.mark()
def use():
    while not stop.is_set():
        with buffer.held():
            pass
def hold():
    with buffer.held():
        inside.wait()
        stop.wait()
def child():
    signal.alarm(20)
    for _ in range(3):
        with buffer.held() as lost:
            assert lost == [] and np.frombuffer(buffer, np.uint8)[::page].all()
        assert buffer.marked == len(buffer)
    buffer.drop_marked(0, page)
    assert buffer.unmark() == [(0, 1)] and buffer.read(0, 1) == b"\\0"
    buffer.mark()
    own = VolatileBuffer(page)
    with own.held():
        pass
    assert own.marked == page
def forks(work, count):
    stop.clear()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    if work is hold:
        inside.wait()
    for _ in range(count):
        in_child(child)
    stop.set()
    thread.join()
forks(use, 20)
forks(hold, 2)
with buffer.held():
    def grandchild():
        try:
            buffer.mark()
        except BufferError as refused:
            assert "1 held" in str(refused)
            in_child(lambda: buffer.marked == 0 or os._exit(2))
            return
        raise AssertionError("a block of the forking thread is forgotten")
    in_child(grandchild)
""")


def test_a_child_makes_volatile_buffers_while_threads_of_its_parent_do(run):
    run(HEAD + """
import signal, threading
stop = threading.Event()
def make():
    while not stop.is_set():
        buffer = VolatileBuffer(1 << 20)
        buffer.mark()
        buffer.unmark()
threads = [threading.Thread(target=make, daemon=True) for _ in range(2)]
[thread.start() for thread in threads]
def child():
    signal.alarm(20)
    for _ in range(3):
        buffer = VolatileBuffer(1 << 20)
        buffer.mark()
        assert buffer.unmark() == []
for _ in range(20):
    in_child(child)
stop.set()
[thread.join() for thread in threads]
""")


def test_a_call_under_way_in_the_parent_is_not_waited_for_in_a_child(run):
    run(HEAD + """
import signal, threading
begun, go = threading.Event(), threading.Event()
@volatile_cache(1 << 20)
def make(n):
    begun.set()
    go.wait()
    return np.full(10, n, np.uint8)
thread = threading.Thread(target=make, args=(4,))
thread.start()
begun.wait()
def child():
    signal.alarm(20)
    go.set()
    assert make(4)[0] == 4
in_child(child)
go.set()
thread.join()
""")


def test_pinned_objects_are_copies_in_a_child(run):
    run(HEAD + """
store = Store(1 << 20)
key = store.insert(b"abc" * 1000)
pinned = store.pin_mut(key)
array = np.frombuffer(pinned, np.uint8)
def child():
    global array, pinned
    array[:] = 1
    forked(lambda: store.insert(b"x"))
    forked(lambda: store.free(key))
    del array
    pinned.release()
in_child(child)
del array
pinned.release()
assert store.take(key) == b"abc" * 1000
""")


def test_forks_beside_threads_that_work(run):
    run(HEAD + """
import threading
reserve = glebe.Reserve(8 << 20, source="plain")
cache, buffer = reserve.cache("c"), VolatileBuffer(1 << 20)
stop = threading.Event()
def put():
    while not stop.is_set():
        cache["k"] = bytes(1 << 20)
        cache.get("k")
def mark():
    while not stop.is_set():
        with buffer.held():
            pass
threads = [threading.Thread(target=call) for call in (put, put, mark)]
[thread.start() for thread in threads]
def child():
    import signal
    signal.alarm(20)
    forked(lambda: cache.get("k"))
    with buffer.held():
        assert not np.frombuffer(buffer, np.uint8).any()
for _ in range(40):
    in_child(child)
stop.set()
[thread.join() for thread in threads]
""")


def test_a_pin_of_a_dead_object_ends_in_a_child_while_threads_use_the_store(run):
    run(HEAD + """
import signal, tempfile, threading
MIB = 1 << 20
CHILDREN = 150
store = Store(MIB, pool_limit=MIB, capacity=64 * MIB, file_in=tempfile.gettempdir(),
              file_limit=64 * MIB)
stop = threading.Event()
def busy():
    keys = []
    while not stop.is_set():
        keys.append(store.insert(os.urandom(512)))
        if len(keys) > 3000:
            for key in keys[::2]:
                store.free(key)
            del keys[::2]
mine = [store.insert(os.urandom(4096)) for _ in range(CHILDREN)]
failed = []
def work():
    try:
        busy()
    except BaseException as error:
        failed.append(error)
threads = [threading.Thread(target=work) for _ in range(2)]
[thread.start() for thread in threads]
for key in mine:
    pinned = store.pin(key)
    store.dead(key)
    def child():
        signal.alarm(20)
        pinned.release()
    in_child(child)
    pinned.release()
    store.free(key)
stop.set()
[thread.join() for thread in threads]
assert not failed, failed
""")
