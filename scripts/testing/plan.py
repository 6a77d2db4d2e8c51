"""Plans the runs: scripts/tests.toml says how the built programs run."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field

from .build import BENCHMARKS, TARGET, Failed

LIST = "scripts/tests.toml"
# The crates with concurrency models: the same unit tests under loom.
MODELS = ("glebe", "glebe-malloc", "glebe-os", "glebe-volatile", "glebe-zpool")
# alone: measures, or changes what all other tests see. exclusive: changes what the machine has
# once, for example its pools of huge pages. apart: neither uses nor sees what exclusive runs
# change.
LANES = ("alone", "exclusive", "apart", "others")
MOD = re.compile(r"^\s*(?:pub )?mod (\w+);", re.MULTILINE)
KEYS = {"first", "modules", "nobody", "parted", "pure", "vm", "without_rseq", *LANES[:3]}


@dataclass
class Run:
    name: str
    words: list
    environment: dict = field(default_factory=dict)
    is_nobody: bool = False
    # The number of tests of a test program; 0 for another command.
    tests: int = 0
    # The number of test programs of a command, each of which passes a test; 0 if that is unknown.
    programs: int = 0
    # One of LANES: decides which runs may run beside this one.
    lane: str = "others"
    # True if it starts before the other runs of its lane.
    is_first: bool = False


def modules_of(program, parted=()):
    """Returns the tests of a program by the first part of their names, or by the first two for the
    modules in `parted`."""
    done = subprocess.run([program, "--list", "--format", "terse"], capture_output=True, text=True)
    modules = {}
    for line in done.stdout.splitlines():
        test, _, kind = line.rpartition(": ")
        if kind == "test":
            parts = test.split("::")
            module = "::".join(parts[: 1 + (parts[0] in parted)])
            modules.setdefault(module, []).append(test)
    if not modules:
        raise Failed(f"{program} lists no test: {done.stdout}{done.stderr}")
    return modules


def undeclared(programs):
    """Yields files and folders of tests that no `mod` beside them names, and that would not run. A
    folder of tests has a main.rs, an it.rs or a mod.rs."""
    heads = [head for top in ("*", "crates/*") for name in ("main", "it", "mod")
             for head in pathlib.Path().glob(f"{top}/tests/**/{name}.rs")]
    for head in heads:
        package = head.parts[head.parts.index("tests") - 1]
        targets = {name.partition("/")[2] for name in programs if name.startswith(f"{package}/")}
        named = {head.stem, *(targets if head.stem == "it" else ())}
        for file in head.parent.glob("*.rs"):
            named.update(MOD.findall(file.read_text()))
        for file in head.parent.iterdir():
            has_tests = file.suffix == ".rs" or any(file.glob("**/*.rs"))
            if has_tests and file.stem not in named:
                yield file


def compare(listed, programs):
    """Raises Failed if the list and the built programs differ."""
    wrong = [f"{LIST} does not list {name}" for name in sorted(programs.keys() - listed.keys())]
    wrong += [f"{name} of {LIST} was not built" for name in sorted(listed.keys() - programs.keys())]
    wrong += [f"no `mod` names {file}" for file in sorted(undeclared(programs))]
    for name, row in listed.items():
        wrong += [f"{LIST}: {name} has an unknown key {key}" for key in sorted(row.keys() - KEYS)]
        wrong += [f"{LIST}: {name} has no list of modules for {key}" for key in ("first", "parted")
                  if key in row and not (row.get("modules") and isinstance(row[key], list))]
        if not row.get("modules", False):
            lists = [lane for lane in LANES[:3] if isinstance(row.get(lane), list)]
            wrong += [f"{LIST}: {name} is one run: {lane} is true or not there" for lane in lists]
    if wrong:
        raise Failed("\n".join(wrong))


def lane_of(row, module):
    """Returns the lane of a program's module; `true` in the list stands for all modules."""
    for lane in LANES[:3]:
        listed = row.get(lane, [])
        if listed is True or module in listed:
            return lane
    return "others"


