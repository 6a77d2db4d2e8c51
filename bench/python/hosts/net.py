"""Hosts of a network on one machine: network namespaces, and a relay between them.

Each host has an address on a TUN device whose other end the relay holds. The relay sends each packet
on after the link's delay, and after the time that its bytes take at the link's rate, so it needs no
queueing discipline of the kernel. A namespace ends with its process, and a device with the relay.
"""

import collections
import ctypes
import fcntl
import os
import platform
import select
import signal
import struct
import subprocess
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN_WITHOUT_HEADER = 0x1001
PR_SET_PDEATHSIG = 1
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
SHORTEST_SLICE = 100_000  # nanoseconds
# Large packets make the relay cheap. An IPv4 packet has at most 65,535 bytes.
MTU = 60_000
ADDRESS = "10.77.0."
# Takes bytes until the client has sent all, then sends back one at a time.
ECHO = """
import socket
server = socket.create_server(("0.0.0.0", 9000))
print("up", flush=True)
client, _ = server.accept()
left = 256 << 20
while left:
    left -= len(client.recv(min(left, 1 << 20)))
while byte := client.sendall(b"x") or client.recv(1):
    pass
"""
ASK = """
import socket, sys, time
server = socket.create_connection((sys.argv[1], 9000))
begin = time.monotonic()
for _ in range(256):
    server.sendall(bytes(1 << 20))
server.recv(1)
print((256 << 20) / 1e6 / (time.monotonic() - begin))
begin = time.monotonic()
for _ in range(200):
    server.sendall(b"x")
    server.recv(1)
print((time.monotonic() - begin) / 200 * 1e6)
"""


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def short_slices():
    """Gives this process the shortest time slices. The relay and the master would run on machines of
    their own, so they must not wait for clients here."""
    die_with_parent()
    attributes = struct.pack("IIQiIQQQII", 56, 0, 0, 0, 0, SHORTEST_SLICE, 0, 0, 0, 0)
    ctypes.CDLL(None).syscall(SCHED_SETATTR[platform.machine()], 0, attributes, 0)


class Host:
    """A namespace. `start` runs a program in it."""

    def __init__(self, nth):
        self.address = f"{ADDRESS}{nth + 1}"
        words = ["unshare", "-n", "sh", "-c", "ip link set lo up && echo up && read -r end"]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        preexec_fn=die_with_parent)
        if self.process.stdout.readline() != b"up\n":
            raise OSError("a network namespace needs root")

    def words(self, *words):
        # The namespace's process is sh: unshare has become it.
        return ["nsenter", "-t", str(self.process.pid), "-n", *map(str, words)]

    def start(self, *words, before=die_with_parent, **options):
        return subprocess.Popen(self.words(*words), preexec_fn=before, **options)

    def run(self, *words):
        subprocess.run(self.words(*words), check=True)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def device(name):
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN_WITHOUT_HEADER))
    return tun


def relay(tuns, rate, delay):
    """Relays packets until standard input ends: `rate` in bytes a second, `delay` in seconds."""
    queues = {tun: collections.deque() for tun in tuns}
    free_at = dict.fromkeys(tuns, 0.0)
    while True:
        due = min((queue[0][0] for queue in queues.values() if queue), default=None)
        wait = None if due is None else max(0.0, due - time.monotonic())
        ready, _, _ = select.select([*tuns, sys.stdin], [], [], wait)
        if sys.stdin in ready:
            return
        now = time.monotonic()
        for tun in ready:
            packet = os.read(tun, 1 << 16)
            to = packet[19] - 1 if packet[0] >> 4 == 4 else len(tuns)
            if to < len(tuns):
                link = tuns[to]
                free_at[link] = max(now, free_at[link]) + len(packet) / rate
                queues[link].append((free_at[link] + delay, packet))
        now = time.monotonic()
        for link, queue in queues.items():
            while queue and queue[0][0] <= now:
                os.write(link, queue.popleft()[1])


class Network:
    """`count` hosts. The link to each has a rate in bytes a second and a delay in seconds."""

    def __init__(self, count, rate, delay):
        self.hosts = [Host(nth) for nth in range(count)]
        pids = [str(host.process.pid) for host in self.hosts]
        words = [sys.executable, __file__, str(rate), str(delay), *pids]
        self.relay = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      preexec_fn=short_slices)
        if self.relay.stdout.readline() != b"up\n":
            raise OSError("no TUN device")

    def measured(self):
        """Yields rows: what TCP gets from one host to another, and a round trip of one byte."""
        server = self.hosts[0].start(sys.executable, "-c", ECHO, stdout=subprocess.PIPE)
        server.stdout.readline()
        words = self.hosts[1].words(sys.executable, "-c", ASK, self.hosts[0].address)
        rate, trip = subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout.split()
        server.wait()
        yield "link_rate", {"MB/s": float(rate)}
        yield "link_round_trip", {"us": float(trip)}

    def end(self):
        self.relay.stdin.close()
        self.relay.wait()
        for host in self.hosts:
            host.end()


def main():
    rate, delay, pids = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    tuns = []
    for nth, pid in enumerate(pids):
        name = f"glebe-{os.getpid()}-{nth}"[-15:]
        tuns.append(device(name))
        enter = ["nsenter", "-t", pid, "-n", "ip"]
        for words in (
            ["ip", "link", "set", name, "netns", pid],
            [*enter, "address", "add", f"{ADDRESS}{nth + 1}/24", "dev", name],
            [*enter, "link", "set", name, "mtu", str(MTU), "txqueuelen", "1000", "up"],
        ):
            subprocess.run(words, check=True)
    print("up", flush=True)
    relay(tuns, rate, delay)


if __name__ == "__main__":
    main()
