"""VolatileBuffer and volatile_cache: no array has memory that may vanish."""

import contextlib
from array import array as plain_array
import gc
import threading

import numpy as np
import pytest

from conftest import PAGE, SECONDS, check_array
from glebe import errors
from glebe.volatile import VolatileBuffer, volatile_cache


@pytest.fixture
def buffer():
    return VolatileBuffer(64 * PAGE)


def test_what_is_lost_is_told_and_the_rest_stays(buffer):
    np.frombuffer(buffer, np.uint8)[:] = 5
    gc.collect()
    buffer.mark()
    assert buffer.marked == len(buffer)
    assert buffer.drop_marked(3 * PAGE, 5 * PAGE) == 2 * PAGE
    assert buffer.read(2 * PAGE, 4) == b"\5" * 4 and buffer.read(3 * PAGE, 1) is None
    assert buffer.read(3 * PAGE - 1, 2) is None
    assert buffer.unmark() == [(3, 2)]
    array = np.frombuffer(buffer, np.uint8).reshape(64, PAGE)
    lost = [bool((page == 0).all()) for page in array]
    assert lost == [n in (3, 4) for n in range(64)]
    assert (array[5:] == 5).all() and (array[:3] == 5).all()


def test_marked_memory_is_no_buffer(buffer):
    buffer.mark(PAGE, 2 * PAGE)
    for export in (memoryview, np.frombuffer, bytes):
        with pytest.raises(BufferError, match="may vanish"):
            export(buffer)
    with pytest.raises(errors.BadArgument, match="marked"):
        buffer.write(PAGE, b"x")
    buffer.write(0, b"x")
    assert buffer.unmark(PAGE, 2 * PAGE) == []
    assert bytes(memoryview(buffer)[:2]) == b"x\0"


