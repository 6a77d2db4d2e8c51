"""A server that leases huge pages, and programs that run under `glebe run --contig`."""

import contextlib
import fcntl
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from programs.place import Failed, Skipped  # noqa: E402

# Seconds that a test, and a server's start or a program's end, may take.
PATIENCE, PATIENCE_SHORT, PATIENCE_POOL = 300, 120, 10
SERVER_MIB, ZEROED = 2048, "768M"
POOLS = pathlib.Path("/sys/kernel/mm/hugepages")
POOL = POOLS / "hugepages-2048kB"
COUNTS = ("nr_hugepages", "nr_overcommit_hugepages", "surplus_hugepages")
# Words of a shell that mounts hugetlbfs at its first argument, and runs the others.
MOUNTING = ["unshare", "-m", "sh", "-c", 'mount -t hugetlbfs none "$0" && exec "$@"']


class Lent:
    """A server, and programs that get huge pages from it."""

    def __init__(self, glebe, scratch):
        self.glebe, self.scratch = glebe, pathlib.Path(scratch)
        self.socket = self.scratch / "leases"
        self.log = open(self.scratch / "serve.log", "w+")

    def __enter__(self):
        command = [self.glebe, "serve", "--leases", "--no-stats", "-s", self.scratch / "cache",
                   "--lease-socket", self.socket, "-m", str(SERVER_MIB), "--lease-zeroed", ZEROED]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT,
                                        start_new_session=True)
        try:
            eventually("the server's start", self.is_ready)
        except BaseException:
            self.end()
            raise
        # Tests of other users reach the socket.
        self.socket.chmod(0o666)
        return self

    def __exit__(self, kind, *_):
        status = self.end()
        if kind is None and status not in (0, -signal.SIGTERM):
            raise Failed(f"glebe serve ended with {status}")

    def end(self):
        self.process.terminate()
        self.log.close()
        return self.process.wait(PATIENCE_SHORT)

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

    def words(self, *command, flags=(), user=None, mount=None):
        """Returns a command that runs another one under glebe, with hugetlbfs at `mount`."""
        other = as_other(user) if user else []
        mounting = [*MOUNTING, mount] if mount else []
        return [*mounting, *other, self.glebe, "run", "--contig", *flags, "--", *command]

    def environment(self, **more):
        return {**os.environ, "GLEBE_LEASES": str(self.socket), **more}

    def run(self, *command, flags=(), mount=None, env=None, **how):
        """Returns the output of a command under glebe. Raises Failed if it fails."""
        words = self.words(*command, flags=flags, mount=mount)
        return run(words, env=self.environment(**(env or {})), **how)

    def with_leases(self, text, before=0):
        """Returns `text` if a program used leases, of which there were `before`."""
        if self.leases() <= before:
            raise Failed(f"no lease was used: {text}")
        return text

    def without_leases(self, text):
        if count := self.leases():
            raise Failed(f"{count} leases, where none is known to work: {text}")
        return text


def run(command, patience=PATIENCE, wanted=(0,), **how):
    """Returns a command's output with its standard error. Raises Failed if its status is not
    wanted, and kills its process group if it takes too long."""
    shown = " ".join(map(str, command))[:200]
    if (text := how.pop("input", None)) is not None:
        how["stdin"] = subprocess.PIPE
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", start_new_session=True,
                          **{"stdin": subprocess.DEVNULL} | how) as process:
        try:
            out, _ = process.communicate(text, patience)
        except BaseException as why:
            kill_group(process)
            if not isinstance(why, subprocess.TimeoutExpired):
                raise
            out, _ = process.communicate()
            raise Failed(f"over {patience} s: {shown}\n{out[-3000:]}") from None
    if process.returncode not in wanted:
        raise Failed(f"status {process.returncode} of {shown}:\n{out[-3000:]}")
    return out


def kill_group(process):
    """Kills a process that leads a group, and the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


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


@contextlib.contextmanager
def same_pool():
    """Raises Failed if the counts of the machine's pools differ at the end. The project's tests
    that change them wait for each other; other programs get some seconds to undo a change."""
    with open_folder(POOL) as turn:
        if turn is not None:
            fcntl.flock(turn, fcntl.LOCK_EX)
        before = pool_counts()
        yield
        end = time.monotonic() + PATIENCE_POOL
        while (after := pool_counts()) != before:
            if time.monotonic() > end:
                changed = {name: (count, after[name]) for name, count in before.items()
                           if after[name] != count}
                raise Failed(f"the pool's counts (before, after) differ: {changed}; another "
                             "program of the machine may have changed them")
            time.sleep(0.1)


@contextlib.contextmanager
def open_folder(path):
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        yield None
        return
    try:
        yield file
    finally:
        os.close(file)


def pool_counts():
    files = [folder / count for folder in sorted(POOLS.glob("*")) for count in COUNTS]
    return {f"{file.parent.name}/{file.name}": int(file.read_text()) for file in files}
