"""libhugetlbfs's own tests, each under glebe with a hugetlbfs of its own."""

import os
import platform
import re
import shutil

from .lent import Failed, Skipped, run
from .sources import checkout

PUBLIC = "https://github.com/libhugetlbfs/libhugetlbfs"
# Each test may lease this much. Many take all free pages that they count.
QUOTA = "64M"
PAGES = 32
PATIENCE_TEST = 60

# Tests that pass with leased pages.
LEASED = [
    "readback", "shared", "private", "mprotect", "mlock", "misalign", "misaligned_offset", "direct",
    "fork-cow", "corrupt-by-cow-opt", "ptrace-write-hugepage", "slbpacaflush", "task-size-overrun",
    "map_high_truncate_2", "noresv-preserve-resv-page", "noresv-regarded-as-resv",
    "readahead_reserve", "madvise_reserve", "fadvise_reserve", "mremap-fixed-normal-near-huge",
    "mremap-fixed-huge-near-normal", "fallocate_stress", "chunk-overcommit",
    "alloc-instantiate-race shared", "alloc-instantiate-race private", f"mmap-gettest 10 {PAGES}",
    f"mmap-cow {PAGES - 1} {PAGES}", "shm-perms", f"shm-fork 10 {PAGES // 2}",
    f"shm-fork 10 {PAGES}", f"shm-getraw {PAGES} /dev/full", f"shm-gettest 10 {PAGES}",
]
# Tests that pass and ask for no pages.
UNLEASED = [
    "zero_filesize_segment", "test_root", "meminfo_nohuge", "gethugepagesize", "gethugepagesizes",
    "empty_mounts", "large_mounts", "find_path", "malloc", "malloc_manysmall", "heapshrink",
    "linkhuge_nofd", "linkhuge", "linkhuge_rw",
]
# Tests that cannot pass: a pattern of their output for each. Not run are counters.sh and the two
# shmoverride tests, which change the size of the machine's pool.
NAMED = "Mapped address is not hugepage"
MAPPED = "ftruncate.*: Operation not permitted"
STATIC = "hugetlbfs_unlinked_fd|mmap.*: Cannot allocate memory"
CANNOT = {
    # They look for the mount's name in /proc/self/maps.
    "unlinked_fd": NAMED,
    "brk_near_huge": NAMED,
    # A mapped file cannot change its length, and private mappings are copies.
    "truncate": MAPPED,
    "icache-hygiene": MAPPED,
    "truncate_reserve_wraparound": MAPPED,
    "truncate_sigbus_versus_oom": MAPPED,
    "truncate_above_4GB": "Didn't SIGBUS on truncated page",
    # A hole keeps its pages.
    "fallocate_basic": "hole punch did not release 5 huge pages",
    "fallocate_align": "hole punch .* did not free huge page",
    # It looks for the length of a mapping in /proc/self/maps; a lease is several mappings.
    "get_huge_pages": "hugepage was not correctly freed",
    # It fails without glebe too.
    "get_hugepage_region": "Returned page is not hugepage",
    # A read-only mapping beyond a file's end reserves pages of the pool.
    "mremap-expand-slice-collision": "couldn't find 2 free neighbour slices",
    # It compares counts of the pool that leases do not change.
    "quota": "bad counter state",
    # A supervisor, which static programs need, holds no files on hugetlbfs.
    "straddle_4GB_static": STATIC,
    "huge_at_4GB_normal_below_static": STATIC,
    "huge_below_4GB_normal_above_static": STATIC,
    # They want an unlimited stack, and a heap that newer C libraries do not have.
    "stack_grow_into_huge": "Stack rlimit must be 'unlimited'",
    "heap-overflow": "Must have HUGETLB_MORECORE=yes",
}


def test(given, lent):
    folder = built(given)
    mount = lent.scratch / "mounted"
    mount.mkdir()
    wrong = []
    for words in [*LEASED, *UNLEASED, *CANNOT]:
        before = lent.leases()
        try:
            out = ran(lent, folder, mount, words)
        except Failed as why:
            out = f"FAIL {why}"
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
        return None if re.search(CANNOT[words], out) else "does not fail as known"
    if not passed:
        return "does not pass"
    if (words in LEASED) != (leases > 0):
        return f"{leases} leases"
    return None


def ran(lent, folder, mount, words):
    """Returns a test's output. It has an IPC namespace of its own, because some leave segments."""
    tests = folder / "tests" / "obj64"
    name, *more = words.split()
    # A supervisor, which a static program gets, shows none.
    shows = [] if name.endswith("_static") else ["--show-pages"]
    glebe = lent.words(tests / name, *more, flags=[*shows, "--quota", QUOTA], mount=mount)
    libraries = f"{folder / 'obj64'}:{tests}"
    return run(["unshare", "-i", *glebe], cwd=tests,
               patience=PATIENCE_TEST, wanted=range(-64, 256) if words in CANNOT else (0,),
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