def test_a_view_of_the_buffer_is_written_to_the_buffer_as_it_was(buffer):
    given = bytes(range(256)) * (len(buffer) // 256)
    for length, to in [(100, 1), (2 * PAGE, PAGE), (16 * PAGE, 8)]:
        buffer.write(0, given)
        buffer.write(to, memoryview(buffer)[:length])
        assert buffer.read(to, length) == given[:length]


def test_exported_memory_cannot_be_marked(buffer):
    array = np.frombuffer(buffer, np.uint8)
    with pytest.raises(BufferError, match="1 arrays or views"):
        buffer.mark()
    assert buffer.marked == 0
    del array
    with buffer.held():
        with pytest.raises(BufferError, match="1 held"):
            buffer.mark(0, PAGE)
    assert buffer.marked == len(buffer)


def test_held_marks_afterwards_once_no_array_is_left(buffer):
    with buffer.held() as lost:
        assert lost == []
        array = np.frombuffer(buffer, np.uint8)
        array[:] = 1
        view = array[5:10]
        del array
    assert buffer.marked == 0 and view.sum() == 5
    del view
    gc.collect()
    assert buffer.marked == len(buffer)
    buffer.drop_marked()
    with buffer.held() as lost:
        assert lost == [(0, 64)]
        with buffer.held() as inner:
            assert inner == []
        assert buffer.marked == 0
        assert not np.frombuffer(buffer, np.uint8).any()
    assert buffer.marked == len(buffer)


def test_held_again_while_an_array_is_left_marks_at_the_last_end(buffer):
    with buffer.held():
        array = np.frombuffer(buffer, np.uint8)
    with buffer.held():
        del array
        gc.collect()
        assert buffer.marked == 0
    assert buffer.marked == len(buffer)


def test_the_end_of_a_block_that_did_not_begin_is_nothing(buffer):
    buffer.held().__exit__(None, None, None)
    assert buffer.marked == 0


def test_ranges_are_checked(buffer):
    for start, stop in ((1, None), (0, 5), (PAGE, PAGE), (2 * PAGE, PAGE), (0, 65 * PAGE)):
        for call in (buffer.mark, buffer.unmark, buffer.drop_marked):
            with pytest.raises(errors.BadArgument):
                call(start, stop)
    for offset, length in ((64 * PAGE, 1), (1 << 63, 1), ((1 << 64) - 1, 5)):
        with pytest.raises(errors.BadArgument):
            buffer.read(offset, length)
        with pytest.raises(errors.BadArgument):
            buffer.write(offset, b"x" * length)
    assert buffer.read(64 * PAGE, 0) == b""
    with pytest.raises(errors.BadArgument):
        VolatileBuffer(0)
    with pytest.raises(errors.Error):
        VolatileBuffer(1 << 62)


def test_threads_hold_and_mark_without_a_wrong_byte(buffer):
    stop, wrong = threading.Event(), []
    lock = threading.Lock()

    def work():
        while not stop.is_set():
            # The lock keeps other threads from holding the memory, so this drop is a loss.
            with lock, dropped(), buffer.held() as lost:
                array = np.frombuffer(buffer, np.uint8).reshape(64, PAGE)
                for first, count in lost:
                    array[first : first + count] = 9
                if array[0, 0] == 0:
                    array[:] = 9
                if not (array == 9).all():
                    wrong.append(lost)
                del array

    def dropped():
        buffer.drop_marked(20 * PAGE, 24 * PAGE)
        return contextlib.nullcontext()

    def drop():
        while not stop.is_set():
            buffer.drop_marked(16 * PAGE, 32 * PAGE)
            try:
                memoryview(buffer).release()
            except BufferError:
                pass

    threads = [threading.Thread(target=call) for call in (work, work, drop)]
    [thread.start() for thread in threads]
    stop.wait(SECONDS)
    stop.set()
    [thread.join() for thread in threads]
    assert not wrong and buffer.stats()["purged"] > 0


def test_results_are_kept_and_built_again_once_they_are_lost():
    calls = []

    @volatile_cache(64 << 20, hot=0)
    def squares(n, *, by=1):
        calls.append(n)
        return np.arange(n, dtype=np.int64).reshape(2, -1) ** 2 * by

    first = squares(10_000)
    again = squares(10_000)
    assert calls == [10_000] and again.shape == (2, 5000) and again.dtype == np.int64
    assert again.ctypes.data == first.ctypes.data and not again.flags.writeable
    assert squares(10_000, by=2)[1, 0] == 2 * 5000**2 and len(calls) == 2
    # Results in use stay.
    squares.drop_unused()
    assert again[1, 4999] == 9999**2
    assert squares(10_000) is not None and len(calls) == 2
    del first, again
    gc.collect()
    assert squares.drop_unused() > 0
    assert squares(10_000)[1, 4999] == 9999**2 and len(calls) == 3
    assert squares.stats()["misses"] == 3
    squares.clear()
    squares(10_000)
    assert len(calls) == 4


def test_results_of_every_form_come_back():
    results = {
        "date": np.array(["2026-01-01"], dtype="datetime64[D]"),
        "text": np.array(["abc", "d"]),
        "record": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        "scalar": np.array(5.0),
        "empty": np.zeros((0, 3)),
        "turned": np.arange(6).reshape(2, 3).T,
        "gaps": np.arange(24.0).reshape(2, 3, 4).transpose(1, 2, 0)[:, ::2],
        "masked": np.ma.array([1, 2, 3], mask=[False, True, False], fill_value=7),
        "no mask": np.ma.array([1.0, 2.0]),
        "masked record": np.ma.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")], mask=[(1, 0)]),
        "matrix": np.array([[1, 2], [3, 4]]).view(np.matrix),
        "recarray": np.rec.array([(1, 2.5), (3, 4.5)], dtype=[("a", int), ("b", float)]),
        "one number": np.float32(1.5),
        "one record": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])[0],
        "bytes": b"abc",
        "bytearray": bytearray(b"abc"),
        "view": memoryview(b"abcdefgh").cast("i"),
        "plane": memoryview(b"abcdefgh").cast("B", (2, 4)),
        "nothing": b"",
    }

    @volatile_cache(16 << 20)
    def make(name):
        return results[name]

    for name, result in results.items():
        for _ in range(2):
            made = make(name)
            assert type(made) is type(result)
            if isinstance(result, (np.ndarray, np.generic)):
                check_array(made, result)
            else:
                assert made == result
    assert not make("turned").flags.writeable and make("view").readonly
    assert make("recarray").a.tolist() == [1, 3] and make("masked").sum() == 4
    assert make("view").format == "i" and make("plane").shape == (2, 4)


def test_an_array_has_the_order_of_the_functions_own():
    @volatile_cache(16 << 20)
    def make(order):
        return np.asarray(np.arange(400.0).reshape(100, 4), order=order)

    for order in "CF":
        for _ in range(2):
            assert make(order).flags[f"{order}_CONTIGUOUS"]
            assert make(order)[7].tolist() == [28, 29, 30, 31]


