#!/usr/bin/env python3
"""Runs distributed's own tests of spilling on files behind a cache of glebe.

A worker of distributed spills to `zict.File`. Here it spills to `zict.Cache(zict.File(...),
cache)`, with the cache in a reserve. The tests are unchanged and run twice: with the reserve free,
and with a block that takes all of it after every put, so that each entry is lost before it is read.

    scripts/distributed_tests.py [CHECKOUT]

Needs a Python with glebe, distributed, zict and pytest: `scripts/python.sh test` has one. CHECKOUT
is a work tree or a git directory; without it the script clones the repository at the installed
version. Prints `skipped:` if a module or the tests are missing. Exits with 1 if a test failed that
is not in KNOWN.
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PUBLIC = "https://github.com/dask/distributed"
TESTS = "distributed/tests/test_spill.py"
PATIENCE_S = 120
# Tests that must fail, and why.
KNOWN = {}
# Tests that must fail as root, because root may write where a folder's mode forbids it.
KNOWN_ROOT = {"test_spillbuffer_oserror": "root writes where a mode forbids it"}
# A plugin for pytest: replaces what a worker spills to.
CONFTEST = '''
import os
from collections.abc import MutableMapping

import distributed.spill
import glebe
import zict

RESERVE = glebe.Reserve(32 << 20, source="plain")
COUNTS = {"hits": 0, "misses": 0}


class Joined(MutableMapping):
    """A cache of glebe's for any key of dask's and values that are lists of buffers."""

    def __init__(self, name):
        self.cache = RESERVE.cache(name)

    @staticmethod
    def key(key):
        return key if isinstance(key, (str, tuple)) else (type(key).__name__, str(key))

    def __setitem__(self, key, value):
        parts = [value] if isinstance(value, (bytes, bytearray, memoryview)) else value
        self.cache[self.key(key)] = b"".join(parts)
        if os.environ["GLEBE_LOSE"] == "1":
            RESERVE.alloc(bytes=len(RESERVE), any=True).free()
            self.cache.clear()  # the newest short values are in no page

    def __getitem__(self, key):
        value = self.cache.get(self.key(key))
        COUNTS["misses" if value is None else "hits"] += 1
        if value is None:
            raise KeyError(key)
        return bytearray(value)

    def __delitem__(self, key):
        del self.cache[self.key(key)]

    def __contains__(self, key):
        return self.key(key) in self.cache

    def __len__(self):
        return len(self.cache)

    def __iter__(self):
        raise NotImplementedError("a cache is not asked for its keys")


File = distributed.spill.AnyKeyFile
distributed.spill.AnyKeyFile = lambda folder: zict.Cache(File(folder), Joined(str(folder)))


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"glebe: {COUNTS['hits']} hits, {COUNTS['misses']} misses")
'''


def main():
    for module in ["glebe", "distributed", "zict", "pytest"]:
        if not importlib.util.find_spec(module):
            return skip(f"{sys.executable} has no {module}")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        why = take(sys.argv[1] if len(sys.argv) > 1 else None, folder)
        if why:
            return skip(why)
        (folder / "conftest.py").write_text(CONFTEST)
        return 0 if all([check(folder, loses) for loses in (False, True)]) else 1


def skip(why):
    print(f"skipped: distributed's tests of spilling ({why})")
    return 0


def take(checkout, folder):
    """Puts the tests into the folder. Returns why it cannot, or None."""
    import distributed

    tag = distributed.__version__
    if checkout and (pathlib.Path(checkout) / TESTS).exists():
        text = (pathlib.Path(checkout) / TESTS).read_bytes()
    else:
        if not checkout:
            checkout = folder / "clone"
            if why := clone(tag, checkout):
                return why
        shown = subprocess.run(["git", f"--git-dir={checkout}", "show", f"{tag}:{TESTS}"],
                               capture_output=True, check=False)
        if shown.returncode:
            return f"{checkout}: no checkout, and no git directory that has {tag}"
        text = shown.stdout
    (folder / "test_spill.py").write_bytes(text)
    return None


def clone(tag, to):
    command = ["git", "clone", "--quiet", "--bare", "--depth", "1", "--branch", tag, PUBLIC, str(to)]
    quiet = dict(os.environ, GIT_TERMINAL_PROMPT="0")
    try:
        ran = subprocess.run(command, env=quiet, capture_output=True, text=True, timeout=PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no checkout is given, and no clone can be had: {error}"
    if not ran.returncode:
        return None
    last = ran.stderr.strip().splitlines()[-1:]
    return f"no checkout is given, and no clone can be had: {' '.join(last)}"


def check(folder, loses):
    """Runs the tests. Returns true if only known ones failed and the cache was used."""
    environment = dict(os.environ, GLEBE_LOSE=str(int(loses)))
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider",
               "test_spill.py"]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True,
                         timeout=PATIENCE_S)
    known = {**KNOWN, **(KNOWN_ROOT if os.geteuid() == 0 else {})}
    ends = set(re.findall(r"^(?:PASSED|FAILED|ERROR) test_spill\.py::(\S+)", ran.stdout, re.M))
    failed = set(re.findall(r"^(?:FAILED|ERROR) test_spill\.py::(\S+)", ran.stdout, re.M))
    counts = re.search(r"glebe: (\d+) hits, (\d+) misses", ran.stdout)
    hits, misses = map(int, counts.groups()) if counts else (0, 0)
    name = "each entry lost" if loses else "the reserve free"
    print(f"distributed's tests of spilling, {name}: {len(ends) - len(failed)} of {len(ends)} pass, "
          f"{hits} hits, {misses} misses")
    for test in sorted(failed & set(known)):
        print(f"  known: {test}: {known[test]}")
    asked = misses > 0 and hits == 0 if loses else hits > 0
    if failed == set(known) and len(ends) > 10 and asked:
        return True
    print(ran.stdout, ran.stderr, f"FAIL: {sorted(failed)} failed, known are {sorted(known)}",
          sep="\n")
    return False


if __name__ == "__main__":
    sys.exit(main())
