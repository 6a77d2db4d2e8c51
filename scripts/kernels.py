#!/usr/bin/env python3
"""Writes into docs/internals/kernel.md which mechanisms work under which kernels: boots machines of
scripts/vm.toml, and runs `glebe probe --json` in each.

Usage: kernels.py [MACHINE ...]
  MACHINE  only these machines; of the others the table has what earlier calls saw

Needs what scripts/vm.py needs. The answers stay in the folder vm below the target folder. The table
is written only if there is an answer of each machine.
"""

import json
import os
import pathlib
import re
import sys
import tempfile

sys.dont_write_bytecode = True

from machines import guest, image, packages, programs, table
from testing import build

ROOT = pathlib.Path(__file__).resolve().parent.parent

PAGE = "docs/internals/kernel.md"
BEGIN, END = "<!-- seen in guests -->", "<!-- end -->"
PROBE = "glebe-probe"
# Rows of the probe that the machine's sizes and names multiply.
MANY = re.compile(r"^(hugetlb|demote|dma_heap)\.(.+)$")


def answer(output):
    """Returns the probe's answer in the output of a run. Raises ValueError."""
    begin, end = output.find("{"), output.rfind("}")
    return json.loads(output[begin:end + 1])


def rows_of(answered):
    """Returns the state and the reason of each mechanism. Sizes of a mechanism are one row, which
    works if one of them does."""
    rows = {}
    for row in answered["mechanisms"]:
        key = row["key"]
        many = MANY.match(key)
        key = f"{many[1]}.{'NAME' if many[1] == 'dma_heap' else 'SIZE'}" if many else key
        if key not in rows or row["state"] == "yes":
            rows[key] = (row["state"], row["reason"])
    return rows


def title(answered):
    release = re.match(r"\d+\.\d+", answered["kernel_release"])[0]
    return f"Linux {release}, {answered['page_size_bytes'] >> 10} KiB"


def text_of(answers):
    """Returns the table as text: `answers` by machine. A cell is `works`, a state with a letter that stands for its reason, or `-` for a mechanism that was not tried."""
    rows = {name: rows_of(answered) for name, answered in answers.items()}
    keys = sorted({key for of in rows.values() for key in of})
    reasons, lines = {}, []
    lines.append(f"| key | {' | '.join(f'{name}: {title(answers[name])}' for name in answers)} |")
    lines.append("|---" * (len(answers) + 1) + "|")
    for key in keys:
        cells = []
        for name in answers:
            state, reason = rows[name].get(key, ("-", ""))
            if state not in ("yes", "-"):
                letter = reasons.setdefault(reason or state, letter_of(len(reasons)))
                state = f"{state} ({letter})"
            cells.append({"yes": "works"}.get(state, state))
        lines.append(f"| `{key}` | {' | '.join(cells)} |")
    lines += ["", *(f"- ({letter}) {reason}" for reason, letter in reasons.items())]
    return "\n".join(lines)


def letter_of(nth):
    return chr(ord("a") + nth) if nth < 26 else f"{letter_of(nth // 26 - 1)}{letter_of(nth % 26)}"


def write(text):
    with open(PAGE) as file:
        page = file.read()
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{PAGE} has no {BEGIN} and {END}")
    with open(PAGE, "w") as file:
        file.write(f"{before}{BEGIN}\n{text}\n{end}{after}")


def program_of(architecture):
    """Builds `glebe` without its servers. Returns its path. Raises table.Skipped, build.Failed."""
    words = ["build", "-p", "glebe-cli", "--bin", "glebe", "--no-default-features"]
    environment = None
    if architecture != programs.NATIVE:
        environment = programs.cross_environment()
        words += ["--target", programs.TRIPLE, "--target-dir", str(build.TARGET / "aarch64")]
    built = [message["executable"] for message in build.artifacts(words, environment)
             if message["executable"] and message["target"]["name"] == "glebe"]
    return pathlib.Path(built[0])


def asked_of(machine, archive):
    """Boots a machine. Returns its answer. Raises table.Skipped, build.Failed or ValueError."""
    guest.emulator_of(machine.architecture)
    compiler = programs.compiler_of(machine.architecture)
    program = program_of(machine.architecture)
    debian = packages.Archive(machine.suite, machine.architecture)
    kernel = debian.unpack(machine.kernel)
    busybox = next(debian.unpack("busybox-static").rglob("busybox"))
    libraries = programs.libraries([program], compiler)
    commands = f"limit_s=60\nrun {PROBE} /t/{PROBE} probe --json\n"
    image.write(archive, machine, kernel, busybox, {PROBE: program}, libraries, commands)
    for done in guest.boot(machine, kernel, archive, lambda line: None):
        if done.status != 0:
            raise build.Failed(f"{machine.name}: status {done.status}: {done.output}")
        return answer(done.output)
    raise build.Failed(f"{machine.name}: the guest ran nothing")


def main():
    os.chdir(ROOT)
    os.environ.setdefault("CARGO_INCREMENTAL", "0")
    machines = table.machines()
    names = [machine.name for machine in machines]
    if unknown := set(sys.argv[1:]) - set(names):
        print(f"error: no such machine: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    folder = packages.FOLDER / "answers"
    folder.mkdir(parents=True, exist_ok=True)
    failures = 0
    for machine in machines:
        if sys.argv[1:] and machine.name not in sys.argv[1:]:
            continue
        try:
            with tempfile.TemporaryDirectory(prefix="glebe-kernels-") as place:
                got = asked_of(machine, os.path.join(place, "archive"))
        except table.Skipped as why:
            print(f"skipped: {machine.name} ({why})", flush=True)
            continue
        except (build.Failed, ValueError, LookupError, OSError, RuntimeError) as error:
            failures += 1
            print(f"error: {machine.name}: {error}", file=sys.stderr)
            continue
        (folder / f"{machine.name}.json").write_text(json.dumps(got))
        works = sum(row["state"] == "yes" for row in got["mechanisms"])
        print(f"{machine.name}: {title(got)}, {works} of {len(got['mechanisms'])} work", flush=True)
    kept = {name: folder / f"{name}.json" for name in names}
    if missing := [name for name, path in kept.items() if not path.exists()]:
        print(f"the table is as before: no answer of {', '.join(missing)}")
    else:
        write(text_of({name: json.loads(path.read_text()) for name, path in kept.items()}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
