"""glebe.cuda with a runtime that needs no GPU and checks each call: fake_cudart.c."""

import ctypes
import gc
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import glebe
from conftest import PAGE, SECONDS, take
from glebe import errors
from glebe._pieces import Pieces
from glebe.cuda import PinnedPool, Registration, register
from glebe.volatile import VolatileBuffer

MIB = 1 << 20
SMALL = 16 * PAGE  # of such pieces there are so many that no machine registers all of them soon
SOURCE = pathlib.Path(__file__).with_name("fake_cudart.c")


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Returns the path of the compiled library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("skipped: no C compiler")
    path = tmp_path_factory.mktemp("cuda") / "libfake.so"
    words = [compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-pthread"]
    subprocess.run([*words, "-Wl,-soname,libcudart.so.12", "-o", path, SOURCE], check=True)
    return path


@pytest.fixture
def fake(built, tmp_path):
    """Returns a runtime of the test's own, and checks at the end that nothing is left."""
    path = tmp_path / f"{tmp_path.name}.so"
    shutil.copy(built, path)
    library = ctypes.CDLL(str(path))
    library.path = str(path)
    library.fake_length.restype = ctypes.c_size_t
    library.fake_start.restype = ctypes.c_void_p
    library.fake_is_registered.argtypes = ctypes.c_void_p, ctypes.c_size_t
    yield library
    gc.collect()
    wait_until(lambda: library.fake_count() == 0)
    assert library.fake_violations() == 0
    assert library.fake_pending() == 0, "an error is left for a later call of the thread"


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "60 s have passed"
        time.sleep(0.001)


def ranges(fake):
    """Returns address and length of each registered range, in the order of the calls."""
    return [(fake.fake_start(n), fake.fake_length(n)) for n in range(fake.fake_count())]


def test_a_reserve_is_registered_piece_by_piece(fake, reserve):
    seen = []
    total = len(reserve)
    with register(
        reserve, piece=MIB, library=fake.path, progress=lambda *now: seen.append(now)
    ) as registered:
        assert registered.wait() is True
        assert registered.ready == registered.total == total and registered.error is None
        assert registered.piece == MIB and "16777216 of 16777216" in repr(registered)
        found = ranges(fake)
        assert found[0][0] == registered.address and sum(length for _, length in found) == total
        assert all(one + length == other for (one, length), (other, _) in zip(found, found[1:]))
        assert all(length == MIB for _, length in found[1:-1]) and len(found) in (16, 17)
        assert fake.fake_most_registering() == 1 and fake.fake_relaxed() == 1
        wait_until(lambda: len(seen) == len(found))
        assert seen[-1] == (total, total) and seen == sorted(seen)
    assert fake.fake_count() == 0 and registered.ready == 0
    registered.close()
    with pytest.raises(ValueError, match="closed before"):
        registered.wait()


def test_a_piece_that_is_waited_for_comes_next_and_is_usable_at_once(fake, reserve):
    fake.fake_delay_us(20_000)
    with register(reserve, piece=SMALL, library=fake.path) as registered:
        assert registered.wait(timeout=0) is False
        edge = 240 * SMALL + (registered.wait(0, 1) and first_edge(fake))
        assert registered.wait(edge - PAGE, 2 * PAGE) is True
        for offset in (edge - PAGE, edge):
            assert fake.fake_is_registered(registered.address + offset, PAGE)
        assert 2 * SMALL <= registered.ready < len(reserve) // 2
        assert registered.wait(0, 1, timeout=60) is True


def first_edge(fake):
    return fake.fake_length(0) % SMALL


def test_other_parts_of_a_reserve_are_in_use_meanwhile(fake, reserve):
    fake.fake_delay_us(5_000)
    cache = reserve.cache("c")
    cache["k"] = bytes(MIB)
    with register(reserve, piece=MIB, library=fake.path) as registered:
        block = reserve.alloc(bytes=MIB, any=True)
        view = memoryview(block)
        view[:] = b"x" * MIB
        registered.wait()
        assert bytes(view) == b"x" * MIB
        cache["l"] = b"l" * MIB
        view.release()
        block.free()
        assert cache["l"] == b"l" * MIB


def test_a_failure_is_named_and_leaves_the_earlier_pieces(fake, reserve):
    fake.fake_fail_register(3, 2)
    with register(reserve, piece=MIB, library=fake.path) as registered:
        with pytest.raises(errors.Cuda) as failed:
            registered.wait()
        error = failed.value
        assert (error.call, error.code, error.length) == ("cudaHostRegister", 2, MIB)
        assert str(error) == (
            f"cudaHostRegister failed for the piece of {MIB} bytes at offset {error.offset}: "
            "out of memory (error 2)"
        )
        assert isinstance(error, RuntimeError) and registered.error.code == 2
        assert registered.ready == error.offset and fake.fake_count() == 2
        assert registered.wait(0, error.offset) is True
        with pytest.raises(errors.Cuda, match="out of memory"):
            registered.wait(error.offset, 1)
        registered.resume()
        assert registered.wait() is True and registered.ready == len(reserve)
        assert registered.error is None


def test_a_cancelled_registration_keeps_its_pieces_and_continues(fake, reserve):
    known = threading.Event()

    def progress(ready, total):
        known.wait()
        if ready <= MIB:
            registered.cancel()

    registered = register(reserve, piece=MIB, library=fake.path, progress=progress)
    known.set()
    with pytest.raises(errors.Error, match=f"cancelled: .* of {len(reserve)} bytes"):
        registered.wait()
    first = registered.ready
    assert registered.wait(0, first) is True and registered.error is None
    time.sleep(0.05)
    assert fake.fake_count() == 1 and registered.ready == first
    registered.resume()
    assert registered.wait() is True
    registered.close()


def test_a_close_waits_only_for_the_piece_under_way(fake, reserve):
    fake.fake_delay_us(20_000)
    registered = register(reserve, piece=SMALL, library=fake.path)
    registered.wait(0, PAGE)
    registered.close()
    assert fake.fake_count() == 0 and fake.fake_registers() < len(reserve) // SMALL


@pytest.mark.parametrize("work", [lambda reserve: reserve.close(), lambda reserve: None])
def test_the_end_of_a_reserve_ends_its_registration_first(fake, work):
    fake.fake_delay_us(5_000)
    with glebe.Reserve(8 << 20, source="plain") as reserve:
        block = reserve.alloc(1)
        registered = register(reserve, piece=MIB, library=fake.path)
        registered.wait(0, MIB)
        work(reserve)
    assert fake.fake_count() == 0
    with pytest.raises(ValueError, match="closed"):
        registered.wait()
    with pytest.raises(ValueError, match="closed"):
        register(reserve, library=fake.path)
    memoryview(block)[0] = 1


def test_contiguous_memory_is_registered_and_ends_its_registration(fake):
    memory = glebe.contig(4 << 20, source="plain")
    registered = register(memory, piece=MIB, library=fake.path)
    assert registered.wait() and ranges(fake)[0] == (memory.address, MIB)
    view = memoryview(memory)
    with pytest.raises(BufferError):
        memory.close()
    assert fake.fake_count() == 4, "a refused close changes nothing"
    view.release()
    memory.close()
    assert fake.fake_count() == 0 and registered.ready == 0


def test_an_exception_ends_the_registration(fake):
    with pytest.raises(KeyError):
        with glebe.Reserve(4 << 20, source="plain") as reserve:
            registered = register(reserve, piece=MIB, library=fake.path)
            registered.wait(0, MIB)
            raise KeyError
    assert fake.fake_count() == 0


def test_a_registered_reserve_keeps_its_length(fake):
    with glebe.Reserve(8 << 20, source="plain", room=16 << 20) as reserve:
        with register(reserve, library=fake.path) as registered:
            for call in (reserve.grow, reserve.shrink):
                with pytest.raises(ValueError, match="registered with a device"):
                    call(2 << 20)
            registered.wait()
        assert reserve.grow(2 << 20) == 10 << 20


def test_only_pages_with_memory_are_registered(fake):
    with glebe.Reserve(8 << 20, source="plain", room=32 << 20) as reserve:
        below = reserve.alloc(bytes=6 << 20, any=True)
        last = reserve.alloc(bytes=2 << 20, any=True)
        below.free()
        reserve.shrink(4 << 20)
        with register(reserve, piece=8 << 20, library=fake.path) as registered:
            assert registered.wait() and registered.total == len(reserve) == 4 << 20
            start = registered.address
            assert fake.fake_is_registered(last.address, len(last))
            assert sum(length for _, length in ranges(fake)) == 4 << 20
            offsets = [0, 2 << 20, 4 << 20, 6 << 20]
            gaps = [at for at in offsets if not fake.fake_is_registered(start + at, PAGE)]
            assert len(gaps) == 2
            for gap in gaps:
                with pytest.raises(errors.BadArgument, match="is not all in the memory"):
                    registered.wait(gap, PAGE)


def test_memory_is_registered_once(fake, reserve):
    with register(reserve, library=fake.path):
        with pytest.raises(ValueError, match="registered already"):
            register(reserve, library=fake.path)
    register(reserve, library=fake.path).close()


def test_a_registration_that_nobody_has_ends(fake, reserve):
    registered = register(reserve, piece=MIB, library=fake.path)
    registered.wait()
    del registered
    gc.collect()
    wait_until(lambda: fake.fake_count() == 0)
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "glebe.cuda"])
    register(reserve, library=fake.path).close()


