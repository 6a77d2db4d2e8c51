"""Boots a guest under QEMU without KVM, and reads what its tests print on the serial console."""

import re
import shutil
import subprocess
import threading
import time

from testing import work

from .table import Skipped

PROCESSORS = 2
# Limits for a guest and for a run in it, in seconds.
GUEST_S, RUN_S = 1800, 600
# Tests in a guest take 5 to 20 times as long.
FEW = "RUST_BACKTRACE=0 PROPTEST_CASES=16 GLEBE_STRESS_SECONDS=2"
QEMU = {
    "amd64": ("qemu-system-x86_64", ["-M", "q35", "-cpu", "max"], "ttyS0"),
    "arm64": ("qemu-system-aarch64", ["-M", "virt", "-cpu", "max,pauth-impdef=on"], "ttyAMA0"),
}


def emulator_of(architecture):
    """Returns QEMU's program for an architecture. Raises Skipped."""
    name = QEMU[architecture][0]
    if not shutil.which(name):
        raise Skipped(f"no {name} on this machine")
    return name


def commands(machine, programs, tests):
    """Returns the script that runs the tests: programs by name, and the modules of each."""
    lines = [f"export GLEBE_SLOW={machine.slow} {FEW}", f"limit_s={RUN_S}"]
    for name in programs:
        words = ["run", name, f"/t/{name.replace('/', '-')}", "--show-output"]
        words += [f"--test-threads={PROCESSORS}"]
        for module in [] if tests[name] is True else tests[name]:
            left_out = module.startswith("!")
            words += ["--skip"] if left_out else []
            words.append(f"{module.removeprefix('!')}::")
        lines.append(" ".join(words))
    return "".join(f"{line}\n" for line in lines)


def words_of(machine, kernel, archive):
    """Returns the command that boots a machine."""
    program, words, console = QEMU[machine.architecture]
    # Newer packages have the kernel beside its modules, and not in /boot.
    image = next(kernel.rglob("vmlinuz*"))
    arguments = f"console={console} loglevel=1 panic=-1 swap_mib={machine.swap_mib}"
    words = [program, *words, "-accel", "tcg,thread=multi", "-smp", str(PROCESSORS)]
    words += ["-m", str(machine.mib), *numa(machine), "-kernel", image, "-initrd", archive]
    words += ["-append", f"{arguments} {machine.arguments}"]
    return [*words, "-nographic", "-no-reboot", "-nic", "none"]


def numa(machine):
    """Yields QEMU's words for the nodes. They share processors and memory evenly."""
    each = PROCESSORS // machine.nodes
    for node in range(machine.nodes if machine.nodes > 1 else 0):
        yield "-object"
        yield f"memory-backend-ram,id=memory{node},size={machine.mib // machine.nodes}M"
        yield "-numa"
        processors = f"cpus={node * each}-{node * each + each - 1}"
        yield f"node,nodeid={node},memdev=memory{node},{processors}"


def runs(lines, tell):
    """Yields a work.Done for each run, from the lines of a guest. Gives lines outside of runs to
    `tell`. A run without an end has failed."""
    name = None
    for line in lines:
        if line.startswith("vm-begin: "):
            name, said, begin = line.removeprefix("vm-begin: "), [], time.monotonic()
        elif line.startswith("vm-end: ") and name:
            status = int(line.removeprefix("vm-end: "))
            yield done(name, status, time.monotonic() - begin, said)
            name = None
        elif name:
            said.append(line)
        else:
            tell(line)
    if name:
        said.append("-- the guest ended during this run")
        yield done(name, -1, time.monotonic() - begin, said)


def done(name, status, wall, lines):
    text = "".join(f"{line}\n" for line in lines)
    tallies = work.TALLY.findall(text)
    # Earlier tallies are of programs that the tests started.
    passed, failed, _ = map(int, tallies[-1]) if tallies else (0, 1, 0)
    return work.Done(name, status, wall, 0, text, [], passed, failed)


def boot(machine, kernel, archive, tell):
    """Yields the results of a guest's runs as they end. Gives other lines to `tell`."""
    words = words_of(machine, kernel, archive)
    guest = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    timer = threading.Timer(GUEST_S, guest.kill)
    timer.start()
    try:
        lines = (line.decode(errors="replace").rstrip("\r\n") for line in guest.stdout)
        yield from runs(lines, tell)
    finally:
        timer.cancel()
        guest.kill()
        guest.wait()
