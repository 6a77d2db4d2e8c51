#!/usr/bin/env python3
"""Spreads keys over three `glebe serve` by clients of memcached, while one of the nodes loses memory
or is killed.

    scripts/nodes_tests.py [--glebe target/debug/glebe] [--seed N] [NAME ...]

The nodes have addresses of their own, as hosts have. Each client runs through the same steps:

1. It stores and reads values while `glebe recall` takes most of one node's memory, again and again.
   Each hit must be the value that was stored last. The client must see no error, keep its
   connections, and count no node as failed.
2. That node is killed with SIGKILL. The keys of the other nodes still hit, and can be stored.
3. The node starts again at the same port. It has no items: its keys miss, and can be stored.

Clients that are not installed are skipped with a message, except `own`, which needs nothing. Exits
with 1 if anything failed.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib

from client_tests import Failed, Server, Skipped, python_with, run

MIB = "16"
KEYS = [f"key-{n}" for n in range(600)]
# Bytes of values: beside others in a page, in pages of their own. They fill a third of the nodes.
LENGTHS = [100, 3000, 9000, 60_000]
# Recalls, and the least and the most MiB of one. A node has 12 MiB for items.
RECALLS, TAKEN = 12, (10, 11)
# Seconds that a client waits for a node. No node is slow, so an error of this kind is a failure.
TIMEOUT = 20
# Seconds that a client may take to find a node that is back.
PATIENCE = 60


def value(key, version, times):
    text = f"{key} {version} ".encode()
    length = LENGTHS[zlib.crc32(text) % len(LENGTHS)] * times + zlib.crc32(key.encode()) % 97
    return (text * (length // len(text) + 1))[:length]


class Node:
    def __init__(self, glebe, host, folder):
        self.glebe, self.host, self.folder = glebe, host, folder
        self.control, self.port = folder / f"{host}.control", "0"
        self.start()

    def start(self):
        command = [self.glebe, "serve", "--memcached", "-m", MIB, "-l", f"{self.host}:{self.port}",
                   "--control", self.control]
        env = {**os.environ, "XDG_RUNTIME_DIR": str(self.folder)}
        self.server = Server(self.glebe, command=command, env=env)
        self.port = self.server.port
        self.asked = Text(self.host, self.port)

    def kill(self):
        self.server.process.kill()
        self.server.process.wait()

    def end(self):
        if self.server.process.poll() is None:
            self.server.__exit__()

    def stats(self):
        return {name: int(number) for name, number in self.asked.stats().items() if number.isdigit()}

    def recall(self, mib, millis):
        run([self.glebe, "recall", f"{mib}M", "--for", f"{millis}ms", "--control", self.control])


class Text:
    """A connection that speaks the text protocol. `errors` lists what went wrong in it."""

    def __init__(self, host, port):
        self.address, self.stream, self.errors = (host, int(port)), None, []

    def write(self, data):
        if not self.stream:
            self.stream = socket.create_connection(self.address, TIMEOUT).makefile("rwb")
        self.stream.write(data)
        self.stream.flush()

    @contextlib.contextmanager
    def failing(self):
        """Lists an error of the connection, and ends the connection."""
        try:
            yield
        except OSError as error:
            self.errors.append(f"{self.address}: {error!r}")
            self.stream = None

    def line(self):
        line = self.stream.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("closed")
        return line.split()

    def error(self, words):
        self.errors.append(b" ".join(words).decode())

    def set(self, values):
        """Returns the keys that were not stored."""
        left = set(values)
        with self.failing():
            self.write(b"".join(b"set %s 0 0 %d\r\n%s\r\n" % (key.encode(), len(data), data)
                                for key, data in values.items()))
            for key in values:
                if (words := self.line()) == [b"STORED"]:
                    left.discard(key)
                else:
                    self.error(words)
        return left

    def get(self, keys):
        """Returns the values that were found."""
        found = {}
        with self.failing():
            self.write(b"".join(b"get %s\r\n" % key.encode() for key in keys))
            for key in keys:
                words = self.line()
                if words[0] == b"VALUE":
                    found[key] = self.stream.read(int(words[3]) + 2)[:-2]
                    words = self.line()
                if words != [b"END"]:
                    self.error(words)
        return found

    def stats(self):
        rows = {}
        with self.failing():
            self.write(b"stats\r\n")
            while len(words := self.line()) == 3:
                rows[words[1].decode()] = words[2].decode()
        return rows


class Own:
    """Chooses the node with the highest hash of node and key."""

    def __init__(self, nodes, _scratch):
        self.texts = [Text(node.host, node.port) for node in nodes]

    @property
    def errors(self):
        return [error for text in self.texts for error in text.errors]

    def parts(self, keys):
        parts = {text: [] for text in self.texts}
        for key in keys:
            parts[max(parts, key=lambda text: zlib.crc32(f"{text.address}{key}".encode()))].append(key)
        return parts.items()

    def set(self, values):
        parts = [text.set({key: values[key] for key in keys}) for text, keys in self.parts(values)]
        return set().union(*parts)

    def get(self, keys):
        return {key: data for text, part in self.parts(keys) for key, data in text.get(part).items()}

    def end(self):
        pass


class KeyByKey:
    """A client whose `put` and `find` take one key, and raise its errors."""

    def __init__(self):
        self.errors = []

    def done(self, call, *args):
        try:
            return call(*args)
        except self.raises as error:
            self.errors.append(repr(error))
            return None

    def set(self, values):
        return {key for key, data in values.items() if not self.done(self.put, key, data)}

    def get(self, keys):
        found = {key: self.done(self.find, key) for key in keys}
        return {key: data for key, data in found.items() if data is not None}

    def end(self):
        pass


class Pymemcache(KeyByKey):
    """Keeps a node that fails: with fewer attempts, its keys would move to other nodes."""

    def __init__(self, nodes, _scratch):
        from pymemcache.client.hash import HashClient
        from pymemcache.exceptions import MemcacheError

        super().__init__()
        self.raises = (MemcacheError, OSError)
        self.client = HashClient([(node.host, int(node.port)) for node in nodes], timeout=TIMEOUT,
                                 connect_timeout=TIMEOUT, default_noreply=False,
                                 retry_attempts=1 << 30, retry_timeout=0.1)
        self.put, self.find = self.client.set, self.client.get


class Pylibmc(KeyByKey):
    """libmemcached with its ketama."""

    def __init__(self, nodes, _scratch):
        import pylibmc

        super().__init__()
        self.raises = pylibmc.Error
        self.client = pylibmc.Client([f"{node.host}:{node.port}" for node in nodes], behaviors={
            "ketama": True, "tcp_nodelay": True, "retry_timeout": 1,
            "connect_timeout": TIMEOUT * 1000})
        self.put, self.find = self.client.set, self.client.get


class Tools(KeyByKey):
    """libmemcached's commands: a process, and new connections, for each key."""

    keeps_connections = False
    # It is slow, so it has a tenth of the keys, with values of ten times the length.
    fewer = 10
    raises = Failed

    def __init__(self, nodes, scratch):
        super().__init__()
        self.servers = "--servers=" + ",".join(f"{node.host}:{node.port}" for node in nodes)
        self.folder = scratch / "values"
        self.folder.mkdir()

    def put(self, key, data):
        (self.folder / key).write_bytes(data)
        run(["memccp", self.servers, self.folder / key])
        return True

    def find(self, key):
        ran = subprocess.run(["memccat", self.servers, key], capture_output=True, timeout=PATIENCE)
        if ran.stderr:
            raise Failed(ran.stderr.decode())
        return ran.stdout[:-1] if ran.returncode == 0 else None


