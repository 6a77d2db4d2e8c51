#!/usr/bin/env python3
"""Ages the machine and asks glebe for contiguous memory; an independent reader judges the result.

Usage: accept.py [--mixtures NAME,..] [--tries N] [--rounds N] [--quick] [--json FILE] ...

Needs root, which may see frames. For each mixture of ager.py and each round, ages the machine once,
and then asks for a run of each length in turn, N times. Before each try the reader (judge.c, which
shares no code with glebe) looks at every frame. A try is *beside a free run* if the reader saw a
free run of at least twice the length that begins on a huge page, and *beside a whole GiB* if it saw
an aligned GiB with all frames free or movable. After a refusal a search over all spare memory must
find nothing. Then makes reserves of 1 GiB with the defaults, and takes runs out of evacuated memory
blocks: of 128 MiB, and of 1 GiB or the longest stretch of blocks without stuck frames. Prints what
a busy program saw meanwhile and what the kernel logged. Exits with 1 if a bar of BARS is missed.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys

import ager

ROOT = ager.HERE.parent.parent
MIB, GIB = 1 << 20, 1 << 30
LENGTHS = [2 * MIB, 8 * MIB, 64 * MIB, 256 * MIB]
RESERVE = GIB
BLOCKS = 128 * MIB
PAGE = os.sysconf("SC_PAGESIZE")
PRESENT, FRAME = 1 << 63, (1 << 55) - 1
KPAGE = ["/proc/kpageflags", "/proc/kpagecount", "/sys/devices/system/memory"]
BARS = {
    "free": 0.99,  # share of tries beside a free run that succeed
    "gib": 0.95,  # share of tries beside a whole GiB that succeed
    "p99_64m_ms": 2000,
    "cache_lost": 2.0,  # page cache lost, over the length
    "blocks": 1.0,  # share that succeed while BLOCKS_SHARE of all blocks hold nothing stuck
    "blocks_ms": 1000,
    "failed_trials": 0.1,  # failures in the kernel's log, over blocks evacuated
    "reserve": 0.7,  # longest run, over the lesser of the length and the longest free run
}
BLOCKS_SHARE = 0.05


def judged(tools):
    """Returns what the reader sees now, and the size of the page cache."""
    seen = subprocess.run([tools.path("judge"), *KPAGE], capture_output=True, check=True, text=True)
    return {**json.loads(seen.stdout), "page_cache": ager.page_cache()}


def longest_run(process, address, length):
    with open(f"/proc/{process}/pagemap", "rb") as file:
        file.seek(address // PAGE * 8)
        entries = memoryview(file.read(length // PAGE * 8)).cast("Q")
    longest = run = 0
    before = None
    for entry in entries:
        frame = entry & FRAME if entry & PRESENT else None
        run = run + 1 if before is not None and frame == before + 1 else int(frame is not None)
        before = frame
        longest = max(longest, run)
    return longest * PAGE


class Attempt:
    """One try by the driver, which holds its memory until `end`."""

    def __init__(self, driver, what, length):
        pipe = subprocess.PIPE
        command = [driver, what, str(length)]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        line = self.process.stdout.readline()
        self.answer = json.loads(line) if line else {"had": False, "ms": 0, "why": "it died"}
        if self.answer["had"]:
            place = self.answer["address"], self.answer["len"]
            self.answer["seen"] = longest_run(self.process.pid, *place)

    def end(self):
        out, _ = self.process.communicate("")
        if out:
            self.answer.update(json.loads(out))
        self.answer["status"] = self.process.returncode
        return self.answer


def zones():
    blocks = pathlib.Path(KPAGE[2]).glob("memory*")
    def read(path):
        return path.read_text().split()[0]
    return {block.name: (read(block / "state"), read(block / "valid_zones")) for block in blocks}


def kernel_log(after=0.0):
    """Returns the time of the kernel log's last line; of the lines after `after`, the number of
    failed trials, and the warnings."""
    log = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace").stdout
    lines = [line[1:].split("]", 1) for line in log.splitlines() if line.startswith("[")]
    lines = [(float(at), text) for at, text in lines]
    new = [text for at, text in lines if at > after]
    failed = sum("page dumped because" in text for text in new)
    words = ("WARNING:", "BUG:", "Oops", "Call Trace", "Out of memory")
    bad = [text for text in new if any(word in text for word in words)]
    return lines[-1][0] if lines else 0.0, failed, bad


def one_try(tools, options, what, length):
    """Tries once. The reader looks before, and the page cache is measured before and after."""
    before = judged(tools)
    attempt = Attempt(options.driver, what, length)
    cache = ager.page_cache()
    answer = attempt.end()
    lost = max(0, before["page_cache"] - cache)
    result = {"what": what, "length": length, "before": before, "cache_lost": lost, **answer}
    if what == "run" and not answer["had"] and options.search:
        result["search"] = Attempt(options.driver, "search", length).end()
    return result


def share(part, whole):
    return part / whole if whole else None


def percentile(values, percent):
    """Returns the least value that `percent` % of the values do not exceed, or None."""
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * percent // 100) - 1)] if ranked else None


def row_of(mixture, length, tries):
    had = [one for one in tries if one["had"]]
    beside = {
        "free": [one for one in tries if one["before"]["free_run"] >= 2 * length],
        "gib": [one for one in tries if one["before"]["whole_gib"] > 0],
    }
    row = {"mixture": mixture, "length": length, "tries": len(tries), "had": len(had)}
    for name, those in beside.items():
        row[f"beside_{name}"] = len(those)
        row[f"had_beside_{name}"] = sum(one["had"] for one in those)
    refused = [one for one in tries if not one["had"]]
    row["refused_and_found"] = sum(one.get("search", {}).get("had", False) for one in refused)
    row["not_contiguous"] = sum(one["seen"] < length for one in had)
    for name, those in ("had", had), ("refused", refused):
        for percent in (50, 99, 100):
            row[f"{name}_p{percent}_ms"] = percentile([one["ms"] for one in those], percent)
    row["cache_lost_max"] = max((one["cache_lost"] for one in tries), default=0)
    row["given_back_p99_ms"] = percentile([one["given_back_ms"] for one in had], 99)
    return row


def reserve_row_of(mixture, tries):
    had = [one for one in tries if one["had"]]
    best = [min(one["length"], one["before"]["free_run"]) for one in had]
    shares = [one["seen"] / best for one, best in zip(had, best) if best]
    row = {"mixture": mixture, "tries": len(tries), "had": len(had)}
    row["longest"] = [one["seen"] for one in had]
    row["free_run"] = [one["before"]["free_run"] for one in had]
    row["share_min"] = min(shares, default=None)
    row["p100_ms"] = max((one["ms"] for one in had), default=None)
    row["cache_lost_max"] = max((one["cache_lost"] for one in tries), default=0)
    return row


def try_blocks(tools, options, aged):
    """Takes runs out of memory blocks. Returns the tries, the kernel's log and the busy report."""
    before, (at, _, _) = zones(), kernel_log()
    if aged.busy:
        aged.busy.report()
    tries = [one_try(tools, options, "blocks", BLOCKS) for _ in range(options.blocks)]
    for _ in range(min(options.blocks, 3)):
        stretch = judged(tools)["stretch"]
        if stretch:
            tries.append(one_try(tools, options, "blocks", min(GIB, stretch)))
    _, failed, bad = kernel_log(at)
    here = {"tries": tries, "failed_trials": failed, "warnings": bad}
    here["changed"] = sorted(set(zones().items()) ^ set(before.items()))
    here["busy"] = aged.busy.report() if aged.busy else None
    return here


