"""Shared caches in a file, which serves where no daemon runs. `test_leases.py` tests a daemon's."""

import multiprocessing
import os
import pickle

import numpy as np
import pytest

import glebe
from conftest import value_of
from glebe import errors


@pytest.fixture
def name(monkeypatch):
    """Names a cache that no daemon has; the cache ends with the test."""
    monkeypatch.setenv("GLEBE_LEASES", "/nonexistent/socket")
    name = f"test {os.getpid()} %/"
    yield name
    glebe.shared_cache(name, "2M").end()


def test_values_of_any_length_come_back_whole(name):
    cache = glebe.shared_cache(name, "16M")
    assert (cache.name, cache.nbytes, cache.of_daemon) == (name, 16 << 20, False)
    values = {("tile", n): value_of(length, n) for n, length in enumerate([0, 1, 4096, 1 << 20])}
    for key, value in values.items():
        assert cache.put(key, value)
    assert all(cache[key] == value for key, value in values.items())
    assert ("tile", 0) in cache and ("tile", 9) not in cache and object() not in cache
    cache["array"] = array = np.arange(100.0)
    assert (np.frombuffer(cache["array"]) == array).all()
    cache["array"] = b"new"
    assert cache.get("array") == b"new" and cache.get("none") is None and cache.get(7, 3) == 3
    del cache["array"]
    assert not cache.remove("array") and "array" not in cache
    with pytest.raises(KeyError, match="array"):
        cache["array"]
    with pytest.raises(KeyError):
        del cache["array"]
    stats = cache.stats()
    assert stats["hits"] >= 6 and stats["removed"] == 1


def test_what_cannot_be_is_refused(name):
    cache = glebe.shared_cache(name, 2 << 20)
    cache["key"] = b"old"
    with pytest.raises(errors.BadArgument, match="has room for") as refused:
        cache["key"] = bytes(cache.limit + 1)
    assert refused.value.limit == cache.limit and "key" not in cache
    for wrong, kind in [((1.5, b""), TypeError), (("k", "text"), TypeError)]:
        with pytest.raises(kind):
            cache.put(*wrong)
    for wrong in ("", "x" * 33, "a\nb"):
        with pytest.raises(errors.BadArgument, match="1 to 32 bytes"):
            glebe.shared_cache(wrong)
    with pytest.raises(errors.BadArgument, match="at least 1 byte"):
        glebe.shared_cache(name, 0)
    for size in ("many", "0"):
        with pytest.raises(errors.BadArgument, match="size"):
            glebe.shared_cache(name, size)
    with pytest.raises(errors.SystemRefused, match="glebe serve --leases"):
        glebe.shared_cache(name, socket="/nonexistent/socket")
    with pytest.raises(TypeError, match="not iterable"):
        list(cache)
    assert repr(name) in repr(cache)


def work(cache, nth):
    assert cache["from the parent"] == b"hello"
    cache["from", nth] = value_of(5000, nth)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_worker_processes_share_a_cache(name, start):
    cache = glebe.shared_cache(name, "16M")
    cache["from the parent"] = b"hello"
    context = multiprocessing.get_context(start)
    workers = [context.Process(target=work, args=(cache, nth)) for nth in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert all(cache["from", nth] == value_of(5000, nth) for nth in range(3))
    again = pickle.loads(pickle.dumps(cache))
    assert again["from the parent"] == b"hello"
    cache.end()
    assert "from the parent" not in cache
