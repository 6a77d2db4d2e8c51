"""A memory cgroup of version 1 or 2, in which a script runs programs."""

import os
import pathlib
import re
import time

V1 = pathlib.Path("/sys/fs/cgroup/memory")
V2 = pathlib.Path("/sys/fs/cgroup")
# Seconds that a process gets to leave the cgroup.
PATIENCE_S = 60


class Group:
    """A memory cgroup called glebe-NAME-PID, removed on leaving. Raises OSError if refused."""

    def __init__(self, name, limit_kib=None):
        is_v1 = (V1 / "memory.limit_in_bytes").exists()
        self.path = (V1 if is_v1 else V2) / f"glebe-{name}-{os.getpid()}"
        self.peak_file = "memory.max_usage_in_bytes" if is_v1 else "memory.peak"
        self.events_file = "memory.oom_control" if is_v1 else "memory.events"
        limit_file = "memory.limit_in_bytes" if is_v1 else "memory.max"
        self.path.mkdir()
        try:
            if not (self.path / self.peak_file).exists():
                raise OSError(f"{self.path}/{self.peak_file}: no such file")
            # Turns swap off, because the program must fit in memory.
            no_swap = "memory.swappiness" if is_v1 else "memory.swap.max"
            if (self.path / no_swap).exists():
                (self.path / no_swap).write_text("0")
            if limit_kib:
                (self.path / limit_file).write_text(str(limit_kib << 10))
        except OSError:
            self.path.rmdir()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # A child whose parent was killed stays a moment longer.
        until = time.monotonic() + PATIENCE_S
        while (self.path / "cgroup.procs").read_text() and time.monotonic() < until:
            time.sleep(0.001)
        self.path.rmdir()

    def enter(self):
        (self.path / "cgroup.procs").write_text("0")

    def peak_kib(self):
        return int((self.path / self.peak_file).read_text()) >> 10

    def killed(self):
        """Returns the number of processes that the kernel killed for lack of memory."""
        text = (self.path / self.events_file).read_text()
        return int(re.search(r"^oom_kill (\d+)", text, re.MULTILINE)[1])
