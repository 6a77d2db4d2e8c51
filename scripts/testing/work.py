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
TALLY = re.compile(r"^test result: .*? (\d+) passed; (\d+) failed", re.MULTILINE)


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
    timer = threading.Timer(limit, lambda: os.killpg(process.pid, signal.SIGKILL))
    timer.start()
    _, status, used = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime


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
        status, cpu = wait_for(process, limit)
    wall = time.monotonic() - begin
    text = log.read_text(errors="replace")
    # The library keeps its lock file in such a folder where it has no other place.
    left = sorted(set(os.listdir(folder)) - {f"glebe-{NOBODY if run.is_nobody else os.geteuid()}"})
    tallies = [(int(passed), int(failed)) for passed, failed in TALLY.findall(text)]
    # What is no test program is one test.
    passed, failed = map(sum, zip(*tallies)) if tallies else (int(status == 0), int(status != 0))
    return Done(run.name, status, wall, cpu, text, left, passed, failed)


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

    Those that run alone go first. Then one worker performs the exclusive runs, one by one. The others,
    one for each processor, begin with what may run beside these and go on when they are over.
    """
    done, lock = [], threading.Lock()
    waiting = {lane: deque() for lane in LANES}
    for number, run in enumerate(runs):
        waiting[run.lane].append((number, run))
    exclusive_are_over = threading.Event()

    def finish(lane):
        for number, run in taken_from(waiting[lane]):
            ended = perform(run, pathlib.Path(scratch) / str(number))
            with lock:
                done.append(ended)
                tell(ended)

    def exclusive():
        finish("exclusive")
        exclusive_are_over.set()

    def beside():
        finish("apart")
        exclusive_are_over.wait()
        finish("others")

    finish("alone")
    # Exclusive runs wait for much, so they get no processor of their own.
    works = [exclusive] + max(2, os.cpu_count() or 2) * [beside]
    workers = [threading.Thread(target=work) for work in works]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    return done