def test_the_thread_uses_the_callers_device_and_the_caller_keeps_it(fake, reserve):
    assert fake.cudaSetDevice(2) == 0
    number = ctypes.c_int()
    with register(reserve, library=fake.path) as registered:
        registered.wait()
        assert fake.fake_device(0) == 2
    assert fake.fake_synchronizes(2) == 1
    with register(reserve, library=fake.path, devices=[3, 1]) as registered:
        registered.wait()
        assert fake.fake_device(0) == 3
    assert fake.fake_synchronizes(3) == fake.fake_synchronizes(1) == 1
    with PinnedPool(reserve, library=fake.path, devices=[3, 1]) as pool:
        pool.array(1)
        assert pool.settle() == PAGE
        assert fake.fake_synchronizes(3) == fake.fake_synchronizes(1) == 2
    assert fake.cudaGetDevice(ctypes.byref(number)) == 0 and number.value == 2


def test_a_device_that_cuda_does_not_know_is_refused_before_a_register(fake, reserve):
    for devices in ([9], [0, 9], [-1, 0]):
        with register(reserve, library=fake.path, devices=devices) as registered:
            with pytest.raises(errors.Cuda, match="cudaSetDevice failed: no CUDA-capable device"):
                registered.wait()
    assert fake.fake_registers() == 0