TWEMPROXY = """glebe:
  listen: 127.0.0.1:{port}
  hash: fnv1a_64
  distribution: ketama
  auto_eject_hosts: false
  timeout: {timeout}
  server_retry_timeout: 100
  servers:
"""


class Twemproxy(Text):
    """A connection to twemproxy, whose own counts of a node's errors are errors, too."""

    def __init__(self, nodes, scratch):
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
            port, self.port_of_stats = one.getsockname()[1], two.getsockname()[1]
        config = scratch / "twemproxy.yml"
        servers = "".join(f"    - {node.host}:{node.port}:1\n" for node in nodes)
        config.write_text(TWEMPROXY.format(port=port, timeout=TIMEOUT * 1000) + servers)
        self.process = subprocess.Popen(
            ["nutcracker", "-c", config, "-a", "127.0.0.1", "-s", str(self.port_of_stats), "-i", "100",
             "-p", scratch / "twemproxy.pid", "-o", scratch / "twemproxy.log"],
            stderr=subprocess.DEVNULL)
        super().__init__("127.0.0.1", port)
        try:
            self.wait()
        except BaseException:
            self.end()
            raise

    def wait(self):
        until("twemproxy", lambda: self.get(["none"]) == {} and not self.errors or self.errors.clear())

    def failures(self):
        """Returns twemproxy's counts of failures of nodes."""
        with socket.create_connection(("127.0.0.1", self.port_of_stats), TIMEOUT) as stream:
            pool = json.load(stream.makefile("rb"))["glebe"]
        nodes = {name: node for name, node in pool.items() if isinstance(node, dict)}
        return {f"{name} {count}": node[count] for name, node in nodes.items()
                for count in ("server_err", "server_timedout", "server_eof") if node[count]}

    def end(self):
        self.process.terminate()
        self.process.wait()


