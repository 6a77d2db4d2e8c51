#!/usr/bin/env python3
"""Runs programs and tests of others under `glebe run --contig`, each with its own `glebe serve`.

    scripts/huge_tests.py [--glebe target/debug/glebe] [NAME ...]

The machine's pool of huge pages stays as it is; on most machines it is empty. Each test prints a
line: its result and the number of leases, or `cannot:` with the reason if the program runs without
huge pages or refuses, or `skipped:` for what is missing. Uses what is installed: stress-ng,
PostgreSQL, OpenJDK, NumPy, DPDK. Needs root. Exits with 1 if anything failed.
"""

import argparse
import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
JAVA_PROGRAM = ROOT / "bench" / "java" / "Started.java"
JDKS = pathlib.Path("/usr/lib/jvm")
POSTGRES = pathlib.Path("/usr/lib/postgresql")
# The system's Python may have packages that the first Python in PATH lacks.
PYTHONS = list(dict.fromkeys([sys.executable, shutil.which("python3"), "/usr/bin/python3"]))
# Seconds that a test, and a server's start or a program's end, may take.
PATIENCE, PATIENCE_SHORT = 300, 120
SERVER_MIB, ZEROED = 2048, "768M"
STRESS_SECONDS = 5
VERIFY = ("-XX:+UnlockDiagnosticVMOptions", "-XX:+VerifyBeforeGC", "-XX:+VerifyAfterGC")
NO_MMAP = "its heap is a file of memfd_create, whose pages only the pool gives"


class Skipped(Exception):
    """The reason why a test cannot run here."""


class Cannot(Exception):
    """The reason why a program gets no huge pages from leases."""


class Failed(Exception):
    """The error of a test."""


class Lent:
    """A server, and programs that get huge pages from it."""

    def __init__(self, glebe, scratch):
        self.glebe, self.scratch = glebe, pathlib.Path(scratch)
        self.socket = self.scratch / "leases"
        self.log = open(self.scratch / "serve.log", "w+")

    def __enter__(self):
        command = [self.glebe, "serve", "--leases", "--no-stats", "-s", self.scratch / "cache",
                   "--lease-socket", self.socket, "-m", str(SERVER_MIB), "--lease-zeroed", ZEROED]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        try:
            eventually("the server's start", lambda: self.is_ready())
        except BaseException:
            self.end()
            raise
        # Tests of other users reach the socket.
        self.socket.chmod(0o666)
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        self.process.terminate()
        self.process.wait(PATIENCE_SHORT)

    def is_ready(self):
        if self.process.poll() is not None:
            raise Failed("glebe serve: " + (self.scratch / "serve.log").read_text())
        return self.socket.exists() and "listening" in (self.scratch / "serve.log").read_text()

    def counted(self, name):
        """Returns a figure of the server: a number of events or bytes."""
        text = run([self.glebe, "leases", "--openmetrics", "--socket", self.socket])
        found = re.search(rf"^glebe_lease_{name} (\d+)$", text, re.MULTILINE)
        if not found:
            raise Failed(f"no {name} in: {text}")
        return int(found[1])

    def leases(self):
        return self.counted("leased_total")

    def wait_until_free(self):
        """Waits until no program has a page."""
        held = ("held_bytes", "returning_bytes")
        eventually("all pages back", lambda: not any(map(self.counted, held)))

    def words(self, *command, required=False, user=None):
        """Returns a command that runs another one under glebe, and its environment."""
        other = as_other(user) if user else []
        flags = ["--required"] if required else []
        start = [self.glebe, "run", "--contig", *flags, "--", *command]
        return other + start

    def environment(self, **more):
        return {**os.environ, "GLEBE_LEASES": str(self.socket), **more}

    def run(self, *command, required=False, env=None, **how):
        """Returns the output of a command under glebe. Raises Failed if it fails."""
        words = self.words(*command, required=required)
        return run(words, env=self.environment(**(env or {})), **how)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TESTS))
    parser.add_argument("--glebe", default="target/debug/glebe")
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
    results = [one(name, os.path.abspath(glebe)) for name in args.names or TESTS]
    return 0 if all(results) else 1


def one(name, glebe):
    """Runs a test and prints its line. Returns False if it failed."""
    begin, is_right = time.monotonic(), True
    with tempfile.TemporaryDirectory(prefix="glebe-huge-") as scratch:
        os.chmod(scratch, 0o755)
        try:
            with Lent(copied(glebe, scratch), scratch) as lent:
                found = TESTS[name](lent)
                lent.wait_until_free()
                if count := lent.leases():
                    found += f", {count} leases"
        except Skipped as why:
            print(f"skipped: {name} ({why})", flush=True)
            return True
        except Cannot as why:
            found = f"cannot: {why}"
        except (Failed, subprocess.TimeoutExpired) as why:
            is_right, found = False, f"FAILED: {why}"
    print(f"{name:<18} {time.monotonic() - begin:>6.1f} s  {found}", flush=True)
    return is_right