def test_no_thread_of_the_program_sets_a_device(fake, reserve, monkeypatch):
    with PinnedPool(reserve, library=fake.path, devices=[3, 1]) as pool:
        pool.array(1)
        before = fake.fake_sets()
        assert pool.settle() == PAGE and fake.fake_sets() == before
        pool.array(1)
        fake.fake_fail_synchronize(900)
        with pytest.raises(errors.Cuda, match="capturing"):
            pool.settle()
        fake.fake_fail_synchronize(0)
        assert fake.fake_sets() == before
    fake.cudaSetDevice(3)
    with PinnedPool(reserve, library=fake.path) as pool:
        pool.array(1)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", None)  # the device is current: needs no thread
            assert pool.settle() == PAGE
    number = ctypes.c_int()
    assert fake.cudaGetDevice(ctypes.byref(number)) == 0 and number.value == 3


def test_what_is_wrong_is_refused_and_registers_nothing(fake, reserve):
    for piece in (0, 1, PAGE - 1, 3 * PAGE, 1 << 39, -MIB):
        with pytest.raises(errors.BadArgument, match="a power of two"):
            register(reserve, piece=piece, library=fake.path)
        with pytest.raises(errors.BadArgument, match="a power of two"):
            PinnedPool(MIB, piece=piece, library=fake.path)
    for pause in (-1, float("nan"), float("inf")):
        with pytest.raises(errors.BadArgument, match="seconds"):
            register(reserve, pause=pause, library=fake.path)
    with pytest.raises(errors.BadArgument, match="at least one GPU"):
        register(reserve, devices=[], library=fake.path)
    for memory in (VolatileBuffer(PAGE), bytearray(PAGE), reserve.alloc(1), None):
        with pytest.raises(TypeError, match="only a Reserve or a Contig"):
            register(memory, library=fake.path)
    with register(reserve, library=fake.path) as registered:
        for wrong in ((-1, 1), (0, 0), (0, -1), (len(reserve), 1), (0, 1 << 80), (1 << 80, 1)):
            with pytest.raises(errors.BadArgument):
                registered.wait(*wrong)
        with pytest.raises(errors.BadArgument):
            registered.wait(len(reserve))


