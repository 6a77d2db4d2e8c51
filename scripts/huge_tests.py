#!/usr/bin/env python3
"""Runs programs and tests of others under `glebe run --contig`, each with its own `glebe serve`.

    scripts/huge_tests.py [--glebe target/debug/glebe] [--libhugetlbfs CHECKOUT] [NAME ...]

The machine's pool of huge pages stays as it is; on most machines it is empty. Each test prints a
line: its result and the number of leases, or `cannot:` with the reason if a program is known to get
no huge pages from leases. A test fails if its program gets leases where none are expected, or none
where some are. `skipped:` names what is missing. Uses what is installed: stress-ng, PostgreSQL, OpenJDK,
NumPy, DPDK, QEMU. Gets the sources of PostgreSQL's own tests by apt-get, and those of libhugetlbfs
from CHECKOUT (a work tree or a git directory) or by git; target/strangers keeps both. Needs root.
Exits with 1 if anything failed.
"""

import argparse
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from huge import hugetlbfs
from huge.lent import Lent, eventually, kill_group, program, run, same_pool
from huge.postgres import pg_regress, pgbench
from programs.place import Failed, Skipped, adopt_orphans, end_children, left_running

ROOT = pathlib.Path(__file__).resolve().parent.parent
JAVA_PROGRAM = ROOT / "bench" / "java" / "Started.java"
JDKS = pathlib.Path("/usr/lib/jvm")
# The system's Python may have packages that the first Python in PATH lacks.
PYTHONS = list(dict.fromkeys([sys.executable, shutil.which("python3"), "/usr/bin/python3"]))
STRESS_SECONDS = 5
VERIFY = ("-XX:+UnlockDiagnosticVMOptions", "-XX:+VerifyBeforeGC", "-XX:+VerifyAfterGC")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TESTS))
    parser.add_argument("--glebe", default="target/debug/glebe")
    parser.add_argument("--libhugetlbfs", metavar="CHECKOUT")
    args = parser.parse_args()
    glebe = shutil.which(args.glebe)
    if not glebe:
        print(f"{args.glebe}: not there; cargo build -p glebe-cli", file=sys.stderr)
        return 1
    if unknown := set(args.names) - set(TESTS):
        parser.error(f"no test is called {unknown.pop()}")
    if os.geteuid() != 0:
        print("skipped: all (the server adds pages to the pool, which needs root)")
        return 0
    adopt_orphans()
    tests = TESTS | {"libhugetlbfs": functools.partial(hugetlbfs.test, args.libhugetlbfs)}
    results = [one(name, tests[name], os.path.abspath(glebe)) for name in args.names or tests]
    return 0 if all(results) else 1


def one(name, test, glebe):
    """Runs a test and prints its line. Returns False if it failed."""
    begin, is_right = time.monotonic(), True
    with tempfile.TemporaryDirectory(prefix="glebe-huge-") as scratch:
        os.chmod(scratch, 0o755)
        try:
            with same_pool():
                found = tested(test, copied(glebe, scratch), scratch)
        except Skipped as why:
            print(f"skipped: {name} ({why})", flush=True)
            return True
        except Failed as why:
            is_right, found = False, f"FAILED: {why}"
        except Exception as why:
            is_right, found = False, f"FAILED: {type(why).__name__}: {why}"
    print(f"{name:<18} {time.monotonic() - begin:>6.1f} s  {found}", flush=True)
    return is_right


def tested(test, glebe, scratch):
    """Returns a test's result, with the number of leases. Leaves no process."""
    try:
        with Lent(glebe, scratch) as lent:
            found = test(lent)
            lent.wait_until_free()
            if count := lent.leases():
                found += f", {count} leases"
        if left := left_running():
            raise Failed(f"left running: {left}")
        return found
    finally:
        end_children()


def copied(glebe, scratch):
    """Copies glebe and its library to where every user can read them. Returns the copy's path."""
    library = pathlib.Path(glebe).with_name("libglebe_huge.so")
    if not library.exists():
        raise Failed(f"{library}: not there; cargo build -p glebe-huge")
    return shutil.copy(glebe, shutil.copy(library, scratch).rsplit("/", 1)[0])