def copied(glebe, scratch):
    """Copies glebe and its library to where every user can read them. Returns the copy's path."""
    library = pathlib.Path(glebe).with_name("libglebe_huge.so")
    if not library.exists():
        raise Failed(f"{library}: not there; cargo build -p glebe-huge")
    return shutil.copy(glebe, shutil.copy(library, scratch).rsplit("/", 1)[0])


def run(command, patience=PATIENCE, **how):
    """Returns a command's output with its standard error. Raises Failed if the command fails."""
    how = {"stdin": subprocess.DEVNULL} | how if "input" not in how else how
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.STDOUT,
                         timeout=patience, errors="replace", **how)
    if ran.returncode:
        raise Failed(f"status {ran.returncode} of {' '.join(map(str, command))[:200]}:\n"
                     + ran.stdout[-3000:])
    return ran.stdout


def as_other(user):
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def eventually(what, is_so):
    end = time.monotonic() + PATIENCE_SHORT
    while not is_so():
        if time.monotonic() > end:
            raise Failed(f"it took over {PATIENCE_SHORT} s: {what}")
        time.sleep(0.02)


def program(name, package):
    found = shutil.which(name)
    if not found:
        raise Skipped(f"no {name} here: {package}")
    return found


def with_leases(lent, text):
    """Returns `text` if a program used leases."""
    if not lent.leases():
        raise Failed(f"no lease was used: {text}")
    return text


def stress(*words, wants=True):
    """Returns a test: a stressor that checks its results."""
    def test(lent):
        tool = program("stress-ng", "stress-ng")
        out = lent.run(tool, *words, "--verify", "--metrics", "--timeout", str(STRESS_SECONDS),
                       cwd=lent.scratch)
        name = words[0].removeprefix("--")
        found = re.search(rf"\] {name} +(\d+) ", out)
        if "successful run completed" not in out or not found or re.search(r"fail:|error:", out):
            raise Failed(out[-3000:])
        text = f"{found[1]} rounds, none wrong"
        if not wants:
            return text + ("" if lent.leases() else "; it asks for no huge pages by mmap")
        return with_leases(lent, text)
    return test


def shm_sysv(lent):
    text = stress("--shm-sysv", "1", wants=False)(lent)
    if lent.leases():
        return text
    raise Cannot(f"{text}, but shmget(SHM_HUGETLB) gets no leases")


class Cluster:
    """PostgreSQL with 512 MiB of shared buffers in huge pages, under glebe."""

    SETTINGS = ("shared_buffers = 512MB\nhuge_pages = on\nlisten_addresses = ''\nfsync = off\n"
                "autovacuum = off\n")

    def __init__(self, lent):
        versions = sorted(POSTGRES.glob("*/bin/postgres"), key=lambda path: path.parts[-3].zfill(3))
        if not versions:
            raise Skipped("no PostgreSQL here: postgresql")
        self.lent, self.programs = lent, versions[-1].parent
        try:
            self.user = pwd.getpwnam("postgres")
        except KeyError:
            self.user = pwd.getpwnam("nobody")
        self.folder = lent.scratch / "postgres"
        self.folder.mkdir()
        os.chown(self.folder, self.user.pw_uid, self.user.pw_gid)
        self.data = self.folder / "data"

    def __enter__(self):
        self.as_user("initdb", "-D", self.data, "-A", "trust", "-N", "-U", "postgres")
        with open(self.data / "postgresql.conf", "a") as file:
            file.write(self.SETTINGS + f"unix_socket_directories = '{self.folder}'\n")
        words = self.lent.words(self.programs / "postgres", "-D", self.data, required=True,
                                user=self.user)
        log = self.folder / "log"
        with open(log, "w") as file:
            self.process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT,
                                            env=self.lent.environment(), cwd=self.folder)
        ready = [self.programs / "pg_isready", "-q", "-h", self.folder]

        def answers():
            if self.process.poll() is not None:
                raise Failed(f"PostgreSQL ended: {log.read_text()}")
            return subprocess.run(ready).returncode == 0
        try:
            eventually("PostgreSQL's start", answers)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(PATIENCE_SHORT)

    def as_user(self, name, *words):
        """Runs a program of PostgreSQL, without huge pages."""
        return run([*as_other(self.user), self.programs / name, *words], cwd=self.folder)

    def client(self, name, *words):
        return self.as_user(name, "-h", self.folder, "-U", "postgres", *words)

    def value(self, query):
        return self.client("psql", "-At", "-d", "postgres", "-c", query).strip()


def pgbench(lent):
    """Runs pgbench's transactions. Its four sums must agree, and the indexes and tables too."""
    with Cluster(lent) as cluster:
        cluster.client("pgbench", "-i", "-q", "-s", "5", "postgres")
        out = cluster.client("pgbench", "-n", "-c", "4", "-j", "2", "-T", "5", "postgres")
        sums = [cluster.value(f"SELECT sum({column}) FROM pgbench_{table}")
                for table, column in [("accounts", "abalance"), ("tellers", "tbalance"),
                                      ("branches", "bbalance"), ("history", "delta")]]
        if len(set(sums)) != 1:
            raise Failed(f"sums differ: {sums}")
        cluster.client("pg_amcheck", "--install-missing", "--heapallindexed", "-d", "postgres")
        count = re.search(r"actually processed: (\d+)", out)[1]
        if cluster.value("SHOW huge_pages") != "on":
            raise Failed("PostgreSQL runs without huge pages")
        return with_leases(lent, f"{count} transactions; sums and pg_amcheck agree")