def test_a_missing_runtime_is_named(run, reserve, tmp_path):
    path = str(tmp_path / "libcudart.so.99")
    with pytest.raises(errors.Unsupported, match="libcudart.so.99, cannot be loaded.*library="):
        register(reserve, library=path)
    with pytest.raises(errors.Unsupported, match="lacks a function.*cudaHostRegister"):
        register(reserve, library="libc.so.6")
    said = run("""
import glebe.cuda
try:
    glebe.cuda.PinnedPool(1 << 40)
except glebe.errors.Unsupported as error:
    print(error)
except (glebe.errors.Cuda, glebe.errors.NoMemory):
    print("there is one")
""")
    if said.strip() == "there is one":
        pytest.skip("this machine has a CUDA runtime")
    assert "libcudart.so or libcudart.so.13 or libcudart.so.12" in said


def test_the_runtime_that_is_loaded_already_is_used(run, built, tmp_path, monkeypatch):
    shutil.copy(built, tmp_path / "libcudart.so.13")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    program = """
import ctypes, sys
import glebe.cuda
loaded = ctypes.CDLL(sys.argv[1])
reserve = glebe.Reserve(1 << 20, source="plain")
with glebe.cuda.register(reserve) as registered:
    assert registered.wait()
    assert loaded.fake_count() == 1, "a runtime that nobody has loaded"
"""
    run(program, str(built))
    run(program, str(tmp_path / "libcudart.so.13"))


def test_a_library_that_is_no_runtime_is_passed_over(run, built, tmp_path, monkeypatch):
    compiler = shutil.which("cc") or shutil.which("gcc")
    words = [compiler, "-shared", "-x", "c", "/dev/null", "-o", tmp_path / "libcudart.so"]
    subprocess.run(words, check=True)
    shutil.copy(built, tmp_path / "libcudart.so.12")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    run("""
import glebe.cuda
with glebe.cuda.register(glebe.Reserve(1 << 20, source="plain")) as registered:
    assert registered.wait()
""")


def test_an_unregister_that_fails_keeps_the_memory(fake):
    reserve = glebe.Reserve(4 << 20, source="plain")
    registered = register(reserve, piece=MIB, library=fake.path)
    registered.wait()
    fake.fake_fail_unregister(1, 1)
    with pytest.raises(errors.Cuda, match="cudaHostUnregister failed.*invalid argument") as failed:
        reserve.close()
    assert 0 < failed.value.length <= MIB
    assert fake.fake_count() == 1 and reserve.largest_run() > 0
    assert registered.ready == failed.value.length
    registered.resume()
    assert registered.wait() and registered.ready == len(reserve)
    reserve.close()
    assert fake.fake_count() == 0