def test_results_that_cannot_be_kept_are_refused():
    results = {
        "int": (5, "not int: return bytes"),
        "objects": (np.array([None]), "of Python objects"),
        "subclass": (np.zeros(3).view(type("Own", (np.ndarray,), {})), "make it numpy.asarray"),
        "text": (np.bytes_(b"a"), r"make it bytes\(\) first"),
        "own bytes": (type("Own", (bytes,), {})(b"a"), r"not Own: return bytes\(\)"),
        "array": (plain_array("i", [1]), r"not array: return bytes\(\) or memoryview\(\)"),
        "gaps": (memoryview(b"abcd")[::2], r"return bytes\(\)"),
        "records": (memoryview(np.zeros(2, "i4,f8")), "cannot be made again"),
    }

    @volatile_cache(1 << 20)
    def make(what):
        return results[what][0]

    for what, (_, words) in results.items():
        with pytest.raises(TypeError, match="volatile_cache: .*" + words):
            make(what)
    results["long"] = (bytes(2 << 20),)
    with pytest.raises(ValueError, match="addresses"):
        make("long")
    with pytest.raises(TypeError, match="unhashable"):
        make([1])


def test_arguments_of_two_types_may_have_a_result_each():
    def name(*values, **named):
        return b", ".join(type(value).__name__.encode() for value in (*values, *named.values()))

    equal, typed = volatile_cache(1 << 20)(name), volatile_cache(1 << 20, typed=True)(name)
    assert [equal(1), equal(1.0), equal(True)] == [b"int"] * 3
    assert [typed(1), typed(1.0), typed(True)] == [b"int", b"float", b"bool"]
    assert [typed(n=1), typed(n=1.0)] == [b"int", b"float"] and typed.stats()["misses"] == 5
    assert typed(1.0) == b"float" and typed.stats()["hits"] == 1


def test_arguments_by_name_are_not_those_by_place():
    @volatile_cache(1 << 20)
    def make(*values, **named):
        return b"%d" % len(named)

    assert make((1,), (("b", 2),)) == b"0" and make(1, b=2) == b"1"


def test_what_is_known_of_lost_results_is_bounded():
    @volatile_cache(1 << 20, hot=0)
    def make(n):
        return np.full(PAGE, n % 251, np.uint8)

    for n in range(3000):
        assert make(n)[-1] == n % 251
    known = make.__closure__[0].cell_contents._known
    assert len(known) <= 2 * 256 + 64 + 1


def test_threads_that_miss_one_key_at_once_compute_it_once():
    computed, begun = [], threading.Event()

    @volatile_cache(16 << 20, hot=0)
    def make(n):
        computed.append(n)
        begun.wait(0.2)  # lets the other threads arrive
        return np.full(5000, n, np.uint8)

    for n in range(3):
        results = [None] * 8

        def ask(place):
            results[place] = make(n)

        threads = [threading.Thread(target=ask, args=(place,)) for place in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert all((result == n).all() for result in results)
    assert computed == [0, 1, 2] and make.stats()["misses"] == 3


def test_a_call_that_raises_is_each_callers_own():
    calls, begun = [], threading.Event()

    @volatile_cache(16 << 20)
    def make(n):
        calls.append(n)
        begun.wait(0.2)
        if len(calls) == 1:
            raise RuntimeError("the first")
        return np.full(10, n, np.uint8)

    ends = []

    def ask():
        try:
            ends.append(int(make(3)[0]))
        except RuntimeError as error:
            ends.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(map(str, ends)) == ["3", "3", "3", "the first"]


def test_an_interrupt_at_the_begin_of_a_call_leaves_nothing_to_wait_for():
    class Interrupted(dict):
        is_over = False

        def setdefault(self, key, value):
            kept = super().setdefault(key, value)
            if not self.is_over:
                self.is_over = True
                raise KeyboardInterrupt
            return kept

    @volatile_cache(1 << 20)
    def make(n):
        return bytes([n])

    make.clear.__self__._making = making = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        make(7)
    assert not making
    made = []
    thread = threading.Thread(target=lambda: made.append(make(7)), daemon=True)
    thread.start()
    thread.join(20)
    assert made == [b"\7"]


def test_an_interrupted_wait_leaves_the_call_under_way(monkeypatch):
    begun, go, made, calls = threading.Event(), threading.Event(), [], []

    @volatile_cache(1 << 20)
    def make(n):
        calls.append(n)
        begun.set()
        go.wait()
        return bytes([n])

    thread = threading.Thread(target=lambda: made.append(make(7)), daemon=True)
    thread.start()
    begun.wait()
    (under_way,) = make.clear.__self__._making.values()

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(under_way.done, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make(7)
    assert list(make.clear.__self__._making.values()) == [under_way]
    go.set()
    thread.join(20)
    assert make(7) == b"\7" and made == [b"\7"] and calls == [7]
    assert not make.clear.__self__._making


def test_a_function_may_ask_for_its_own_key():
    @volatile_cache(16 << 20)
    def make(n, deep=[3]):
        deep[0] -= 1
        return make(n) if deep[0] else np.full(10, n, np.uint8)

    assert make(5)[0] == 5
