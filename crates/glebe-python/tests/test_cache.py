"""Cache: a dictionary that may lose entries, never one that lies."""

import random
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glebe
from conftest import PAGE, SECONDS, take, value_of


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
    for value in (array, memoryview(b"abc"), bytearray(b"abc"), array[:3]):
        cache["k"] = value
        assert cache["k"] == memoryview(value).tobytes()
    for wrong in (array.T, array[:, ::2], np.array([None, 1])):
        with pytest.raises(BufferError):
            cache["k"] = wrong
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
    (0,),
    (-1,),
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


def test_other_keys_are_refused(cache):
    deep = ()
    for _ in range(100):
        deep = (deep,)
    for wrong in (1, None, 1.5, ["a"], (1.5,), (["a"],), bytearray(b"a")):
        with pytest.raises(TypeError):
            cache[wrong] = b""
        assert wrong not in cache and cache.get(wrong) is None
    for wrong in ("x" * (2 << 20), deep):
        with pytest.raises(ValueError):
            cache[wrong] = b""
    with pytest.raises(OverflowError):
        cache[(1 << 64,)] = b""
    with pytest.raises(UnicodeEncodeError):
        cache["\ud800"] = b""
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
    cache["k"] = b"old"
    blocks = []
    while pages := reserve.largest_run():
        blocks.append(reserve.alloc(pages))
    assert not cache.put("k", b"new")
    assert "k" not in cache
    cache["k"] = b"new"
    assert cache.get("k") is None


def test_the_list_of_entries_is_bounded(reserve):
    cache = reserve.cache("tests")
    pages = len(reserve) // PAGE
    for n in range(4 * pages):
        cache[("n", n)] = b"v"
    assert pages // 2 < len(cache) <= pages // 2 * 3 + 1
    assert reserve.stats()["live_pages"] <= pages


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
    """Against a dict: a hit is what was put last, a key that was not put is never there."""
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
        # What is left is no more than what is listed.
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
