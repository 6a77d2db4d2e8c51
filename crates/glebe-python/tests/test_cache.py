"""Cache: a dictionary that may lose entries, but never returns a wrong one."""

import random
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glebe
from conftest import PAGE, SECONDS, check_array, take, value_of


@pytest.fixture
def cache(reserve):
    return reserve.cache("tests")


def test_values_of_any_length_come_back(cache):
    for length in (0, 1, PAGE - 1, PAGE, PAGE + 1, 1 << 20, (1 << 20) + 7):
        value = value_of(length, seed=length)
        assert cache.put(("n", length), value)
        assert cache[("n", length)] == value
        out = bytearray(b"\xee" * (length + 3))
        assert cache.get_into(("n", length), out) == length
        assert out == value + b"\xee" * 3


def test_buffers_of_every_kind_are_values(cache):
    array = np.arange(5000, dtype=np.float64).reshape(50, 100)
    single = memoryview(bytes(4)).cast("i", ())
    for value in (memoryview(b"abc"), bytearray(b"abc"), single, memoryview(array[:3])):
        cache["k"] = value
        assert type(cache["k"]) is bytes and cache["k"] == memoryview(value).tobytes()
    objects = np.array([(1, None)], dtype=[("n", "i4"), ("b", object)])
    for wrong in (memoryview(array.T), memoryview(array)[::2], memoryview(objects)):
        with pytest.raises(BufferError):
            cache["k"] = wrong
    names = np.array([(1, 2)], dtype=[("One", "i4"), ("O", "i4")])
    cache["names"] = memoryview(names)
    assert cache["names"] == names.tobytes()
    for wrong in ("text", 7, None, [1]):
        with pytest.raises(TypeError):
            cache["k"] = wrong
    assert cache["k"] == array[:3].tobytes()
    for wrong in (b"read-only", array[:, ::2]):
        with pytest.raises(BufferError):
            cache.get_into("k", wrong)
    with pytest.raises(ValueError, match="2400 bytes, the buffer has room for 5"):
        cache.get_into("k", bytearray(5))
    assert cache.get_into("none", bytearray(5)) is None


ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.arange(5000.0).reshape(50, 100).T,
    np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0)[::-1, :, :],
    np.arange(5000.0)[::2],
    np.array(5.0),
    np.float32(1.5),
    np.datetime64("2026-01-01", "h"),
    np.zeros((0, 3), np.int16),
    np.array(["2026-01-01"], dtype="datetime64[D]"),
    np.array(["abc", "d"]),
    np.array([(1, 2.0)], dtype=[("a", ">i4"), ("b", "f8")]),
    np.rec.array([(1, 2.5), (3, 4.5)], dtype=[("a", int), ("b", float)]),
    np.array([[1, 2], [3, 4]]).view(np.matrix),
    np.ma.array([[1, 2, 3]] * 900, mask=[[False, True, False]] * 900, fill_value=9),
    np.ma.array([1.0, 2.0]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{type(array).__name__}-{array.dtype}")
def test_arrays_come_back_as_arrays(cache, array):
    assert cache.put("a", array)
    made = cache["a"]
    check_array(made, array)
    out = bytearray(made.nbytes + np.ma.getmaskarray(made).nbytes)
    assert cache.get_into("a", out) >= made.nbytes
    assert ("a", array) in cache.items()
    if isinstance(made, np.ndarray):
        assert made.flags.writeable
        made.view(np.ndarray).fill(0)
        check_array(cache["a"], array)
    cache["a"] = b"bytes"
    assert cache["a"] == b"bytes"


def test_values_of_different_shapes_differ(cache):
    three, row = np.arange(3), np.array([[0, 1, 2]])
    kept = {"three": three, "none": three[:0], "rows": np.vstack([three, three]), "bytes": b"abc"}
    kept["number"], kept["fields"] = np.float32(1.5), np.zeros(3, [("a", int)])
    cache.update(kept)
    different = {
        "three": (three[:2], row, np.vstack([row, row]), three + 1, b"abc", b"", [0, 1]),
        "none": (three[:1], three, three[:0].reshape(0, 1), b"", b"a", 0),
        "rows": (three, row, three[:2], b"abc"),
        "bytes": (three, three[:0], b"abd", "abc", None),
        "number": (2.5, np.array([1.5]), b""),
        "fields": (np.zeros(3, int), np.zeros(3, [("b", int)]), np.zeros(2, [("a", int)])),
    }
    for key, others in different.items():
        for other in others:
            assert (key, other) not in cache.items(), (key, other)
    for key, value in kept.items():
        assert (key, value) in cache.items() and value in cache.values()
    assert ("three", [0, 1, 2]) in cache.items() and ("number", 1.5) in cache.items()
    assert memoryview(b"abc") in cache.values() and bytearray(b"abc") in cache.values()
    for other in (three[:2], row, np.zeros((4, 3)), b"", b"abd", 2, None, three[:0].reshape(0, 1)):
        assert other not in cache.values(), other


def test_arrays_that_would_not_come_back_are_refused(cache, tmp_path):
    class Own(np.ndarray):
        pass

    kinds = (
        np.array([None]),
        np.zeros(3).view(Own),
        np.memmap(tmp_path / "file", np.uint8, "w+", shape=3),
        np.ma.masked,
        np.array(["a"], dtype=np.dtypes.StringDType()),
    )
    for wrong in kinds:
        with pytest.raises(TypeError, match="a cache: "):
            cache["k"] = wrong
    with pytest.raises(TypeError, match=r"no Own any more: make it numpy.asarray\(\) first"):
        cache["k"] = kinds[1]
    assert "k" not in cache


KEYS = [
    b"",
    "",
    "a",
    b"a",
    ("a",),
    (b"a",),
    ("a", b""),
    ("", "a"),
    (("a",),),
    (),
    ((),),
    (None,),
    0,
    -1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    -(1 << 63),
    (0,),
    (-1,),
    (1 << 63,),
    (1, "é\0"),
    ((1, (2, "x")), "y"),
]


def test_keys_are_told_apart_and_come_back(cache):
    for number, key in enumerate(KEYS):
        cache[key] = b"%d" % number
    assert [cache[key] for key in KEYS] == [b"%d" % n for n in range(len(KEYS))]
    assert set(cache) == set(KEYS) and len(cache) == len(KEYS)
    cache[(True,)] = b"one"
    assert cache[(1,)] == b"one"


def test_integers_of_numpy_are_integers(cache):
    for n, kind in enumerate((np.int8, np.uint16, np.int64, np.uint64)):
        cache[kind(n)] = b"%d" % n
        cache["row", kind(n)] = b"row %d" % n
    cache[np.uint64((1 << 64) - 1)] = b"large"
    assert [cache[n] for n in range(4)] == [b"0", b"1", b"2", b"3"]
    assert cache[np.int32(2)] == b"2" and cache["row", 3] == b"row 3" and True in cache
    assert cache[(1 << 64) - 1] == b"large"
    assert {0, 1, ("row", 2)} < set(cache) and all(type(key) in (int, tuple) for key in cache)
    for wrong in (np.float64(1), np.timedelta64(1), np.array(1)):
        with pytest.raises(TypeError, match="a key is bytes, str, an integer, or a tuple"):
            cache[wrong] = b""


def test_other_keys_are_refused(cache):
    deep = ()
    for _ in range(100):
        deep = (deep,)
    for wrong in (None, 1.5, ["a"], (1.5,), (["a"],), bytearray(b"a")):
        with pytest.raises(TypeError):
            cache[wrong] = b""
        assert wrong not in cache and cache.get(wrong) is None
    for wrong in ("x" * (2 << 20), deep):
        with pytest.raises(ValueError):
            cache[wrong] = b""
    for wrong in (1 << 64, (1 << 64,), -(1 << 63) - 1):
        with pytest.raises(OverflowError, match=r"between -2\*\*63 and"):
            cache[wrong] = b""
    with pytest.raises(UnicodeEncodeError):
        cache["\ud800"] = b""
    for wrong in (deep, 1 << 64, "\ud800"):
        assert wrong not in cache and cache.get(wrong) is None
    assert len(cache) == 0


def test_what_is_not_there_is_a_key_error(cache):
    with pytest.raises(KeyError) as missing:
        cache["k"]
    assert missing.value.args == ("k",)
    with pytest.raises(KeyError):
        del cache["k"]
    assert cache.get("k") is None and cache.pop("k", 5) == 5 and "k" not in cache
    with pytest.raises(KeyError):
        cache.popitem()
    cache["k"] = b"v"
    del cache["k"]
    assert "k" not in cache and len(cache) == 0


def test_two_caches_of_a_name_are_one_and_of_two_names_two(reserve):
    one, same, other = (reserve.cache(name) for name in ("a", "a", "b"))
    one["k"] = b"1"
    other["k"] = b"2"
    assert same["k"] == b"1" and other["k"] == b"2"
    del same["k"]
    assert "k" not in one and "k" in other
    other.clear()
    assert reserve.stats()["live_pages"] == 0


def test_a_block_takes_entries_which_are_whole_or_gone(reserve):
    cache = reserve.cache("tests")
    values = {n: value_of(3 * PAGE + 5, seed=n) for n in range(900)}
    kept = [n for n, value in values.items() if cache.put(("n", n), value)]
    block = take(reserve, 0.5)
    found = [n for n in kept if cache.get(("n", n)) is not None]
    assert 0 < len(found) < len(kept)
    assert all(cache[("n", n)] == values[n] for n in found)
    assert cache.lost > 0 and len(cache) == len(found)
    block.free()
    cache.clear()
    assert reserve.stats()["live_pages"] == 0


def test_a_put_that_finds_no_room_says_so_and_keeps_nothing_old(reserve):
    cache = reserve.cache("tests")
    cache["k"] = value_of(PAGE)
    blocks = []
    while pages := reserve.largest_run():
        blocks.append(reserve.alloc(pages))
    assert not cache.put("k", value_of(PAGE, seed=1))
    assert "k" not in cache
    cache["k"] = value_of(PAGE, seed=2)
    assert cache.get("k") is None
    # Short values also use a little ordinary memory, which has a limit.
    kept = [n for n in range(3_500) if cache.put(n, b"%020d" % n * 5)]
    assert 0 < len(kept) < 3_500 and all(cache.get(n) == b"%020d" % n * 5 for n in kept)


def test_a_value_longer_than_what_is_idle_is_not_kept(reserve):
    cache = reserve.cache("tests")
    for length in (20 << 20, (16 << 20) + 1):
        cache["k"], cache["other"] = b"old", value_of(PAGE)
        assert not cache.put("k", bytes(length))
        assert "k" not in cache and cache.get("k") is None
        assert cache["other"] == value_of(PAGE)
    with take(reserve, 0.5):
        for length in (15 << 20, 9 << 20):
            assert not cache.put("k", bytes(length)) and "k" not in cache
        blocks = [reserve.alloc(1) for _ in range(int(reserve.stats()["total_pages"] * 0.5) - 3)]
        assert not cache.put("k", bytes(6 * PAGE)) and "k" not in cache
        del blocks
        assert cache.put("k", value_of(4 << 20)) and cache["k"] == value_of(4 << 20)


def test_small_values_share_pages(reserve):
    cache, count = reserve.cache("tests"), 40_000
    for n in range(count):
        cache[b"%d" % n] = b"%010d" % n * 10
    left = [n for n in range(count) if cache.get(b"%d" % n) is not None]
    assert len(left) > count * 0.9
    assert all(cache[b"%d" % n] == b"%010d" % n * 10 for n in left)
    assert reserve.stats()["live_pages"] < count * 100 / PAGE * 1.5


@pytest.mark.parametrize("length", [0, 100, 700, PAGE // 2, PAGE // 2 + 1])
def test_small_values_are_whole_or_gone_once_a_block_took_pages(reserve, length):
    cache, count = reserve.cache("tests"), min(8 * 1024 * 1024 // (length + 1), 20_000)
    values = [value_of(length, seed=n) for n in range(count)]
    for n, value in enumerate(values):
        cache[n] = value
    with take(reserve, 0.9):
        found = {n: value for n in range(count) if (value := cache.get(n)) is not None}
        assert all(value == values[n] for n, value in found.items())
        # Empty values all fit into ordinary memory, so none is lost.
        assert len(found) < count or length == 0
        assert len(cache) == len(found) and cache.lost == count - len(found)
    cache.clear()
    assert reserve.stats()["live_pages"] == 0


def test_the_list_of_entries_is_bounded(reserve):
    cache = reserve.cache("tests")
    pages = len(reserve) // PAGE
    value = value_of(PAGE)
    for n in range(4 * pages):
        cache[("n", n)] = value
    assert pages // 2 < len(cache) <= pages // 2 * 3 + 1
    assert reserve.stats()["live_pages"] <= pages
    cache.clear()
    value = value_of(PAGE // 2)
    for n in range(10 * pages):
        cache[("n", n)] = value
    assert len(cache) <= 4 * pages


def test_a_dict_of_a_cache_has_what_is_left(reserve):
    for length in (8000, 700):
        cache = reserve.cache(f"of {length}")
        values = {f"key {n}": value_of(length, seed=n) for n in range(1000 * 8000 // length)}
        cache.update(values)
        with take(reserve, 0.7):
            copy = dict(cache)
            assert copy == {**cache} and 0 < len(copy) < len(values)
            assert all(values[key] == value for key, value in copy.items())
            assert len(cache) == len(copy) == len(list(cache)) == len(set(cache.keys()))
        cache.clear()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "del", "get", "into", "pop", "take", "clear"]),
            st.sampled_from(KEYS),
            st.integers(0, 3 * PAGE),
        ),
        max_size=60,
    )
)
def test_it_is_a_dictionary_that_may_lose_entries(steps):
    """Compares with a dict: a hit is the value put last, and a key never put is never found."""
    with glebe.Reserve(2 << 20, source="plain") as reserve:
        cache, oracle = reserve.cache("tests"), {}
        for number, (step, key, length) in enumerate(steps):
            value = value_of(length, seed=number)
            if step == "put":
                oracle[key] = value
                if not cache.put(key, value):
                    del oracle[key]
            elif step == "del":
                assert (key in cache) <= (key in oracle)
                oracle.pop(key, None)
                cache.pop(key, None)
            elif step == "take":
                take(reserve, 0.6).free()
            elif step == "clear":
                oracle.clear()
                cache.clear()
            elif step == "into":
                out = bytearray(3 * PAGE)
                if (count := cache.get_into(key, out)) is not None:
                    assert out[:count] == oracle[key]
            elif (found := cache.get(key)) is not None:
                assert found == oracle[key]
            assert set(cache) <= set(oracle)
        assert all(oracle[key] == value for key, value in cache.items())
        # The reserve holds no more pages than the listed entries need, plus one page each.
        pages = sum(max(len(oracle[key]), 1) + PAGE - 1 for key in cache) // PAGE
        assert reserve.stats()["live_pages"] <= pages + len(cache)


def test_threads_never_see_a_mixture(reserve):
    cache = reserve.cache("tests")
    length, wrong, stop = 200_000, [], threading.Event()

    def work(seed):
        rng = random.Random(seed)
        while not stop.is_set():
            key = rng.choice("abc")
            if rng.random() < 0.5:
                cache[key] = bytes([rng.randrange(256)]) * rng.randrange(length)
            elif (value := cache.get(key)) and value.count(value[0]) != len(value):
                wrong.append(key)

    def recall():
        while not stop.is_set():
            take(reserve, 0.5).free()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    threads.append(threading.Thread(target=recall))
    [thread.start() for thread in threads]
    stop.wait(SECONDS)
    stop.set()
    [thread.join() for thread in threads]
    assert not wrong and reserve.stats()["loaded"] > 0