@pytest.mark.parametrize("code", [4, 713])
def test_an_unregister_of_what_is_gone_is_no_dangling_one(fake, reserve, code):
    registered = register(reserve, library=fake.path)
    registered.wait()
    fake.fake_fail_unregister(1, code)
    registered.close()
    assert registered.ready == 0
    reserve.alloc(1).free()
    fake.fake_forget()


def test_a_close_waits_for_the_gpu_and_unregisters_nothing_if_it_cannot(fake, reserve):
    registered = register(reserve, library=fake.path)
    registered.wait()
    fake.fake_fail_synchronize(900)
    with pytest.raises(errors.Cuda, match="cudaDeviceSynchronize failed.*capturing"):
        registered.close()
    assert fake.fake_count() == 1
    fake.fake_fail_synchronize(0)
    registered.close()


def test_a_progress_function_may_raise_but_not_close_or_wait(fake, reserve):
    known, called = threading.Event(), []

    def progress(ready, total):
        known.wait()
        called.append(ready)
        for call in (registered.close, registered.wait, reserve.close):
            with pytest.raises(RuntimeError, match="a progress function cannot"):
                call()
        raise KeyError("stop")

    registered = register(reserve, piece=MIB, library=fake.path, progress=progress)
    known.set()
    with pytest.raises(errors.Error, match="the registration stopped: KeyError") as failed:
        registered.wait()
    assert isinstance(failed.value.__cause__, KeyError) and len(called) == 1
    registered.close()


