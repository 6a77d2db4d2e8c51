#!/usr/bin/env python3
"""Ages the machine, and undoes it: fills and fragments memory as hours of work do.

Usage: ager.py MIXTURE [--most BYTES] [--dir DIR]
Prints `ready` when the machine is aged, and undoes it when standard input ends.

  files   writes and reads many small files, deletes a third: page cache, dentries, inodes
  builds  thousands of short processes, some that stay, and small files: page tables, slab
  held    a program holds every second page of most memory, and has freed the others
  ended   like held, after that program has ended
  busy    a program writes to its memory at random, and page cache fills the rest

About 2 GiB stay available. The programs die with this one, and the kernel prefers to kill them. The
files are removed even if this program is killed. Other programs may lose their page cache. Needs a
C compiler.
"""

import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
MIXTURES = ("files", "builds", "held", "ended", "busy")
LEFT = 2 << 30  # bytes that stay available
SECONDS = 40  # longest time of filling
FILE_KIB = (4, 8, 16, 32, 64, 128, 256)
WRITTEN_EVERY = 16  # one file in 16 is written; the others are holes that are read
DELETED_EVERY = 3


def meminfo():
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    fields = (line.split() for line in lines)
    return {name.rstrip(":"): int(value) << 10 for name, value, *_ in fields}


def page_cache():
    now = meminfo()
    return now["Cached"] + now["Buffers"] - now["Shmem"]


def file_system(path):
    device = os.stat(path).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == name:
            return after.split()[0]
    return "unknown"


class Folder:
    """A folder of this process, removed even if the process is killed."""

    def __init__(self, inside=None):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="glebe-aged-", dir=inside))
        remove = ["sh", "-c", 'cat >/dev/null; rm -rf "$1"', "sh", str(self.path)]
        self.remover = subprocess.Popen(remove, stdin=subprocess.PIPE, start_new_session=True)

    def close(self):
        self.remover.stdin.close()
        self.remover.wait()


class Tools:
    """The C programs beside this file, compiled on entering and removed on leaving."""

    def __enter__(self):
        self.folder = Folder()
        for name in ("load", "judge"):
            binary = self.folder.path / name
            command = ["cc", "-O2", "-Wall", "-pthread", "-o", binary, HERE / f"{name}.c"]
            subprocess.run(command, check=True)
        return self

    def __exit__(self, *_):
        self.folder.close()

    def path(self, name):
        return str(self.folder.path / name)


class Files:
    def __init__(self, folder, seed):
        self.random = random.Random(seed)
        if file_system(folder) in ("tmpfs", "ramfs"):
            raise SystemExit(f"error: {folder} lies in memory; --dir needs a disk's file system")
        self.own = Folder(folder)
        self.folder = self.own.path
        self.names = []

    def close(self):
        self.own.close()

    def fill(self, most, is_enough, deadline):
        """Makes and reads small files: `most` bytes, or until `is_enough()` or the deadline."""
        data, had = os.urandom(max(FILE_KIB) << 10), 0
        while had < most and time.monotonic() < deadline and not is_enough():
            inside = self.folder / str(len(self.names))
            inside.mkdir()
            for n in range(256):
                size = self.random.choice(FILE_KIB) << 10
                name = f"{inside}/{n}"
                descriptor = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
                if n % WRITTEN_EVERY == 0:
                    os.write(descriptor, data[:size])
                else:
                    os.ftruncate(descriptor, size)
                os.pread(descriptor, size, 0)
                os.close(descriptor)
                self.names.append(name)
                had += size

    def delete_some(self):
        self.random.shuffle(self.names)
        for name in self.names[: len(self.names) // DELETED_EVERY]:
            os.unlink(name)

    def read_large(self, most, deadline):
        """Reads a large file of holes into the page cache."""
        descriptor = os.open(self.folder / "large", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, most)
        buffer = bytearray(1 << 20)
        for offset in range(0, most, len(buffer)):
            if time.monotonic() > deadline:
                break
            os.preadv(descriptor, [buffer], offset)
        os.close(descriptor)


class Load:
    def __init__(self, tools, mode, a, b):
        command = [tools.path("load"), str(os.getpid()), mode, str(a), str(b)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def wait_until_ready(self):
        """Returns the bytes that the program holds, or the number of processes that stay."""
        line = self.process.stdout.readline().split()
        if line[:1] != ["ready"]:
            raise SystemExit(f"error: {self.process.args}: ended early")
        return int(line[1])

    def report(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        words = self.process.stdout.readline().split()
        return {name: int(value) for name, value in zip(words[::2], words[1::2])}

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


class Aged:
    """An aged machine, from entering the context to leaving it."""

    def __init__(self, tools, mixture, most=None, folder=None, seed=1):
        self.tools, self.mixture, self.seed = tools, mixture, seed
        self.most = most or 1 << 62
        self.folder = folder or tempfile.gettempdir()
        self.loads, self.files, self.busy = [], None, None

    def __enter__(self):
        start = time.monotonic()
        self.deadline = start + SECONDS
        try:
            getattr(self, f"_{self.mixture}")()
        except BaseException:
            self.__exit__()
            raise
        self.seconds = time.monotonic() - start
        return self

    def __exit__(self, *_):
        for load in self.loads:
            load.end()
        if self.files:
            self.files.close()

    def _room(self, share=1.0):
        return min(self.most, int((meminfo()["MemAvailable"] - LEFT) * share))

    def _start(self, mode, a, b):
        self.loads.append(Load(self.tools, mode, a, b))
        return self.loads[-1]

    def _files(self):
        self.files = Files(self.folder, self.seed)
        self.files.fill(self._room(0.6), lambda: False, self.deadline)
        self.files.delete_some()

    def _builds(self):
        self.files = Files(self.folder, self.seed)
        scale = min(1.0, self.most / (8 << 30))
        load = self._start("processes", int(6000 * scale), int(400 * scale))
        self.files.fill(self._room(0.4), lambda: False, self.deadline)
        self.files.delete_some()
        load.wait_until_ready()

    def _held(self):
        load = self._start("every-second", self._room(), LEFT)
        load.wait_until_ready()
        return load

    def _ended(self):
        self._held().end()
        self.loads.clear()

    def _busy(self):
        self.files = Files(self.folder, self.seed)
        self.busy = self._start("busy", self._room(0.4), LEFT)
        self.busy.wait_until_ready()
        room = self._room()
        self.files.read_large(room // 2, self.deadline)
        scarce = meminfo()["MemTotal"] // 24
        self.files.fill(room, lambda: meminfo()["MemFree"] < scarce, self.deadline)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mixture", choices=MIXTURES)
    parser.add_argument("--most", type=int, help="bytes to take at most")
    parser.add_argument("--dir", help="where files are made; the temporary folder without")
    args = parser.parse_args()
    with Tools() as tools, Aged(tools, args.mixture, args.most, args.dir) as aged:
        print(f"ready after {aged.seconds:.1f} s", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
