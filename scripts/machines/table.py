"""Reads which machines there are, and which tests run in them."""

import tomllib
from dataclasses import dataclass, field

from testing import build

MACHINES = "scripts/vm.toml"
TESTS = "scripts/tests.toml"


class Skipped(Exception):
    """Raised if this machine lacks what a guest needs; the text says what."""


@dataclass
class Machine:
    name: str
    architecture: str
    suite: str
    kernel: str
    short: bool = False
    arguments: str = ""
    modules: list = field(default_factory=list)
    swap_mib: int = 0
    page_kib: int = 4
    mib: int = 2048
    nodes: int = 1
    slow: int = 10


def machines():
    with open(MACHINES, "rb") as file:
        return [Machine(name, **row) for name, row in tomllib.load(file).items()]


def tests(parts=("",)):
    """Returns the test programs that run in guests: by name, the modules of each, or True. Each
    name has one of `parts` in it. Raises build.Failed if no name has a part."""
    with open(TESTS, "rb") as file:
        listed = {name: row["vm"] for name, row in tomllib.load(file).items() if row.get("vm")}
    for part in parts:
        if not any(part in name for name in listed):
            raise build.Failed(f"no test program in guests has {part} in its name")
    rows = [row for row in listed.items() if any(part in row[0] for part in parts)]
    # The lowest parts come first: if they fail, so do the others.
    return dict(sorted(rows, key=lambda row: (row[0].startswith("glebe/"), row[0])))
