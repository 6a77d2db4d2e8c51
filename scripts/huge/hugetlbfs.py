"""libhugetlbfs's own tests, each under glebe with a hugetlbfs of its own."""

import os
import platform
import re
import shutil

from .lent import MOUNTING, Failed, Skipped, run
from .sources import checkout

PUBLIC = "https://github.com/libhugetlbfs/libhugetlbfs"
# Each test may lease this much. Many take all free pages that they count.
QUOTA = "64M"
PAGES = 32
PATIENCE_TEST = 60

# Tests that pass with leased pages.
LEASED = [
]
# Tests that pass and ask for no pages.
UNLEASED = [
]
# Tests that cannot pass: a pattern of their output, and the reason.
CANNOT = {
}


def test(given, lent):
    folder = built(given)
    mount = lent.scratch / "mounted"
    mount.mkdir()
    wrong = []
    for words in [*LEASED, *UNLEASED, *CANNOT]:
        before = lent.leases()
        out = ran(lent, folder, mount, words)
        count = lent.leases() - before
        if why := judged(words, out, count):
            wrong.append(f"{words}: {why}: {out.strip()[-300:]}")
        lent.wait_until_free()
    if wrong:
        raise Failed("\n  ".join([f"{len(wrong)} tests", *wrong]))
    return f"{len(LEASED)} tests pass, {len(UNLEASED)} more ask for no pages, {len(CANNOT)} cannot"


def judged(words, out, leases):
    """Returns what is wrong with a test's result."""
    passed = re.search(r"^PASS", out, re.MULTILINE)
    if words in CANNOT:
        pattern, _ = CANNOT[words]
        return None if re.search(pattern, out) else "fails in another way than known"
    if not passed:
        return "does not pass"
    if (words in LEASED) != (leases > 0):
        return f"{leases} leases"
    return None


def ran(lent, folder, mount, words):
    """Returns a test's output. It has an IPC namespace of its own, because some leave segments."""
    tests = folder / "tests" / "obj64"
    name, *more = words.split()
    glebe = lent.words(tests / name, *more, flags=["--show-pages", "--quota", QUOTA], mount=mount)
    libraries = f"{folder / 'obj64'}:{tests}"
    return run(["unshare", "-i", *glebe], cwd=tests,
               patience=PATIENCE_TEST, wanted=range(-64, 256),
               env=lent.environment(LD_LIBRARY_PATH=libraries, HUGETLB_VERBOSE="1"))


def built(given):
    """Returns a folder with libhugetlbfs and its tests, compiled."""
    if platform.machine() != "x86_64":
        raise Skipped("libhugetlbfs's tests are built for x86-64 only")
    if not all(map(shutil.which, ["make", "cc", "unshare"])):
        raise Skipped("libhugetlbfs needs make, a C compiler and unshare")
    folder = checkout("libhugetlbfs", PUBLIC, given)
    if not (folder / "tests/obj64/zero_filesize_segment").exists():
        # Its configure script, which needs autoconf, would fill in only this.
        for template in folder.glob("**/Makefile.in"):
            text = template.read_text().replace("@CFLAGS@", "-O2 -w")
            template.with_suffix("").write_text(text)
        (folder / "version").write_text("checkout\n")
        run(["make", "BUILDTYPE=NATIVEONLY", "libs", "tests/all"], cwd=folder,
            env={**os.environ, "MAKEFLAGS": ""})
    return folder
