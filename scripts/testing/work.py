"""Runs what is planned and keeps what each printed."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass

from .plan import LANES

NOBODY = 65534
# A run that takes longer is stopped; none comes near it.
LIMIT_S = 1200
TALLY = re.compile(r"^test result: .*? (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)
# The processes of all runs under way.
RUNNING = set()


@dataclass
class Done:
    """How a run ended."""

    name: str
    status: int
    wall: float
    cpu: float
    output: str
    left: list
    passed: int
    failed: int

    @property
    def is_ok(self):
        return self.status == 0 and not self.left and self.failed == 0 and self.passed > 0


def wait_for(process, limit):
    """Waits for a process; returns its status and the CPU seconds of all that it waited for."""
    timer = threading.Timer(limit, end, [process, signal.SIGKILL])
    timer.daemon = True
    timer.start()
    try:
        _, status, used = os.wait4(process.pid, 0)
    finally:
        timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime


def end(process, number):
    """Sends a signal to a process that has not been waited for, and to all of its group."""
    if process.returncode is None:
        os.killpg(process.pid, number)


def perform(run, folder):
    """Performs a run whose temporary folder is made for it."""
    folder.mkdir(mode=0o711)
    environment = {**os.environ, "TMPDIR": str(folder), **run.environment}
    who = {}
    if run.is_nobody:
        os.chown(folder, NOBODY, NOBODY)
        environment["HOME"] = str(folder)
        who = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": folder}
    limit = LIMIT_S * float(os.environ.get("GLEBE_SLOW", "1"))
    log = folder.with_suffix(".log")
    begin = time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            run.words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            **who,
        )
        RUNNING.add(process)
        status, cpu = wait_for(process, limit)
        RUNNING.discard(process)
    wall = time.monotonic() - begin
    text = log.read_text(errors="replace")
    if wall >= limit:
        text += f"-- {run.name}: stopped after {limit:.0f} s\n"
    # Without /run/glebe and XDG_RUNTIME_DIR the library keeps its lock file in such a folder.
    left = sorted(set(os.listdir(folder)) - {f"glebe-{NOBODY if run.is_nobody else os.geteuid()}"})
    return Done(run.name, status, wall, cpu, text, left, *counts(run, status, text))


def counts(run, status, text):
    """Returns how many tests passed and how many failed."""
    tallies = [tuple(map(int, found)) for found in TALLY.findall(text)]
    if not run.tests:
        # The documentation has several programs; another command is one test.
        passed, failed, _ = map(sum, zip(*tallies)) if tallies else (status == 0, status != 0, 0)
        return int(passed), int(failed)
    # Above it are those of programs that tests started.
    passed, failed, ignored = tallies[-1] if tallies else (0, 0, 0)
    return passed, failed + run.tests - passed - failed - ignored


def tell(done):
    """Prints a line for a run; for one that failed, what it printed."""
    mark = "ok    " if done.is_ok else "FAILED"
    print(f"{mark} {done.wall:6.1f} s {done.cpu:6.1f} s cpu  {done.passed:4}  {done.name}", flush=True)
    if not done.is_ok:
        print(done.output, end="")
        print(f"-- {done.name}: status {done.status}, {done.passed} passed, {done.failed} failed")
        if done.left:
            print(f"-- {done.name}: left in its temporary folder: {', '.join(done.left)}")
        sys.stdout.flush()


def taken_from(waiting):
    """Takes runs from a deque that several workers share, until none is left."""
    while True:
        try:
            yield waiting.popleft()
        except IndexError:
            return


def all_of(runs, scratch):
    """Performs the runs and returns how each ended.

    Those that run alone go first. Then one worker performs the exclusive runs, one by one. Meanwhile
    the others, one for each processor, take those that are apart; when the exclusive runs are over,
    all of them take the rest.
    """
    done, lock, stop = [], threading.Lock(), threading.Event()
    waiting = {lane: deque() for lane in LANES}
    for number, run in enumerate(runs):
        waiting[run.lane].append((number, run))
    exclusive_are_over = threading.Event()

    def finish(lane):
        for number, run in taken_from(waiting[lane]):
            if stop.is_set():
                return
            try:
                ended = perform(run, pathlib.Path(scratch) / str(number))
            except Exception as error:
                ended = Done(run.name, 1, 0, 0, f"cannot be run: {error}\n", [], 0, 1)
            with lock:
                done.append(ended)
                tell(ended)

    def exclusive():
        finish("exclusive")
        exclusive_are_over.set()
        finish("others")

    def beside():
        finish("apart")
        exclusive_are_over.wait()
        finish("others")

    def all_at_once(works):
        workers = [threading.Thread(target=work) for work in works]
        for thread in workers:
            thread.start()
        try:
            for thread in workers:
                thread.join()
        except KeyboardInterrupt:
            # A test that ends by this gives back what it changed on the machine.
            stop.set()
            for process in list(RUNNING):
                end(process, signal.SIGTERM)
            for thread in workers:
                thread.join()
            raise

    all_at_once([lambda: finish("alone")])
    # One more than processors, since many tests wait.
    all_at_once([exclusive] + max(2, os.cpu_count() or 2) * [beside])
    return done