def stress(*words, wants=True):
    """Returns a test: a stressor that checks its results. `wants` says whether it asks for huge
    pages; None: it may."""
    def test(lent):
        tool = program("stress-ng", "stress-ng")
        out = lent.run(tool, *words, "--verify", "--metrics", "--timeout", str(STRESS_SECONDS),
                       cwd=lent.scratch)
        name = words[0].removeprefix("--")
        found = re.search(rf"\] {name} +([1-9]\d*) ", out)
        if "successful run completed" not in out or not found or re.search(r"fail:|error:", out):
            raise Failed(out[-3000:])
        text = f"{found[1]} rounds, none wrong"
        if wants is None:
            return text
        if wants:
            return lent.with_leases(text)
        return lent.without_leases(text + "; it asks for no huge pages")
    return test


def java(*flags):
    """Returns a test: javac compiles a program, and the program runs, both with checks of the whole
    heap at each collection, with each JDK that has this collector."""
    def test(lent):
        jdks = {path.resolve().parent.parent for path in JDKS.glob("*/bin/javac")}
        used = [jdk.name for jdk in sorted(jdks) if one_jdk(lent, jdk, flags)]
        if not used:
            raise Skipped("no JDK here has this collector: openjdk-17-jdk-headless")
        return "javac, and a program of 4 rounds: " + ", ".join(used)
    return test


def one_jdk(lent, jdk, flags):
    """Returns False if the JDK lacks the collector."""
    common = [jdk / "bin" / "java", "-XX:+UseLargePages", "-XX:+AlwaysPreTouch", "-Xms256m",
              "-Xmx256m", *flags]
    if subprocess.run([jdk / "bin" / "java", *flags, "-version"], capture_output=True).returncode:
        return False
    before, required = lent.leases(), ["--required"]
    compiled = lent.run(*common, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-d", lent.scratch,
                        JAVA_PROGRAM, flags=required)
    works = ["-cp", lent.scratch, "Started"]
    out = lent.run(*common, *works, flags=required, input="4\n")
    sums = re.findall(r"^\d+ (-?\d+)$", run([jdk / "bin" / "java", *works], input="4\n"), re.M)
    is_right = sums and re.findall(r"^\d+ (-?\d+)$", out, re.M) == sums
    if not is_right or re.search(r"(?i)fail|corrupt", compiled + out):
        raise Failed((compiled + out)[-3000:])
    lent.with_leases(f"{jdk.name}:\n{out[-3000:]}", before)
    return True


NUMPY = """
import mmap, numpy as np
LEN = 128 << 20
flags = mmap.MAP_ANONYMOUS | 0x40000 # MAP_HUGETLB
for kind in (mmap.MAP_PRIVATE, mmap.MAP_SHARED):
    memory = mmap.mmap(-1, LEN, flags=kind | flags)
    array = np.frombuffer(memory, np.float64)
    assert not array.any(), "not zeroed"
    array[:] = np.random.default_rng(1).random(array.size)
    copy = array.copy()
    array.sort()
    copy.sort()
    assert np.array_equal(array, copy)
    half = array.size // 2
    root = int(half ** 0.5)
    square = array[:root * root].reshape(root, root)
    assert np.allclose(square @ np.eye(root), square)
    del array, square
    memory.close()
print("right")
"""


def numpy(lent):
    for python in filter(None, PYTHONS):
        if subprocess.run([python, "-c", "import numpy"], capture_output=True).returncode == 0:
            out = lent.run(python, "-c", NUMPY, flags=["--required"])
            if "right" not in out:
                raise Failed(out)
            return lent.with_leases("sorts and products are right")
    raise Skipped("no Python here has NumPy")