def pg_regress(_lent):
    tools = list(POSTGRES.glob("*/lib/pgxs/src/test/regress/pg_regress"))
    if not tools:
        raise Skipped("no pg_regress here: postgresql-server-dev")
    if not list(POSTGRES.glob("*/lib/pgxs/src/test/regress/sql")):
        raise Skipped("pg_regress is here, but Debian ships neither its queries nor their results")
    raise Skipped("pg_regress has its queries here, but this script does not know how to run them")


def java(*flags, why_not=None):
    """Returns a test: javac compiles a program, and the program runs, both with checks of the whole
    heap at each collection, with each JDK that has this collector."""
    def test(lent):
        jdks = {path.resolve().parent.parent for path in JDKS.glob("*/bin/javac")}
        used = [jdk.name for jdk in sorted(jdks) if one_jdk(lent, jdk, flags, why_not)]
        if not used:
            raise Skipped("no JDK here has this collector: openjdk-17-jdk-headless")
        return with_leases(lent, "javac, and a program of 4 rounds: " + ", ".join(used))
    return test


def one_jdk(lent, jdk, flags, why_not):
    """Returns False if the JDK lacks the collector."""
    common = [jdk / "bin" / "java", "-XX:+UseLargePages", "-XX:+AlwaysPreTouch", "-Xms256m",
              "-Xmx256m", *flags]
    probe = subprocess.run([jdk / "bin" / "java", *flags, "-version"], capture_output=True)
    if probe.returncode:
        return False
    compiled = [*common, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-d", lent.scratch,
                JAVA_PROGRAM]
    if why_not:
        return other_pages(lent, compiled, why_not)
    before = lent.leases()
    out = lent.run(*compiled, required=True)
    out += lent.run(*common, "-cp", lent.scratch, "Started", required=True, input="4\n")
    if "ready" not in out or re.search(r"(?i)fail|corrupt", out) or lent.leases() == before:
        raise Failed(out[-3000:])
    return True


def other_pages(lent, command, why_not):
    """Runs a program whose heap comes from elsewhere."""
    try:
        lent.run(*command)
    except Failed as failed:
        raise Cannot(f"{why_not}; its first error: {str(failed).splitlines()[1]}") from failed
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
            out = lent.run(python, "-c", NUMPY, required=True)
            if "right" not in out:
                raise Failed(out)
            return with_leases(lent, "sorts and products are right")
    raise Skipped("no Python here has NumPy")


def dpdk(lent):
    tool = program("dpdk-testpmd", "dpdk-dev")
    words = [tool, "--no-pci", "--in-memory", "-l", "0,1", "-m", "64",
             "--vdev=net_null0", "--", "--total-num-mbufs=2048", "--auto-start", "--stats-period=1"]
    words = lent.words("timeout", "--preserve-status", "-s", "INT", "4", *words)
    ran = subprocess.run(words, env=lent.environment(), stdin=subprocess.DEVNULL, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE)
    if lent.leases():
        if ran.returncode:
            raise Failed(ran.stdout[-3000:])
        return "packets through a null device"
    told = re.search(r"EAL: (.*huge.*)", ran.stdout)
    raise Cannot("DPDK counts the pool's free pages before it asks for any"
                 + (f" ({told[1]})" if told else f": {ran.stdout[-300:]}"))


def glibc_malloc(lent):
    """glibc.malloc.hugetlb=2 makes malloc map huge pages."""
    script = "b = bytearray(64 << 20); b[-1] = 1; print(len(b))"
    lent.run("/usr/bin/python3", "-c", script, env={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"})
    if lent.leases():
        return "glibc's malloc"
    raise Cannot("glibc's malloc calls its own mmap, which no library replaces; it then uses "
                 "ordinary pages")


TESTS = {
    "stress-mmaphuge": stress("--mmaphuge", "2", "--mmaphuge-mmaps", "16"),
    "stress-shm-sysv": shm_sysv,
    "stress-shm": stress("--shm", "1", wants=False),
    "stress-mmap": stress("--mmap", "1", "--mmap-bytes", "32M", wants=False),
    "stress-memthrash": stress("--memthrash", "1", wants=False),
    "pgbench": pgbench,
    "pg_regress": pg_regress,
    "java-g1": java("-XX:+UseG1GC", *VERIFY),
    "java-parallel": java("-XX:+UseParallelGC", *VERIFY),
    "java-serial": java("-XX:+UseSerialGC", *VERIFY),
    "java-shenandoah": java("-XX:+UseShenandoahGC", *VERIFY),
    "java-zgc": java("-XX:+UseZGC", why_not=NO_MMAP),
    "numpy": numpy,
    "dpdk-testpmd": dpdk,
    "glibc-malloc": glibc_malloc,
}


if __name__ == "__main__":
    sys.exit(main())