class Planner:
    def __init__(self, built, scratch, is_long):
        self.built, self.is_long = built, is_long
        self.is_root = os.geteuid() == 0
        # Folder for copies of programs that every user can read.
        self.copies = scratch / "programs"
        self.copies.mkdir()
        self.copies.chmod(0o755)

    def copy(self, program):
        copy = self.copies / os.path.basename(program)
        if not copy.exists():
            shutil.copy(program, copy)
            copy.chmod(0o755)
        return str(copy)

    def runs_of(self, name, row):
        program = self.built.programs[name]
        parted = row.get("parted", [])
        modules = modules_of(program, parted)
        whole = [part for part in parted if not any(each.startswith(f"{part}::") for each in modules)]
        if whole:
            raise Failed(f"{LIST}: {name} has no modules within {whole} (parted)")
        for key in ("first", "pure", "without_rseq", *LANES[:3]):
            listed = row.get(key, [])
            if listed is not True and (unknown := set(listed) - modules.keys()):
                raise Failed(f"{LIST}: {name} has no modules {sorted(unknown)} ({key})")
        yield from self.group(name, program, modules, row)
        for module in row.get("without_rseq", []):
            words = [program, "--show-output", "--exact", *modules[module]]
            tunables = {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}
            title, count = f"{name} {module} (without rseq)", len(modules[module])
            yield Run(title, words, tunables, tests=count, lane=lane_of(row, module))
        if row.get("nobody") and self.is_root:
            pure = set() if self.is_long else set(row.get("pure", []))
            some = {module: tests for module, tests in modules.items() if module not in pure}
            copy = self.copy(program)
            yield from self.group(name, copy, some, row, is_nobody=True)

    @staticmethod
    def group(name, program, modules, row, is_nobody=False):
        """Yields one run for each module, or one for all of them."""
        suffix = " (without privileges)" if is_nobody else ""
        groups = list(modules.items())
        if not row.get("modules", False):
            groups = [("", [test for tests in modules.values() for test in tests])]
        for module, tests in groups:
            words = [program, "--show-output", "--exact", *tests]
            title = f"{name} {module}".strip() + suffix
            is_first = not is_nobody and module in row.get("first", [])
            yield Run(title, words, tests=len(tests), is_nobody=is_nobody,
                      lane=lane_of(row, module), is_first=is_first)


def models():
    """Returns the run of the concurrency models. They need a compiler flag, and so their own target
    folder: in the other one cargo would build everything again. The run builds them, because
    processors are idle beside exclusive runs; one job at a time, because those have limits of time."""
    words = ["cargo", "test", "--jobs=1", "--no-default-features", "--lib", "--no-fail-fast"]
    words += ["--profile", "loom", "--target-dir", str(TARGET / "loom")]
    words += (word for name in MODELS for word in ("-p", name))
    flags = {"RUSTFLAGS": f"{os.environ.get('RUSTFLAGS', '')} --cfg loom"}
    return Run("models", [*words, "--", "--show-output"], flags, programs=len(MODELS), lane="apart")


def others(built):
    """Yields the runs that are no test programs: models, documentation, aged machines, Python."""
    yield models()
    yield Run("documentation", ["cargo", "test", "--doc", *built.packages])
    yield Run("the aged machine and its judge", ["scripts/aged/test_aged.py"])
    if built.no_python:
        print(built.no_python)
        return
    python = "scripts/python.sh"
    # These tests use only base pages.
    yield Run("python", [python, "test"], lane="apart")
    yield Run("python (without privileges)", [python, "test-nobody"], lane="apart")
    yield Run("python: leases", [python, "test-leases"])
    yield Run("python without a global lock", [python, "test-free-threaded"])
    yield Run("python: tests of distributed", [python, "test-distributed"])


def of(built, scratch, is_long, with_benchmarks):
    """Returns the runs in the order in which they start. Raises Failed."""
    with open(LIST, "rb") as file:
        listed = tomllib.load(file)
    if not with_benchmarks:
        listed = {name: row for name, row in listed.items() if not name.startswith(f"{BENCHMARKS}/")}
    compare(listed, built.programs)
    planner = Planner(built, scratch, is_long)
    if not planner.is_root:
        print("skipped: runs as another user (the caller is not root, so none has privileges)")
    runs = []
    for name, row in listed.items():
        runs += planner.runs_of(name, row)
    return sorted([*others(built), *runs], key=lambda run: not run.is_first)
