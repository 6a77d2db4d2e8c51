"""Shared parts of the tests. Reserves use base pages, so only test_leases changes the machine."""

import functools
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import glebe

PAGE = glebe.PAGE_BYTES
# Seconds for which threads run; three times as long with GLEBE_LONG.
SECONDS = 1.5 if os.environ.get("GLEBE_LONG") else 0.5


def pytest_report_header():
    return f"glebe {glebe.__version__}, {glebe.__file__}, uid {os.getuid()}"


@pytest.fixture
def reserve():
    with glebe.Reserve(16 << 20, source="plain") as reserve:
        yield reserve


@pytest.fixture
def base_pages(monkeypatch):
    """Keeps programs of the documentation off the machine's pool, which other tests change."""
    monkeypatch.setattr(glebe, "Reserve", functools.partial(glebe.Reserve, source="plain"))


@pytest.fixture
def run():
    """Returns a function that runs a program in its own process, fails if the program fails, and
    returns its output."""

    def run(program, *args):
        words = [sys.executable, "-c", textwrap.dedent(program), *args]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"status {done.returncode}: {done.stderr}"
        return done.stdout + done.stderr

    return run


def take(reserve, share):
    """Takes a block of a share of the reserve. The drop of the block frees it."""
    return reserve.alloc(int(reserve.stats()["total_pages"] * share), any=True)


def value_of(length, seed=0):
    """Returns bytes that differ from page to page and from seed to seed."""
    unit = b"%08d" % (seed % 10**8)
    return b"".join(unit + b"%08d" % n for n in range(length // 16 + 1))[:length]


def check_array(made, array):
    """Checks that an array equals another in everything that a program sees, except its address."""
    assert type(made) is type(array) and made.dtype == array.dtype
    assert made.shape == array.shape and made.tobytes() == array.tobytes()
    if isinstance(array, np.ndarray):
        assert made.flags.f_contiguous >= array.flags.f_contiguous
        assert made.flags.c_contiguous >= array.flags.c_contiguous
    if isinstance(array, np.ma.MaskedArray):
        assert made.tolist() == array.tolist() and made.fill_value == array.fill_value
        assert np.ma.getmaskarray(made).tolist() == np.ma.getmaskarray(array).tolist()
