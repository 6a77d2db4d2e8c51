"""Idle memory of three hosts as one Mooncake store, beside segments in ordinary shared memory.

Usage: main.py BENCH QUICK, with the program glebe-bench, and 1 for few samples. Prints lines of JSON:
a case, who, and a figure under its unit.
"""

import contextlib
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import growth
import shape
from net import Network, die_with_parent
from stack import GLEBE, PATIENCE, STOCK, Stack, eventually, say

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
        else:
            stack.agent(host)
        recalled(stack, host, case)


def recalled(stack, host, case, hold=0.0):
    """Recalls a host's segment, and tells the times. Returns false if nothing was lent there."""
    said = stack.recall(host, hold)
    if said["released"] is not None:
        say(case=case, who=GLEBE, ms=said["released"] / 1e3)
        say(case=f"{case}_leased", who=GLEBE, ms=said["leased"] / 1e3)
    return said["released"] is not None


def reads(stack, clients, least):
    """Checks reads of two hosts until there are `least`, beside recalls at random times."""
    for client in clients:
        client.ask("read", READ_KEYS, READ_BYTES)
    recalls_made = done = 0
    last = time.monotonic()
    while done < least or recalls_made == 0:
        time.sleep(random.expovariate(0.5))
        host = random.randrange(len(stack.hosts))
        recalls_made += recalled(stack, host, "recall_256m_reads")
        counts = [client.ask("counts") for client in clients]
        before, done = done, sum(it["hits"] + it["wrong"] for it in counts)
        last = time.monotonic() if done > before else last
        if time.monotonic() > last + PATIENCE:
            raise OSError(f"no value was read for {PATIENCE} s")
    for client in clients:
        client.ask("stop")
    counts = [client.ask("counts") for client in clients]
    say(case="checked_reads", who=GLEBE, count=sum(it["hits"] + it["wrong"] for it in counts))
    say(case="recalls_beside_reads", who=GLEBE, count=recalls_made)


def hit_ratio(stacks, clients, a_minute, seconds):
    """Asks both stores for the same blocks. The first third of the time fills the stores."""
    glebe = next(stack for stack in stacks if stack.kind == GLEBE)
    glebe.wait_for_all()
    case = f"hit_ratio_{a_minute}_recalls_a_minute" if a_minute else "hit_ratio"
    hits, asked, lent = dict.fromkeys(clients, 0), 0, 0.0
    # Each case has keys of its own, and the same requests.
    offset, begin = (a_minute + 1) * 10_000_000, time.monotonic()
    with recalling(glebe, a_minute, case):
        for turn, blocks in enumerate(shape.requests(1, SCALE)):
            numbers = [offset + block for block in blocks]
            is_counted = time.monotonic() > begin + seconds / 3
            for kind in clients:
                before = time.monotonic()
                had = clients[kind][turn % 2].ask("ask", BLOCK, *numbers)["hits"]
                if is_counted:
                    hits[kind] += had
                if is_counted and kind == GLEBE:
                    lent += glebe.capacity() * (time.monotonic() - before)
            asked += len(blocks) if is_counted else 0
            if time.monotonic() > begin + seconds and asked:
                break
    for kind in clients:
        say(case=case, who=kind, share=hits[kind] / asked)
    say(case=f"{case}_lent", who=GLEBE, **{"GiB-hours": lent / 3600 / (1 << 30)})
    say(case=f"{case}_served", who=GLEBE, GiB=hits[GLEBE] * BLOCK / (1 << 30))


@contextlib.contextmanager
def recalling(stack, a_minute, case):
    """Recalls segments at random times, and holds the memory for a second each time."""
    ended, failed = threading.Event(), []

    def run():
        try:
            while not ended.wait(random.expovariate(a_minute / 60)):
                recalled(stack, random.randrange(len(stack.hosts)), f"{case}_recall", hold=1.0)
        except OSError as error:
            failed.append(error)

    recaller = threading.Thread(target=run)
    if a_minute:
        recaller.start()
    try:
        yield
    finally:
        ended.set()
        if a_minute:
            recaller.join()
    if failed:
        raise failed[0]


def killed(stack, clients):
    """Kills the lender and the daemon of the second host. The others serve on."""
    # Otherwise another host's rest would look like the end of this one's segment.
    stack.wait_for_all()
    stack.kill(1)
    counts = [client.ask("counts") for client in clients]
    # The master forgets a host that is silent for its client_ttl.
    eventually("a dead host's segment goes", lambda: stack.capacity() <= 2 * SEGMENT_MIB << 20)
    for client in clients:
        client.ask("put", 1_000_000, 50, READ_BYTES)
        client.ask("get", 1_000_000, 50, READ_BYTES)
    after = [client.ask("counts") for client in clients]
    hits = sum(b["hits"] - a["hits"] for a, b in zip(counts, after))
    say(checks={"misses_after_a_host_died": 50 * len(clients) - hits})


def main():
    bench, quick = sys.argv[1], sys.argv[2] == "1"
    rounds, count, least, seconds = (2, 3, 2000, 3) if quick else (40, 60, 1_000_000, 60)
    die_with_parent()
    random.seed(5)
    with contextlib.ExitStack() as ends:
        network = Network(3, RATE, DELAY)
        ends.callback(network.end)
        for case, figure in network.measured():
            say(case=case, who=GLEBE, **figure)
        where = ends.enter_context(tempfile.TemporaryDirectory(dir=Path(__file__).parent))
        stacks = []
        for kind in (GLEBE, STOCK):
            stacks.append(Stack(kind, network.hosts, SEGMENT_MIB, where, bench, LEASE_TTL))
            ends.callback(stacks[-1].end)
        try:
            measure(stacks, quick, rounds, count, least, seconds)
        except Exception:
            for stack in stacks:
                print(*stack.last_words(), sep="\n", file=sys.stderr)
            raise
    hosts, seconds = ((2,), 3) if quick else ((1, 2, 4, 8, 16), 20)
    growth.run(bench, hosts, LEASE_TTL, seconds)


def measure(stacks, quick, rounds, count, least, seconds):
    for stack in stacks:
        stack.lend()
    clients = speed(stacks, rounds)
    recalls(stacks[0], "recall_256m", count)
    recalls(stacks[0], "recall_256m_hung", 1 if quick else 12, hang=True)
    reads(stacks[0], clients[GLEBE], least)
    for a_minute in (0, 60) if quick else (0, 1, 10, 60):
        hit_ratio(stacks, clients, a_minute, seconds)
    killed(stacks[0], clients[GLEBE])
    wrong = sum(it.ask("counts")["wrong"] for pair in clients.values() for it in pair)
    say(checks={"wrong_values": wrong})


main()
