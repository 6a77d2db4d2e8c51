"""One master and more and more hosts that lend: what the master pays, and how long a recall takes."""

import os
import tempfile
import time
from pathlib import Path

from net import Network
from stack import GLEBE, Stack, say

MIB = 64
# Seconds between two recalls of a host. It lends again meanwhile.
PERIOD = 4.0


def used(pid):
    """Returns the processor time of all threads of a process, in seconds."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as stat:
            total += int(stat.read().split()[0])
    return total / 1e9


def busy_seconds(stack, seconds, work=lambda: None):
    """Returns the master's processor time in a second, while `work` is done again and again."""
    # nsenter has become the master.
    pid, begin = stack.master.pid, time.monotonic()
    before = used(pid)
    while time.monotonic() < begin + seconds:
        work()
        time.sleep(0.05)
    return (used(pid) - before) / (time.monotonic() - begin)


def measure(stack, seconds):
    count, done = len(stack.hosts), 0
    idle = busy_seconds(stack, seconds)
    say(case=f"master_idle_{count}", who=GLEBE, ms=idle * 1e3)
    next_at = [time.monotonic() + nth * PERIOD / count for nth in range(count)]

    def recall():
        nonlocal done
        nth = min(range(count), key=next_at.__getitem__)
        if next_at[nth] <= time.monotonic():
            next_at[nth] += PERIOD
            said = stack.recall(nth)["released"]
            if said is not None:
                say(case=f"recall_64m_{count}_hosts", who=GLEBE, ms=said / 1e3)
                done += 1

    begin = time.monotonic()
    busy = busy_seconds(stack, seconds, recall)
    took = time.monotonic() - begin
    if done:
        say(case=f"master_remount_{count}", who=GLEBE, us=(busy - idle) * took / done * 1e6)


def run(bench, counts, lease_ttl, seconds):
    for count in counts:
        network = Network(count, 4e9 / 8, 1e-4)
        with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as where:
            stack = Stack(GLEBE, network.hosts, MIB, where, bench, lease_ttl)
            try:
                stack.lend()
                measure(stack, seconds)
            finally:
                stack.end()
                network.end()