def dpdk(*memory, why_not=None):
    """Returns a test: testpmd forwards packets of a device that makes them, on one CPU. With
    `why_not`, it must fail with that error."""
    def test(lent):
        tool = program("dpdk-testpmd", "dpdk-dev")
        mount = lent.scratch / "mounted"
        mount.mkdir()
        words = ["timeout", "--preserve-status", "-s", "INT", "4", tool, "--no-pci", *memory,
                 "--file-prefix=glebe", f"--huge-dir={mount}", "--lcores=0@0,1@0", "-m", "64",
                 "--vdev=net_null0", "--", "--total-num-mbufs=2048", "--auto-start",
                 "--stats-period=1"]
        # It ends by the signal again, once it has stopped.
        out = lent.run(*words, flags=["--show-pages"], mount=mount,
                       wanted=range(256) if why_not else (0, 130),
                       env={"RUNTIME_DIRECTORY": str(lent.scratch)})
        packets = max(map(int, re.findall(r"RX-packets: (\d+)", out)), default=0)
        if why_not:
            if packets or not re.search(why_not, out):
                raise Failed(f"{packets} packets, and not as known: {out[-3000:]}")
            return f"cannot: {re.search(why_not, out)[0]}"
        if not packets:
            raise Failed(out[-3000:])
        return lent.with_leases(f"{packets} packets through a null device")
    return test


def glibc_malloc(lent):
    """glibc.malloc.hugetlb=2 makes malloc map huge pages, by its own mmap."""
    script = "b = bytearray(64 << 20); b[-1] = 1; print(len(b))"
    words = ["env", "GLIBC_TUNABLES=glibc.malloc.hugetlb=2", "/usr/bin/python3", "-c", script]
    lent.run(*words)
    text = lent.without_leases("ordinary pages with the library")
    lent.run(*words, flags=["--supervise"])
    return lent.with_leases(f"leases with --supervise; {text}")


def qemu(lent):
    """Runs QEMU's firmware in memory of a sealed file."""
    tool = program("qemu-system-x86_64", "qemu-system-x86")
    log = lent.scratch / "firmware"
    log.touch()
    memory = "memory-backend-memfd,id=ram,size=128M,hugetlb=on,share=on"
    words = lent.words(tool, "-accel", "tcg", "-machine", "q35,memory-backend=ram", "-m", "128M",
                       "-object", memory, "-nodefaults", "-display", "none", "-monitor", "stdio",
                       "-chardev", f"file,id=log,path={log}",
                       "-device", "isa-debugcon,iobase=0x402,chardev=log", flags=["--required"])
    with subprocess.Popen(words, env=lent.environment(), stdin=subprocess.PIPE, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          start_new_session=True) as process:
        try:
            eventually("the firmware's end", lambda: process.poll() is not None
                       or "No bootable device" in log.read_text())
            out, _ = process.communicate("info memdev\nquit\n", timeout=20)
        except BaseException:
            kill_group(process)
            raise
    if process.returncode or not re.search(r"share: true", out):
        raise Failed(f"status {process.returncode}: {out[-3000:]}\n{log.read_text()[-1000:]}")
    return lent.with_leases("the firmware ran")


TESTS = {
    "stress-mmaphuge": stress("--mmaphuge", "2", "--mmaphuge-mmaps", "16"),
    "stress-shm-sysv": stress("--shm-sysv", "1"),
    "stress-shm": stress("--shm", "1", wants=False),
    "stress-mmap": stress("--mmap", "1", "--mmap-bytes", "32M", wants=None),
    "stress-memthrash": stress("--memthrash", "1", wants=False),
    "pgbench": pgbench,
    "pg_regress": pg_regress,
    "libhugetlbfs": None,
    "java-g1": java("-XX:+UseG1GC", *VERIFY),
    "java-parallel": java("-XX:+UseParallelGC", *VERIFY),
    "java-serial": java("-XX:+UseSerialGC", *VERIFY),
    "java-shenandoah": java("-XX:+UseShenandoahGC", *VERIFY),
    # With a smaller heap at the start, ZGC tries whether it can give memory back.
    "java-zgc": java("-XX:+UseZGC", "-Xms64m"),
    "numpy": numpy,
    "dpdk-in-memory": dpdk("--in-memory"),
    "dpdk-files": dpdk("--huge-unlink"),
    "dpdk-legacy": dpdk("--legacy-mem", why_not="Couldn't remap hugepage files into memseg lists"),
    "dpdk-single-file": dpdk("--single-file-segments", why_not="FATAL: Cannot init memory"),
    "glibc-malloc": glibc_malloc,
    "qemu": qemu,
}


if __name__ == "__main__":
    sys.exit(main())
