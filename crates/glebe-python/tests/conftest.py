"""What tests share. None of them changes the machine: reserves are of base pages."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import glebe

PAGE = glebe.PAGE_BYTES
# How long threads are watched; three times as long where GLEBE_LONG asks for long tests.
SECONDS = 1.5 if os.environ.get("GLEBE_LONG") else 0.5


def pytest_report_header():
    return f"glebe {glebe.__version__}, {glebe.__file__}, uid {os.getuid()}"


@pytest.fixture
def reserve():
    with glebe.Reserve(16 << 20, source="plain") as reserve:
        yield reserve


@pytest.fixture
def run():
    """Runs a program in a process of its own; fails if a signal ends it; returns what it prints."""

    def run(program, *args):
        words = [sys.executable, "-c", textwrap.dedent(program), *args]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"status {done.returncode}: {done.stderr}"
        return done.stdout + done.stderr

    return run


def take(reserve, share):
    """A block of so much of what no block holds, whatever its runs are; freed when it is dropped."""
    return reserve.alloc(int(reserve.stats()["total_pages"] * share), any=True)


def value_of(length, seed=0):
    """Bytes that differ from page to page and from seed to seed."""
    unit = b"%08d" % (seed % 10**8)
    return b"".join(unit + b"%08d" % n for n in range(length // 16 + 1))[:length]


def check_array(made, array):
    """Nothing that a program sees differs, but for the memory."""
    assert type(made) is type(array) and made.dtype == array.dtype
    assert made.shape == array.shape and made.tobytes() == array.tobytes()
    if isinstance(array, np.ndarray):
        assert made.flags.f_contiguous >= array.flags.f_contiguous
        assert made.flags.c_contiguous >= array.flags.c_contiguous
    if isinstance(array, np.ma.MaskedArray):
        assert made.tolist() == array.tolist() and made.fill_value == array.fill_value
        assert np.ma.getmaskarray(made).tolist() == np.ma.getmaskarray(array).tolist()