def test_a_thread_that_cannot_start_or_work_leaves_nothing(fake, reserve, monkeypatch):
    def fails(*_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        with pytest.raises(RuntimeError, match="new thread"):
            register(reserve, library=fake.path)
    for name in ("_register", "_end"):
        right = getattr(Pieces, name)

        def sometimes(self, *rest, right=right, left=[1]):
            if left:
                raise MemoryError(left.pop())
            return right(self, *rest)

        monkeypatch.setattr(Pieces, name, sometimes)
    registered = register(reserve, library=fake.path)
    with pytest.raises(errors.Error, match="the registration stopped: MemoryError"):
        registered.wait()
    registered.resume()
    assert registered.wait() is True
    with pytest.raises(errors.Error, match="did not end: MemoryError"):
        registered.close()
    assert fake.fake_count() == 1
    registered.close()


def test_a_pause_is_kept_and_a_close_does_not_wait_for_it(fake, reserve):
    begin = time.monotonic()
    registered = register(reserve, piece=4 * MIB, pause=0.05, library=fake.path)
    while not registered.wait(timeout=0):
        time.sleep(0.001)
    assert time.monotonic() - begin > 0.14
    registered.close()
    registered = register(reserve, piece=4 * MIB, pause=1000, library=fake.path)
    registered.wait(0, 1)
    registered.close()


# The pool.


@pytest.fixture
def pool(fake):
    with PinnedPool(64 << 20, source="plain", piece=4 * MIB, library=fake.path) as pool:
        pool.fake = fake
        yield pool


def test_arrays_lie_in_one_registered_piece_each(pool):
    kept, generator = [], random.Random(7)
    for _ in range(300):
        length = generator.choice((1, PAGE, PAGE + 1, 3 * PAGE, MIB, 3 * MIB, 4 * MIB))
        try:
            array = pool.array(length)
        except glebe.NoRun:
            kept.pop(generator.randrange(len(kept)))
            continue
        assert array.nbytes == length and array.flags.writeable
        assert pool.fake.fake_is_registered(array.ctypes.data, length)
        kept.append(array)
        if generator.random() < 0.5:
            kept.pop(generator.randrange(len(kept)))
    assert len(kept) > 3
    for number, array in enumerate(kept):
        array[:] = number
    assert all((array == number % 256).all() for number, array in enumerate(kept))


def test_arrays_have_shape_type_and_zeros(pool):
    pool.array(4 * MIB)[:] = 7
    pool.settle()
    array = pool.array((3, 4), np.float32, zeroed=True)
    assert array.shape == (3, 4) and array.dtype == np.float32 and not array.any()
    assert pool.array(np.int64(5)).shape == (5,) and pool.array([2, 2], "i8").nbytes == 32
    assert pool.array(()).shape == ()
    for wrong in (0, (3, 0), 4 * MIB + 1, 1 << 70):
        with pytest.raises(errors.BadArgument, match="a piece of 4194304 bytes"):
            pool.array(wrong)
    for wrong in (-1, (-1, -1), (2, -1)):
        with pytest.raises(errors.BadArgument, match="below zero"):
            pool.array(wrong)
    with pytest.raises(TypeError, match="Python objects"):
        pool.array(3, object)


def test_memory_of_a_dead_array_rests_until_the_gpu_has_settled(pool):
    array = pool.array(4 * MIB)
    address, view = array.ctypes.data, array[5:6]
    del array
    gc.collect()
    assert pool.resting == 0, "a view uses the memory"
    del view
    gc.collect()
    assert pool.resting == 4 * MIB
    others = [pool.array(4 * MIB) for _ in range(3)]
    assert address not in [other.ctypes.data for other in others]
    cache = pool.cache("between")
    free = pool.reserve.stats()["free_pages"]
    assert pool.fake.fake_synchronizes(0) == 0
    assert pool.settle() == 4 * MIB and pool.resting == 0 and pool.settle() == 0
    assert pool.fake.fake_synchronizes(0) == 1
    assert pool.reserve.stats()["free_pages"] == free + 4 * MIB // PAGE
    assert cache.put("k", bytes(30 * MIB))


def test_an_array_that_finds_no_memory_settles_what_rests(pool):
    for _ in range(100):
        assert pool.array(4 * MIB).nbytes == 4 * MIB
    assert pool.fake.fake_synchronizes(0) > 0
    kept = [pool.array(4 * MIB)]
    with pytest.raises(glebe.NoRun):
        while True:
            kept.append(pool.array(4 * MIB))
    assert len(kept) in (15, 16)


def test_memory_keeps_resting_if_the_gpu_cannot_be_waited_for(pool):
    pool.array(MIB)
    pool.fake.fake_fail_synchronize(900)
    with pytest.raises(errors.Cuda, match="stream is capturing"):
        pool.settle()
    assert pool.resting == MIB
    pool.fake.fake_fail_synchronize(0)
    assert pool.settle() == MIB


@pytest.mark.parametrize("devices", [[0], [1]], ids=["current", "other"])
def test_the_error_of_a_settle_keeps_no_memory(fake, reserve, devices):
    gc.collect()
    gc.disable()
    try:
        with PinnedPool(reserve, library=fake.path, devices=devices) as pool:
            free = reserve.stats()["free_pages"]
            pool.array(4 * MIB)
            fake.fake_fail_synchronize(900)
            with pytest.raises(errors.Cuda, match="capturing") as raised:
                pool.settle()
            fake.fake_fail_synchronize(0)
            assert pool.settle() == 4 * MIB
            assert reserve.stats()["free_pages"] == free, "the traceback has the block"
            error = weakref.ref(raised.value)
            del raised
            assert error() is None, "the error keeps itself"
    finally:
        gc.enable()


def test_a_pool_is_not_closed_under_its_arrays(pool):
    array = pool.array(MIB)
    for close in (pool.close, pool.reserve.close):
        with pytest.raises(BufferError, match="1 arrays or tensors of the pool exist"):
            close()
    assert pool.fake.fake_is_registered(array.ctypes.data, MIB)
    del array
    pool.close()
    assert pool.fake.fake_count() == 0
    with pytest.raises(ValueError, match="closed"):
        pool.array(1)


def test_arrays_keep_a_pool_that_nobody_has(fake):
    pool = PinnedPool(8 << 20, source="plain", piece=MIB, library=fake.path)
    array = pool.array(MIB)
    del pool
    gc.collect()
    array[:] = 5
    assert fake.fake_is_registered(array.ctypes.data, MIB)
    del array
    gc.collect()
    wait_until(lambda: fake.fake_count() == 0)


def test_an_exception_closes_a_pool_when_its_last_array_dies(fake):
    with pytest.raises(KeyError):
        with PinnedPool(8 << 20, source="plain", piece=MIB, library=fake.path) as pool:
            array = pool.array(MIB)
            raise KeyError
    assert fake.fake_is_registered(array.ctypes.data, MIB)
    del array
    wait_until(lambda: fake.fake_count() == 0)


def test_blocks_of_a_pool_are_freed_at_once(pool):
    free = pool.reserve.stats()["free_pages"]
    with pool.block(2 * MIB - 1, zeroed=True) as block:
        assert len(block) == 2 * MIB and not any(memoryview(block)[:PAGE])
        assert pool.fake.fake_is_registered(block.address, 2 * MIB)
        assert pool.reserve.stats()["free_pages"] == free - 2 * MIB // PAGE
    assert pool.reserve.stats()["free_pages"] == free and pool.resting == 0


def test_the_end_of_a_pool_ends_its_caches(fake):
    pool = PinnedPool(8 << 20, source="plain", piece=MIB, library=fake.path)
    cache = pool.cache("c")
    cache["k"] = b"v"
    pool.close()
    with pytest.raises(ValueError, match="the reserve was closed"):
        cache["k"]


def test_a_pool_of_a_given_reserve_leaves_it_open(fake, reserve):
    with PinnedPool(reserve, piece=MIB, library=fake.path) as pool:
        assert pool.reserve is reserve and isinstance(pool, Registration)
        pool.array(MIB)[:] = 1
        block = take(reserve, 0.5)
        assert pool.wait(block.address - pool.address, len(block))
        block.free()
    assert reserve.alloc(1).pages == 1


def test_a_pool_frees_the_block_whose_piece_cannot_be_registered(fake):
    fake.fake_fail_register(2, 2)
    with PinnedPool(8 << 20, source="plain", piece=2 * MIB, library=fake.path) as pool:
        kept = []
        with pytest.raises(errors.Cuda, match="out of memory"):
            while True:
                kept.append(pool.array(PAGE))
        free = pool.reserve.stats()["free_pages"]
        assert free == pool.total // PAGE - len(kept)
        pool.resume()
        kept.append(pool.array(PAGE))
        kept.clear()


def test_threads_take_arrays_while_pieces_are_registered(fake):
    fake.fake_delay_us(300)
    pool = PinnedPool(32 << 20, source="plain", piece=MIB, library=fake.path)
    wrong, until = [], time.monotonic() + SECONDS

    def work(seed):
        generator = random.Random(seed)
        try:
            while time.monotonic() < until:
                array = pool.array(generator.choice((PAGE, 5 * PAGE, MIB // 2)))
                array[:] = seed
                if not fake.fake_is_registered(array.ctypes.data, array.nbytes):
                    wrong.append("not registered")
                if not (array == seed).all():
                    wrong.append("another thread's bytes")
                if generator.random() < 0.1:
                    pool.settle()
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert wrong == []
    pool.close()


def test_a_close_beside_threads_that_take_arrays(fake):
    for _ in range(20):
        pool = PinnedPool(4 << 20, source="plain", piece=MIB, library=fake.path)
        wrong = []

        def work():
            try:
                while True:
                    array = pool.array(PAGE)
                    if not fake.fake_is_registered(array.ctypes.data, PAGE):
                        wrong.append("an array in memory that is not registered")
                    del array
            except ValueError as error:
                if "closed" not in str(error):
                    wrong.append(error)
            except Exception as error:
                wrong.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        [thread.start() for thread in threads]
        for _ in range(1000):
            try:
                pool.close()
                break
            except BufferError:
                time.sleep(0.001)
        else:
            wrong.append("never closed")
        [thread.join() for thread in threads]
        assert wrong == [] and fake.fake_count() == 0


def test_a_tensor_is_an_array_of_pytorch(pool):
    torch = pytest.importorskip("torch", reason="skipped: torch is not installed")
    tensor = pool.tensor((2, 3), torch.bfloat16, zeroed=True)
    assert tensor.shape == (2, 3) and tensor.dtype == torch.bfloat16 and not tensor.any()
    assert pool.fake.fake_is_registered(tensor.data_ptr(), 12)
    assert pool.tensor(5).dtype == torch.get_default_dtype()
    del tensor
    gc.collect()
    assert pool.resting > 0


def test_the_examples_of_the_page_run(pool):
    page = pathlib.Path(__file__).parents[3] / "docs" / "gpu.md"
    if not page.exists():
        pytest.skip(f"skipped: no {page}")
    examples = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    ran = [text for text in examples if "import torch" not in text]
    assert len(ran) == 1 and len(examples) == 2
    exec(compile(ran[0], str(page), "exec"), {"pool": pool})
    assert pool.wait() is True


# The end of a process, and forks.

HEAD = """
import os, sys, time
import numpy as np
import glebe
from glebe import errors
from glebe._pieces import Pieces
from glebe.cuda import PinnedPool, register
library, log = sys.argv[1:]
os.environ["FAKE_LOG"] = log
import ctypes
fake = ctypes.CDLL(library)
"""


def calls(log):
    """Returns the words of each line: the call, and the process that made it."""
    return [line.split()[:2] for line in pathlib.Path(log).read_text().splitlines()]


ENDS = {
    "return": "",
    "exception": "raise KeyError",
    "exit": "sys.exit(3)",
    "array": "array = pool.array(4096)",
    "cycle": "array = [pool.array(4096)]; array.append(array)",
    "cancel": "pool.cancel()",
    "closed": "pool.close()",
}


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_the_program_unregisters_all(built, tmp_path, end):
    log = tmp_path / "log"
    program = HEAD + f"""
fake.fake_delay_us(5000)
pool = PinnedPool(64 << 20, source="plain", piece=32 << 10, library=library)
pool.wait(0, 1)
{ENDS[end]}
"""
    words = [sys.executable, "-c", program, str(built), str(log)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == {"exception": 1, "exit": 3}.get(end, 0), done.stderr
    assert "KeyError" in done.stderr if end == "exception" else done.stderr == ""
    made = [call for call, _ in calls(log)]
    assert made.count("register") == made.count("unregister") > 0
    assert made.count("register") < 2048 and made[-1] == "left"
    assert log.read_text().splitlines()[-1].endswith(" 0")


def test_a_child_makes_no_call_and_the_parent_goes_on(run, built, tmp_path):
    log = tmp_path / "log"
    run(HEAD + """
fake.fake_delay_us(1000)
pool = PinnedPool(16 << 20, source="plain", piece=1 << 20, library=library)
array, dying = pool.array(4096), pool.array(4096)
array[:] = 9
dropped = register(glebe.Reserve(1 << 20, source="plain"), library=library)
def child():
    global pool, dying, dropped
    for call in (pool.wait, pool.cancel, pool.resume, pool.settle, lambda: pool.ready,
                 lambda: pool.array(1), lambda: pool.block(1), lambda: pool.resting,
                 lambda: register(pool.reserve, library=library),
                 lambda: PinnedPool(pool.reserve, library=library)):
        try:
            call()
        except errors.Forked:
            continue
        os._exit(9)
    if fake.fake_violations():
        os._exit(8)
    dying = dropped = None
    pool.close()
    pool.reserve.close()
    pool = None
    sys.exit(7)
import signal, threading
held, done = threading.Event(), threading.Event()
def hold():
    with pool._pieces._changed, dropped._pieces._changed:
        held.set()
        done.wait()
def fork():
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        child()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
for _ in range(4):
    fork()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
fork()
done.set()
thread.join()
assert pool.wait() and (array == 9).all()
assert fake.fake_violations() == 0
""", str(built), str(log))
    by = {process for _, process in calls(log)}
    assert len(by) == 1 and calls(log)[-1][0] == "left"
