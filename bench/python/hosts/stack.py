"""A store of Mooncake over some hosts: a master, segments of one kind, and clients."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from net import die_with_parent, short_slices

HERE = Path(__file__).parent
MASTER = Path(sys.executable).with_name("mooncake_master")
PATIENCE = 60
# Seconds until a master forgets a silent host; its default is 10.
CLIENT_TTL = 5
GLEBE, STOCK = "glebe", "shared memory"
# A reserve has room for the segment and a little more.
ROOM_MIB = 24


def say(**what):
    print(json.dumps(what), flush=True)


class Talker:
    """A child that answers lines with lines of JSON."""

    def __init__(self, child):
        self.child = child

    def ask(self, *words):
        self.child.stdin.write(" ".join(map(str, words)) + "\n")
        self.child.stdin.flush()
        return self.answer()

    def answer(self):
        line = self.child.stdout.readline()
        if not line:
            raise OSError(f"{self.child.args} ended with status {self.child.wait()}")
        return json.loads(line)

    def end(self):
        # A child that has failed has closed its pipe.
        with contextlib.suppress(OSError):
            self.child.stdin.close()
        ended(self.child)


def pipes(log):
    return {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}


def ended(child):
    """Waits for a child's end, and kills it if that takes too long."""
    try:
        child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def eventually(what, test):
    """Returns the first true result of `test`."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = test()
        if found:
            return found
        time.sleep(0.05)
    raise OSError(f"it took over {PATIENCE} s: {what}")


class Stack:
    """`kind` is GLEBE or STOCK: each host lends one segment of `mib` MiB. `bench` is the program
    glebe-bench, beside the program glebe."""

    def __init__(self, kind, hosts, mib, where, bench, lease_ttl):
        self.kind, self.hosts, self.mib, self.bench = kind, hosts, mib, bench
        self.where = Path(where, kind.replace(" ", "-"))
        self.where.mkdir()
        self.log = open(self.where / "log", "w")
        self.rpc, self.metrics = (50051, 50053) if kind == GLEBE else (50052, 50054)
        self.address = f"{hosts[0].address}:{self.rpc}"
        self.master = hosts[0].start(
            MASTER, "--rpc_port", self.rpc, "--metrics_port", self.metrics,
            "--default_kv_lease_ttl", round(lease_ttl * 1000), "--client_ttl", CLIENT_TTL,
            before=short_slices, stdout=self.log, stderr=self.log,
        )
        self.lease_ttl = lease_ttl
        self.lending, self.talkers, self.recallers = [], [], []
        self.pages = Pages(hosts[0], self.metrics, self.log)
        self.talkers.append(self.pages)
        eventually("a master's start", lambda: self.pages.ask(self.pages.port))

    def lend(self):
        """Starts what lends, and waits until the master knows all segments."""
        for nth, host in enumerate(self.hosts):
            if self.kind == STOCK:
                words = ("lend", host.address, self.address, self.mib << 20, 1)
                self.talkers.append(self.talker(host, HERE / "store.py", *words))
                continue
            self.serve(nth, host)
        for talker in self.talkers[1:]:
            talker.answer()
        self.wait_for_all()

    def serve(self, nth, host):
        glebe = Path(self.bench).with_name("glebe")
        socket = self.where / f"leases-{nth}"
        mib = self.mib + ROOM_MIB
        # An eighth of the memory is for the cache's answers.
        daemon = host.start(glebe, "serve", "--leases", "--lease-socket", socket, "-m", mib * 8 // 7 + 1,
                            "--control", self.where / f"control-{nth}",
                            stdout=self.log, stderr=self.log)
        eventually("a daemon's start", socket.exists)
        lender = host.start(
            glebe, "lend", "--mooncake", self.address, "--share", f"{self.mib}M", "--segment",
            f"{self.mib}M", "--host", host.address, "--socket", socket, "--python", sys.executable,
            "--control", self.where / f"lend-{nth}", "--rest", self.lease_ttl + 0.2, "--rest-max", self.lease_ttl + 0.2,
            stdout=self.log, stderr=self.log,
        )
        self.lending.append((lender, daemon))
        words = [self.bench, "child", str(os.getpid()), "hosts-recall", str(socket)]
        child = subprocess.Popen(words, preexec_fn=die_with_parent, **pipes(self.log))
        self.recallers.append(Talker(child))

    def talker(self, host, *words):
        return Talker(host.start(sys.executable, *words, **pipes(self.log)))

    def client(self, nth):
        host = self.hosts[nth]
        client = self.talker(host, HERE / "store.py", "client", host.address, self.address)
        client.answer()
        self.talkers.append(client)
        return client

    def capacity(self):
        return self.pages.read("master_total_capacity_bytes")

    def wait_for_all(self):
        eventually("all segments", lambda: self.capacity() >= len(self.hosts) * self.mib << 20)

    def recall(self, nth, hold=0.0):
        """Leases a segment's memory on a host. Returns the microseconds until the lender has released
        it (None if it had none), and until it is leased."""
        return self.recallers[nth].ask(self.mib, hold)

    def hang(self, nth):
        """Stops the process that has a host's segment mapped."""
        os.kill(self.agent(nth), signal.SIGSTOP)

    def agent(self, nth):
        """Waits until a host's segment is lent. Returns the process that has it mapped."""
        words = [Path(self.bench).with_name("glebe"), "lend", "status", "--json", "--control"]
        words.append(self.where / f"lend-{nth}")

        def lending():
            status = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
            is_lent = status["statistics"]["lent_bytes"] == self.mib << 20
            return status["agent"] if is_lent else 0

        return eventually("a segment that was recalled", lending)

    def kill(self, nth):
        """Kills a host's daemon and its lender, without a word."""
        for child in self.lending[nth]:
            child.kill()
            child.wait()

    def last_words(self):
        """Returns the last lines that the daemons, lenders and clients wrote."""
        lines = Path(self.log.name).read_text().splitlines()
        return [line for line in lines if not line.startswith(("I1", "I0", "W"))][-30:]

    def end(self):
        for talker in reversed(self.talkers + self.recallers):
            talker.end()
        for child in [*itertools.chain(*self.lending), self.master]:
            child.terminate()
            ended(child)
        self.log.close()


class Pages(Talker):
    """Reads the master's metrics from its host."""

    CODE = """
import http.client, json, sys
for line in sys.stdin:
    try:
        it = http.client.HTTPConnection("127.0.0.1", int(line))
        it.request("GET", "/metrics")
        print(json.dumps(it.getresponse().read().decode()), flush=True)
    except OSError:
        print(json.dumps(""), flush=True)
"""

    def __init__(self, host, port, log):
        super().__init__(host.start(sys.executable, "-c", self.CODE, **pipes(log)))
        self.port = port

    def read(self, name):
        for line in self.ask(self.port).splitlines():
            if line.startswith(name + " "):
                return float(line.rsplit(" ", 1)[1])
        raise OSError(f"the master does not tell {name}")
