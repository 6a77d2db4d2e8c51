"""Runs the plan and keeps each run's output."""

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
# Seconds after which a run is stopped. All runs need much less.
LIMIT_S = 1200
# Niceness of the runs beside exclusive ones. Exclusive runs take longer, because only one runs at a
# time, so they go first.
NICE = 10
TALLY = re.compile(r"^test result: .*? (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)
RUNNING = set()


@dataclass
class Done:
    """The result of a run. Times are in seconds."""

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
    """Waits for a process. Returns its status and CPU seconds, with the children it reaped."""
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
    """Sends a signal to the group of a process that has not been reaped."""
    if process.returncode is None:
        os.killpg(process.pid, number)


def share(process, nice):
    """Sets the niceness of a run, as far as the kernel lets the caller. A run is a session, and the
    kernel shares the processors among sessions first (sched(7), autogroup)."""
    try:
        os.setpriority(os.PRIO_PGRP, process.pid, nice)
        pathlib.Path(f"/proc/{process.pid}/autogroup").write_text(str(nice))
    except OSError:
        pass


def perform(run, folder, nice):
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
        if nice:
            share(process, nice)
        status, cpu = wait_for(process, limit)
        RUNNING.discard(process)
    wall = time.monotonic() - begin
    text = log.read_text(errors="replace")
    if wall >= limit:
        text += f"-- {run.name}: stopped after {limit:.0f} s\n"
    # Without /run/glebe and XDG_RUNTIME_DIR the library keeps its lock file in this folder.
    left = sorted(set(os.listdir(folder)) - {f"glebe-{NOBODY if run.is_nobody else os.geteuid()}"})
    return Done(run.name, status, wall, cpu, text, left, *counts(run, status, text))


def counts(run, status, text):
    tallies = [tuple(map(int, found)) for found in TALLY.findall(text)]
    if not run.tests:
        # Models and documentation have several programs. Any other command counts as one test.
        passed, failed, _ = map(sum, zip(*tallies)) if tallies else (status == 0, status != 0, 0)
        without = run.programs - sum(passed > 0 for passed, _, _ in tallies)
        return int(passed), int(failed) + max(0, without)
    # The last tally is this program's; earlier ones are of programs that its tests started.
    passed, failed, ignored = tallies[-1] if tallies else (0, 0, 0)
    return passed, failed + run.tests - passed - failed - ignored


def tell(done):
    mark = "ok    " if done.is_ok else "FAILED"
    print(f"{mark} {done.wall:6.1f} s {done.cpu:6.1f} s cpu  {done.passed:4}  {done.name}", flush=True)
    if not done.is_ok:
        print(done.output, end="")
        print(f"-- {done.name}: status {done.status}, {done.passed} passed, {done.failed} failed")
        if done.left:
            print(f"-- {done.name}: left in its temporary folder: {', '.join(done.left)}")
        sys.stdout.flush()


def taken_from(waiting):
    """Takes runs from a deque that several workers share, until it is empty."""
    while True:
        try:
            yield waiting.popleft()
        except IndexError:
            return


def all_of(runs, scratch):
    """Performs the runs and returns their results.

    First one worker performs the runs of lane `alone`, one by one. Then one worker performs the
    exclusive runs, while others perform those of lane `apart`. After the exclusive runs all workers
    perform the rest.
    """
    done, lock, stop = [], threading.Lock(), threading.Event()
    waiting = {lane: deque() for lane in LANES}
    for number, run in enumerate(runs):
        waiting[run.lane].append((number, run))
    exclusive_are_over = threading.Event()
    if not waiting["exclusive"]:
        exclusive_are_over.set()

    def finish(lane):
        for number, run in taken_from(waiting[lane]):
            if stop.is_set():
                return
            try:
                yields = run.lane == "apart" and not exclusive_are_over.is_set()
                ended = perform(run, pathlib.Path(scratch) / str(number), NICE if yields else 0)
            except Exception as error:
                ended = Done(run.name, 1, 0, 0, f"cannot be run: {error}\n", [], 0, 1)
            with lock:
                done.append(ended)
                tell(ended)

    def exclusive():
        finish("exclusive")
        exclusive_are_over.set()
        for process in list(RUNNING):
            share(process, 0)
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
            # A test that gets SIGTERM gives back what it changed on the machine.
            stop.set()
            for process in list(RUNNING):
                end(process, signal.SIGTERM)
            for thread in workers:
                thread.join()
            raise

    all_at_once([lambda: finish("alone")])
    # One worker more than processors, since many tests wait.
    all_at_once([exclusive] + max(2, os.cpu_count() or 2) * [beside])
    return done
