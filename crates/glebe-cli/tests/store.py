#!/usr/bin/env python3
"""Plays a service manager with a store of descriptors: leases outlive a kill and a restart.

Usage: store.py GLEBE FOLDER BRICK OPTIONS... Ends with 1 at the first difference, and with 77 if this
machine has no memory for the server. BRICK is the size of the server's bricks, in MiB.
"""

import json
import mmap
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "glebed" / "tests"))
from conformance import HEAD, HELLO, LEASE, LEASED, LIST, RELEASE, Connection, wish  # noqa: E402

GLEBE, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
PATH = str(FOLDER / "leases")
BRICK, OPTIONS = int(sys.argv[3]) << 20, sys.argv[4:]
# The kernel moves other memory for a reserve, which takes long beside other programs.
PATIENCE = 60


class Manager:
    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(FOLDER / "notify"))
        self.store = []
        self.pid = 0
        self.has_started = False

    def start(self):
        words = [GLEBE, "serve", "--no-stats", "--leases", "--lease-zeroed", "4M", *OPTIONS]
        words += ["-s", str(FOLDER / "cache"), "--lease-socket", PATH]
        handed = self.store
        self.pid = os.fork()
        if self.pid == 0:
            # First out of the way of the numbers that the server expects.
            high = [os.dup(fd) for _, fd in handed]
            high = [os.dup2(fd, 200 + nth) for nth, fd in enumerate(high)]
            for nth, fd in enumerate(high):
                os.dup2(fd, 3 + nth)
            os.closerange(3 + len(high), 500)
            out = os.open(os.devnull, os.O_WRONLY)
            os.dup2(out, 1)
            env = dict(os.environ, NOTIFY_SOCKET=str(FOLDER / "notify"), FDSTORE="64")
            if handed:
                names = ":".join(name for name, _ in handed)
                env |= {"LISTEN_FDS": str(len(handed)), "LISTEN_PID": str(os.getpid())}
                env["LISTEN_FDNAMES"] = names
            os.execve(GLEBE, words, env)
        self.hear("READY=1")
        self.has_started = True

    def end(self, number):
        os.kill(self.pid, number)
        os.waitpid(self.pid, 0)
        self.pid = 0
        self.socket.setblocking(False)
        try:
            while True:
                self.take()
        except BlockingIOError:
            self.socket.setblocking(True)

    def take(self):
        """Returns a message, after the store has obeyed it."""
        data, fds, _, _ = socket.recv_fds(self.socket, 4096, 253)
        text = data.decode().splitlines()
        fields = dict(line.split("=", 1) for line in text)
        name = fields.get("FDNAME")
        assert not name or (len(name) < 256 and ":" not in name), name
        if "FDSTORE" in fields:
            self.store += [(name, fd) for fd in fds]
        elif "FDSTOREREMOVE" in fields:
            for fd in [fd for of, fd in self.store if of == name]:
                os.close(fd)
            self.store = [(of, fd) for of, fd in self.store if of != name]
        return text

    def hear(self, wanted):
        self.socket.settimeout(0.1)
        begin = time.monotonic()
        while True:
            try:
                if wanted in self.take():
                    break
            except TimeoutError:
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    self.pid = 0
                    sys.exit("the server ended" if self.has_started else 77)
                assert time.monotonic() - begin < PATIENCE, f"no {wanted}"
        self.socket.settimeout(None)

    def until(self, condition):
        self.socket.settimeout(0.05)
        begin = time.monotonic()
        while not condition():
            assert time.monotonic() - begin < PATIENCE, (rows(), self.store)
            try:
                self.take()
            except TimeoutError:
                pass
        self.socket.settimeout(None)


def rows():
    words = [GLEBE, "leases", "--socket", PATH, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return {row["lease"]: row for row in json.loads(done.stdout)}


def leased(name):
    """Starts a program with a lease, and returns it once the lease is marked."""
    mark = (
        "import mmap, os, sys; fd = int(os.environ['GLEBE_LEASE_FD']);"
        "m = mmap.mmap(fd, 2 << 20); m[:4] = b'mark'; print('ready', flush=True);"
        "sys.stdin.read(); sys.exit(m[:4] != b'mark')"
    )
    words = [GLEBE, "lease", "--socket", PATH, "--name", name, "2M", "--", sys.executable, "-c", mark]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    return child


def check(manager):
    manager.start()
    own = Connection(PATH)
    own.ask(HELLO, body=struct.pack("32s", b"own"))
    _, other, _, others = own.ask(LEASE, body=wish(BRICK, name=b"other"))
    kind, lease, _, files = own.ask(LEASE, body=wish(3 * BRICK, name=b"a name"))
    assert kind == LEASED and len(files) == 3
    memory = mmap.mmap(files[2], BRICK)
    memory[:4] = b"mark"
    child = leased("child")
    before = rows()
    assert len(before) == 3
    manager.until(lambda: len(manager.store) == 7)

    manager.end(signal.SIGKILL)
    assert len(manager.store) == 7, manager.store
    manager.start()
    assert rows() == before, (rows(), before)
    assert memory[:4] == b"mark"
    own.socket.settimeout(PATIENCE)
    assert own.socket.recv(1) == b"", "no more answers come"
    own.socket.sendall(HEAD.pack(1, LIST, 7, 0))
    later = leased("later")
    assert max(rows()) > max(before)

    # A release ends one lease of the connection. The client cannot reach its memory any more.
    own.socket.sendall(HEAD.pack(1, RELEASE, 0, lease))
    manager.until(lambda: lease not in rows())
    assert [os.fstat(fd).st_size for fd in files + others] == [0, 0, 0, BRICK]
    assert other in rows()
    own.socket.close()
    manager.until(lambda: other not in rows())
    assert os.fstat(others[0]).st_size == 0

    manager.end(signal.SIGTERM)
    assert len(manager.store) == 4, manager.store
    # Nobody's connection, and files of a client that left meanwhile.
    later.kill()
    later.wait()
    manager.start()
    manager.until(lambda: [row["name"] for row in rows().values()] == ["child"])
    child.stdin.close()
    assert child.wait() == 0, "its mark is there"
    manager.until(lambda: not rows() and not manager.store)
    manager.end(signal.SIGTERM)


def main():
    manager = Manager()
    try:
        check(manager)
    finally:
        if manager.pid:
            os.kill(manager.pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