def blocks_row_of(mixture, rounds):
    tries = [one for here in rounds for one in here["tries"]]
    row = {"mixture": mixture, "lengths": []}
    for what, those in (
        ("128 MiB", [one for one in tries if one["length"] == BLOCKS]),
        ("1 GiB or all", [one for one in tries if one["length"] != BLOCKS]),
    ):
        could = [one for one in those if one["before"]["blocks_movable"]
                 >= BLOCKS_SHARE * one["before"]["blocks"]]
        had = [one for one in those if one["had"]]
        row["lengths"].append({
            "what": what, "tries": len(those), "had": len(had), "could": len(could),
            "had_of_could": sum(one["had"] for one in could),
            "not_contiguous": sum(one["seen"] < one["length"] for one in had),
            **{f"p{percent}_ms": percentile([one["ms"] for one in had], percent)
               for percent in (50, 100)},
            "given_back_p100_ms": percentile([one["given_back_ms"] for one in had], 100),
        })
    row["failed_trials"] = sum(here["failed_trials"] for here in rounds)
    row["evacuated"] = sum(one["length"] // BLOCKS for one in tries if one["had"])
    row["warnings"] = [line for here in rounds for line in here["warnings"]]
    row["changed"] = [change for here in rounds for change in here["changed"]]
    row["busy"] = [here["busy"] for here in rounds if here["busy"]]
    return row


def blocks_misses_of(row):
    """Returns the missed bars, in words."""
    name, said = row["mixture"], []
    for part in row["lengths"]:
        got = share(part["had_of_could"], part["could"])
        if got is not None and got < BARS["blocks"]:
            said.append(f"{name}: blocks, {part['what']}: {got:.0%} had")
        if part["what"] == "128 MiB" and (part["p100_ms"] or 0) > BARS["blocks_ms"]:
            said.append(f"{name}: blocks, {part['what']}: {part['p100_ms']:.0f} ms")
        if part["not_contiguous"]:
            said.append(f"{name}: blocks, {part['what']}: not contiguous")
    if row["failed_trials"] > BARS["failed_trials"] * max(1, row["evacuated"]):
        said.append(f"{name}: {row['failed_trials']} failed trials of {row['evacuated']} blocks")
    said += [f"{name}: the kernel logged {line}" for line in row["warnings"]]
    said += [f"{name}: a block changed: {change}" for change in row["changed"]]
    said += [f"{name}: wrong words: {busy}" for busy in row["busy"] if busy["wrong"]]
    return said


def misses_of(row, tries):
    """Returns the missed bars, in words, and the tries that show the misses."""
    name, length = row["mixture"], row["length"]
    said, shown = [], []
    for beside, least in (("free", BARS["free"]), ("gib", BARS["gib"])):
        got = share(row[f"had_beside_{beside}"], row[f"beside_{beside}"])
        if got is not None and got < least:
            said.append(f"{name} {length >> 20} MiB: {got:.0%} had beside a {beside} run")
    shown += [one for one in tries if not one["had"] and one["before"]["free_run"] >= 2 * length]
    shown += [one for one in tries if not one["had"] and one["before"]["whole_gib"]]
    slow = max(row["had_p99_ms"] or 0, row["refused_p99_ms"] or 0)
    if length == 64 * MIB and slow > BARS["p99_64m_ms"]:
        said.append(f"{name} 64 MiB: p99 {slow:.0f} ms")
        shown += [one for one in tries if one["ms"] > BARS["p99_64m_ms"]]
    if row["cache_lost_max"] > BARS["cache_lost"] * length:
        said.append(f"{name} {length >> 20} MiB: {row['cache_lost_max'] >> 20} MiB of cache lost")
        shown += [one for one in tries if one["cache_lost"] > BARS["cache_lost"] * length]
    for count in ("refused_and_found", "not_contiguous"):
        if row[count]:
            said.append(f"{name} {length >> 20} MiB: {count} {row[count]}")
    shown += [one for one in tries if one.get("search", {}).get("had")]
    return said, [one for n, one in enumerate(shown) if one not in shown[:n]]


def on_mixture(tools, options, mixture, result):
    """Ages the machine with one mixture, makes the tries, and adds their figures to `result`."""
    runs = {length: [] for length in options.lengths}
    reserves, blocks = [], []
    for number in range(options.rounds):
        with ager.Aged(tools, mixture, options.most, options.dir, seed=number + 1) as aged:
            now = judged(tools)
            print(
                f"{mixture}: aged in {aged.seconds:.0f} s; longest free run "
                f"{now['free_run'] >> 20} MiB, {now['free'] >> 20} MiB free, whole GiB "
                f"{now['whole_gib']}, blocks that could go {now['blocks_movable']} of "
                f"{now['blocks']}",
                flush=True,
            )
            for _ in range(options.tries):
                for length in options.lengths:
                    runs[length].append(one_try(tools, options, "run", length))
            for _ in range(options.reserves):
                reserves.append(one_try(tools, options, "reserve", options.reserve))
            if options.blocks:
                blocks.append(try_blocks(tools, options, aged))
    for length, tries in runs.items():
        row = row_of(mixture, length, tries)
        said, shown = misses_of(row, tries)
        result["rows"].append(row)
        result["missed"] += said
        result["shown"] += shown
    row = reserve_row_of(mixture, reserves)
    result["reserves"].append(row)
    if row["share_min"] is not None and row["share_min"] < BARS["reserve"]:
        result["missed"].append(f"{mixture}: a reserve's longest run {row['share_min']:.2f}")
        result["shown"] += [one for one in reserves if one["had"]]
    if blocks:
        row = blocks_row_of(mixture, blocks)
        result["blocks"].append(row)
        result["missed"] += blocks_misses_of(row)
        tries = [one for here in blocks for one in here["tries"]]
        result["shown"] += [one for one in tries if not one["had"]]
    row = result["reserves"][-1]
    result["missed"] += [f"{mixture}: a reserve was refused"] * (row["tries"] - row["had"])
    result["shown"] += [one for one in reserves if not one["had"]]


def table(result):
    def ms(value):
        return "-" if value is None else f"{value:.0f}"

    print(f"\n{'mixture':8} {'MiB':>4} {'had':>8} {'by free run':>12} {'by whole GiB':>12} "
          f"{'had p50/p99/max ms':>20} {'refused max':>11} {'found after':>11} {'cache lost MiB':>14}")
    for row in result["rows"]:
        times = "/".join(ms(row[f"had_p{percent}_ms"]) for percent in (50, 99, 100))
        print(f"{row['mixture']:8} {row['length'] >> 20:4} {row['had']:4}/{row['tries']:3} "
              f"{row['had_beside_free']:8}/{row['beside_free']:3} "
              f"{row['had_beside_gib']:8}/{row['beside_gib']:3} {times:>20} "
              f"{ms(row['refused_p100_ms']):>11} {row['refused_and_found']:11} "
              f"{row['cache_lost_max'] >> 20:14}")
    print("\nreserves as by default: longest run and longest free run seen, MiB")
    for row in result["reserves"]:
        pairs = zip(row["longest"], row["free_run"])
        print(f"{row['mixture']:8}", *(f"{a >> 20}/{b >> 20}" for a, b in pairs),
              f"of {row['tries']}; {ms(row['p100_ms'])} ms at most, cache lost "
              f"{row['cache_lost_max'] >> 20} MiB")
    for row in result["blocks"]:
        for part in row["lengths"]:
            print(f"{row['mixture']:8} blocks, {part['what']}: {part['had']}/{part['tries']} had, "
                  f"{part['had_of_could']}/{part['could']} where 5 % of blocks could go; "
                  f"p50/max {ms(part['p50_ms'])}/{ms(part['p100_ms'])} ms, "
                  f"given back in {ms(part['given_back_p100_ms'])} ms at most")
        print(f"{row['mixture']:8} failed trials {row['failed_trials']} of {row['evacuated']} "
              f"blocks; a busy program: {row['busy'] or 'none'}")
    for miss in result["missed"]:
        print("missed:", miss)


def one_row_a_line(result):
    def short(value):
        return json.dumps(value, separators=(",", ":"))

    members = []
    for name, value in result.items():
        if isinstance(value, list) and value:
            value = "[\n" + ",\n".join(f"    {short(row)}" for row in value) + "\n  ]"
        else:
            value = short(value)
        members.append(f'  "{name}": {value}')
    return "{\n" + ",\n".join(members) + "\n}\n"


def driver_of(options):
    """Returns the program that makes the tries; builds it unless an option names one."""
    if options.driver:
        return options.driver
    build = ["cargo", "build", "--release", "-q", "-p", "glebe-bench", "--example", "aged_try"]
    subprocess.run(build, check=True, cwd=ROOT)
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    return str(pathlib.Path(target) / "release/examples/aged_try")


def options_of(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    lengths = ",".join(str(length // MIB) for length in LENGTHS)
    parser.add_argument("--mixtures", default=",".join(ager.MIXTURES))
    parser.add_argument("--lengths", default=lengths, help="in MiB")
    parser.add_argument("--tries", type=int, default=25, help="of each length, each round")
    parser.add_argument("--rounds", type=int, default=1, help="of aging")
    parser.add_argument("--reserves", type=int, default=3, help="tries of a reserve, each round")
    parser.add_argument("--blocks", type=int, default=0, help="tries of 128 MiB, each round")
    parser.add_argument("--quick", action="store_true", help="few tries, 1 GiB aged")
    parser.add_argument("--no-search", dest="search", action="store_false")
    parser.add_argument("--most", type=int, help="bytes to age at most")
    parser.add_argument("--dir", help="where files are made; the temporary folder without")
    parser.add_argument("--driver", help="the program that tries; built without")
    parser.add_argument("--json", help="a file for the result")
    options = parser.parse_args(arguments)
    options.mixtures = options.mixtures.split(",")
    options.lengths = [int(length) * MIB for length in options.lengths.split(",")]
    options.reserve = RESERVE
    if options.quick:
        options.tries, options.reserves, options.reserve = 2, 1, 64 * MIB
        options.lengths, options.most = [2 * MIB, 8 * MIB], options.most or GIB
    return options


def main():
    options = options_of(sys.argv[1:])
    if os.geteuid() != 0 or not os.path.exists(KPAGE[0]):
        print(f"skipped: {KPAGE[0]} can be read by root alone, or is not there")
        return 0
    options.driver = driver_of(options)
    result = {
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["scripts/aged/accept.py", *sys.argv[1:]]),
        "machine": {"kernel": platform.release(), "cpus": os.cpu_count(),
                    "memory_bytes": ager.meminfo()["MemTotal"]},
        "bars": BARS, "rows": [], "reserves": [], "blocks": [], "missed": [], "shown": [],
    }
    with ager.Tools() as tools:
        for mixture in options.mixtures:
            on_mixture(tools, options, mixture, result)
    table(result)
    if options.json:
        pathlib.Path(options.json).write_text(one_row_a_line(result))
    return 1 if result["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