def until(what, is_true):
    end = time.monotonic() + PATIENCE
    while not is_true():
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {PATIENCE} s")
        time.sleep(0.05)


class Checked:
    """Stores and reads values through a client, and checks each hit."""

    def __init__(self, client):
        self.client, self.times = client, getattr(client, "fewer", 1)
        self.keys = KEYS[:len(KEYS) // self.times]
        self.versions, self.hits, self.misses = {}, 0, 0

    def value(self, key):
        return value(key, self.versions[key], self.times)

    def store(self, keys):
        """Returns the keys that were not stored."""
        for key in keys:
            self.versions[key] = self.versions.get(key, 0) + 1
        return self.client.set({key: self.value(key) for key in keys})

    def read(self, keys):
        """Returns the keys that hit."""
        found = self.client.get(keys)
        for key, data in found.items():
            if data != self.value(key):
                raise Failed(f"{key}: {data[:40]!r}, {len(data)} bytes, is not version "
                             f"{self.versions[key]}")
        self.hits += len(found)
        self.misses += len(keys) - len(found)
        return set(found)


def need(what, is_true, *found):
    if not is_true:
        raise Failed(f"not true: {what} {' '.join(map(str, found))[:500]}")


def recalled(checked, victim, nodes, choose):
    """Takes memory of a node at random times while values are stored and read."""
    before = [node.stats() for node in nodes]
    wrong = []

    def recalls():
        try:
            for _ in range(RECALLS):
                time.sleep(choose.uniform(0, 0.05))
                victim.recall(choose.randint(*TAKEN), choose.randint(0, 60))
        except Exception as error:  # shown by the thread that waits
            wrong.append(error)

    thread = threading.Thread(target=recalls)
    thread.start()
    while thread.is_alive():
        not_stored = checked.store(choose.sample(checked.keys, 20))
        need("each value is stored", not not_stored, not_stored, checked.client.errors)
        checked.read(choose.sample(checked.keys, 60))
    thread.join()
    need("recalls succeed", not wrong, wrong)
    checked.read(checked.keys)
    after = [node.stats() for node in nodes]
    lost = {node: now["recalled_items"] - then["recalled_items"]
            for node, now, then in zip(nodes, after, before)}
    # The reserve's index may displace a page without a recall, which is rare.
    need("one node lost items", 2 * lost[victim] > sum(lost.values()), *lost.values())
    need("there were hits and misses", checked.hits > 0 and checked.misses > 0)
    need("the client saw no error", not checked.client.errors, checked.client.errors)
    if getattr(checked.client, "keeps_connections", True):
        all_of = [[stats["total_connections"] for stats in when] for when in (before, after)]
        need("connections were kept", all_of[0] == all_of[1], all_of)
    if isinstance(checked.client, Twemproxy):
        failures = checked.client.failures()
        need("twemproxy saw no node fail", not failures, failures)
    return lost[victim]


def killed(checked, node):
    """Kills a node, and starts it again at its port."""
    # A node uses memory that is given back after its next tick, a tenth of a second later.
    until("all keys hit without a recall",
          lambda: not checked.store(checked.keys) and checked.read(checked.keys) == set(checked.keys))
    node.kill()
    left = checked.read(checked.keys)
    gone = sorted(set(checked.keys) - left)
    need("the keys of one node miss", 0 < len(gone) < len(checked.keys), len(gone))
    need("the client saw the node fail", checked.client.errors)
    checked.read(checked.keys)
    not_stored = checked.store(sorted(left))
    need("the other nodes store", not not_stored, not_stored)
    need("what they stored hits", checked.read(sorted(left)) == left)

    node.start()
    need("the node comes back empty", node.stats()["curr_items"] == 0)
    until("the client finds the node", lambda: not checked.store(gone[:1]))
    hits = checked.read(gone)
    need("the other keys of the node miss", hits == set(gone[:1]), hits)
    misses = node.stats()["get_misses"]
    need("the node itself answered that", misses == len(gone) - 1, misses, len(gone))
    need("the other nodes still hit", checked.read(sorted(left)) == left)
    need("it is filled again", not checked.store(gone) and checked.read(gone) == set(gone))
    items = node.stats()["curr_items"]
    need("it has the keys that it had", items == len(gone), items, len(gone))
    return len(gone)


def conversation(client_of):
    def test(nodes, scratch, choose):
        client = client_of(nodes, scratch)
        try:
            checked = Checked(client)
            checked.store(checked.keys)
            victim = max(nodes, key=lambda node: node.stats()["bytes"])
            lost = recalled(checked, victim, nodes, choose)
            hits, misses = checked.hits, checked.misses
            gone = killed(checked, victim)
        finally:
            client.end()
        return (f"{RECALLS} recalls took {lost} items: {hits} hits, {misses} misses, no error; "
                f"{gone} keys of a killed node missed and came back")
    return test


# Without a configuration the program writes one to the user's home.
MEMCASLAP = "key\n64 64 1\nvalue\n4000 4000 1\ncmd\n0 0.1\n1 0.9\n"


def memcaslap(nodes, scratch, choose):
    """Runs libmemcached's generator of load, which checks each value that it gets."""
    config = scratch / "memcaslap"
    config.write_text(MEMCASLAP)
    servers = ",".join(f"{node.host}:{node.port}" for node in nodes)
    command = ["memcaslap", "-s", servers, "-T", "3", "-c", "12", "-t", "3s", "-v", "1",
               "-F", config]
    log = scratch / "memcaslap.log"
    with log.open("w") as to:
        process = subprocess.Popen(command, stdout=to, stderr=subprocess.STDOUT)
    end = time.monotonic() + PATIENCE
    try:
        while process.poll() is None and time.monotonic() < end:
            nodes[-1].recall(choose.randint(*TAKEN), choose.randint(0, 60))
    finally:
        process.kill()
        process.wait()
    out = log.read_text(errors="replace")
    counts = {name: int(count) for name, count in re.findall(r"^(\w+): (\d+)$", out, re.M)}
    failed = process.returncode or re.search(r"(?i)error|connection", out)
    need("memcaslap ends well", not failed and counts, out[-300:])
    need("no value is wrong", counts.get("verify_failed") == 0, counts)
    need("it gets values, and misses some", 0 < counts.get("get_misses", 0) < counts.get("cmd_get", 0), counts)
    return f"{counts['cmd_get']} gets, {counts['get_misses']} misses, 0 wrong"


# Each test, with the programs and the Python module that it needs.
TESTS = {
    "own": (conversation(Own), [], None),
    "pymemcache": (conversation(Pymemcache), [], "pymemcache"),
    "pylibmc": (conversation(Pylibmc), [], "pylibmc"),
    "twemproxy": (conversation(Twemproxy), ["nutcracker"], None),
    "memccp": (conversation(Tools), ["memccp", "memccat"], None),
    "memcaslap": (memcaslap, ["memcaslap"], None),
}


def tested(name, args):
    test, programs, module = TESTS[name]
    for program in programs:
        if not shutil.which(program):
            raise Skipped(f"{program} is not installed")
    if module and (python := python_with(module)) != sys.executable:
        return run([python, __file__, "--glebe", args.glebe, "--seed", args.seed, name]).strip()
    # Addresses of this machine that no other process of a test uses.
    net = f"127.{os.getpid() % 254 + 1}.{os.getpid() // 254 % 256}"
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as ends:
        scratch, nodes = pathlib.Path(scratch), []
        for number in range(1, 4):
            nodes.append(Node(os.path.abspath(args.glebe), f"{net}.{number}", scratch))
            ends.callback(nodes[-1].end)
        return f"{name:<11} {test(nodes, scratch, random.Random(args.seed))}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TESTS))
    parser.add_argument("--glebe", default="target/debug/glebe")
    parser.add_argument("--seed", default=str(random.randrange(1 << 32)))
    args = parser.parse_args()
    if unknown := set(args.names) - set(TESTS):
        parser.error(f"no test is called {unknown.pop()}")
    is_wrong = False
    # An exit ends the servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for name in args.names or TESTS:
        try:
            print(tested(name, args), flush=True)
        except Skipped as why:
            print(f"skipped: {name} ({why})", flush=True)
        except (Failed, OSError, subprocess.SubprocessError) as why:
            print(f"{name:<11} FAILED with --seed {args.seed}: {why}", flush=True)
            is_wrong = True
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
