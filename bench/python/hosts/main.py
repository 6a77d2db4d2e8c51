"""Idle memory of three hosts as one Mooncake store, beside segments in ordinary shared memory.

Usage: main.py BENCH QUICK, with the program glebe-bench, and 1 for few samples. Prints lines of JSON,
as small.py does.
"""

import json
import random
import sys
import tempfile
import threading
import time

import growth
import shape
from net import Network, die_with_parent
from stack import GLEBE, STOCK, Stack, eventually

# A link of 4 Gbit/s and 0.1 ms.
RATE, DELAY = 4e9 / 8, 1e-4
# Seconds that the masters let a reader use what it looked up.
LEASE_TTL = 2.0
SEGMENT_MIB = 256
BATCHES = {"64k": (1 << 16, 32), "1m": (1 << 20, 8)}
READ_KEYS, READ_BYTES = 4000, 4096
BLOCK = 1 << 18
# The trace's store had more blocks than this one.
SCALE = 10


def say(**what):
    print(json.dumps(what), flush=True)


def speed(stacks, rounds):
    """Puts from the second host and gets from the third."""
    clients = {stack.kind: (stack.client(1), stack.client(2)) for stack in stacks}
    for nth in range(rounds):
        for size, (length, count) in BATCHES.items():
            first = nth * count
            for stack in stacks if nth % 2 else reversed(stacks):
                for what, client in zip(("put", "get"), clients[stack.kind]):
                    for us in client.ask(what, first, count, length)["us"]:
                        say(case=f"{what}_{size}", who=stack.kind, round=nth, us=us)
    return clients


def recalls(stack, case, count, hang=False):
    """Recalls each host's segment in turn, once it is lent again."""
    for nth in range(count):
        stack.wait_for_all()
        host = nth % len(stack.hosts)
        if hang:
            stack.hang(host)
        for what, us in stack.recall(host).items():
            say(case=f"{case}{what}", who=GLEBE, ms=us / 1e3)


def reads(stack, clients, least):
    """Checks reads of two hosts until there are `least`, beside recalls at random times."""
    for client in clients:
        client.ask("read", READ_KEYS, READ_BYTES)
    recalled = 0
    while True:
        time.sleep(random.expovariate(2.0))
        host = random.randrange(len(stack.hosts))
        for what, us in stack.recall(host).items():
            say(case=f"recall_256m_reads{what}", who=GLEBE, ms=us / 1e3)
        recalled += 1
        counts = [client.ask("counts") for client in clients]
        done = sum(it["hits"] + it["wrong"] for it in counts)
        if done >= least:
            break
    for client in clients:
        client.ask("stop")
    counts = [client.ask("counts") for client in clients]
    say(case="checked_reads", who=GLEBE, count=sum(it["hits"] + it["wrong"] for it in counts))
    say(case="recalls_beside_reads", who=GLEBE, count=recalled)


def hit_ratio(stacks, clients, a_minute, seconds):
    """Asks both stores for the same blocks."""
    glebe = next(stack for stack in stacks if stack.kind == GLEBE)
    glebe.wait_for_all()
    ended, served = threading.Event(), Lent(glebe)

    def recalling():
        while not ended.wait(random.expovariate(a_minute / 60)):
            glebe.recall(random.randrange(len(glebe.hosts)), hold=1.0)

    recaller = threading.Thread(target=recalling)
    if a_minute:
        recaller.start()
    hits, asked, end = dict.fromkeys(clients, 0), 0, time.monotonic() + seconds
    # Each case has blocks of its own, so it begins with stores that are full of others.
    offset = (a_minute + 1) * 10_000_000
    for turn, blocks in enumerate(shape.requests(a_minute, SCALE)):
        numbers = [offset + block for block in blocks]
        for kind in clients:
            hits[kind] += clients[kind][turn % 2].ask("ask", BLOCK, *numbers)["hits"]
        asked += len(blocks)
        served.look()
        if time.monotonic() > end:
            break
    ended.set()
    if a_minute:
        recaller.join()
    case = f"hit_ratio_{a_minute}_recalls_a_minute" if a_minute else "hit_ratio"
    for kind in clients:
        say(case=case, who=kind, share=hits[kind] / asked)
    say(case=f"{case}_lent", who=GLEBE, **{"GiB-hours": served.byte_seconds / 3600 / (1 << 30)})
    say(case=f"{case}_served", who=GLEBE, GiB=hits[GLEBE] * BLOCK / (1 << 30))


class Lent:
    """Adds up the bytes that the master knows, by the second."""

    def __init__(self, stack):
        self.stack, self.byte_seconds, self.last = stack, 0.0, time.monotonic()

    def look(self):
        now = time.monotonic()
        if now - self.last > 0.2:
            self.byte_seconds += self.stack.capacity() * (now - self.last)
            self.last = now


def killed(stack, clients):
    """Kills all of the first lending host but its network. The other hosts serve on."""
    stack.kill(1)
    counts = [client.ask("counts") for client in clients]
    # The master forgets a host that is silent for its client_ttl.
    eventually("a dead host's segment goes", lambda: stack.capacity() <= 2 * SEGMENT_MIB << 20)
    for client in clients:
        client.ask("put", 0, 50, READ_BYTES)
        client.ask("get", 0, 50, READ_BYTES)
    after = [client.ask("counts") for client in clients]
    hits = sum(b["hits"] - a["hits"] for a, b in zip(counts, after))
    say(case="hits_after_a_host_died", who=GLEBE, share=hits / 100)


def main():
    bench, quick = sys.argv[1], sys.argv[2] == "1"
    rounds, count, least, seconds = (2, 3, 2000, 2) if quick else (40, 60, 1_000_000, 60)
    die_with_parent()
    random.seed(5)
    network = Network(3, RATE, DELAY)
    with tempfile.TemporaryDirectory() as where:
        make = lambda kind: Stack(kind, network.hosts, SEGMENT_MIB, where, bench, LEASE_TTL)
        stacks = [make(kind) for kind in (GLEBE, STOCK)]
        try:
            for stack in stacks:
                stack.lend()
            clients = speed(stacks, rounds)
            recalls(stacks[0], "recall_256m", count)
            recalls(stacks[0], "recall_256m_hung", 1 if quick else 20, hang=True)
            reads(stacks[0], clients[GLEBE], least)
            for a_minute in (0, 60) if quick else (0, 1, 10, 60):
                hit_ratio(stacks, clients, a_minute, seconds)
            killed(stacks[0], clients[GLEBE])
            wrong = sum(it.ask("counts")["wrong"] for pair in clients.values() for it in pair)
            say(checks={"wrong_values": wrong})
        except OSError:
            for stack in stacks:
                print(*stack.last_words(), sep="\n", file=sys.stderr)
            raise
        finally:
            for stack in stacks:
                stack.end()
            network.end()
    hosts, seconds = ((1, 2), 3) if quick else ((1, 2, 4, 8, 16), 30)
    growth.run(bench, hosts, LEASE_TTL, seconds)


main()
