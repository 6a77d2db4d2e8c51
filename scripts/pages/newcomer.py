"""Runs a page as a newcomer would: its files are saved, its commands run in order in a new folder.

In a page, a block of the kind `sh` is commands. A block of another kind whose first line is a
comment with a file's name is that file. An HTML comment on the line before a block says more:

    newcomer: skip, REASON      the block does not run here; the reason is printed
    newcomer: needs WORD ...    skipped unless these commands are in PATH, Python has these modules, or
                                the C library is built (libglebe)
    newcomer: status N          the block's last command ends with this status
    newcomer: prints TEXT       the block prints this
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

from . import markdown

NAME = re.compile(r"^(?:#|//|/\*|--) ([\w.-]+\.\w+|Dockerfile)\b")
SCRIPTS = pathlib.Path(__file__).resolve().parent.parent
# Seconds for a page. A program in the background gets READY_S to print its first line.
PAGE_S, READY_S = 300, 60

POOL = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
HUGE_PAGE = 2 << 20

# Other servers may use the usual port.
GLEBE = """#!/bin/sh
case $1 in serve) shift; exec {glebe} serve -p {port} "$@";; esac
exec {glebe} "$@"
"""
SUDO = '#!/bin/sh\nexec "$@"\n'
PYTHON = '#!/bin/sh\nexec {python} "$@"\n'
# In place of systemd-run where systemd does not run: the limit is a memory cgroup without swap.
LIMITED = """#!/usr/bin/env python3
import os, re, sys
sys.path.insert(0, {scripts!r})
from memory_group import Group
limit = int(re.search(r"MemoryMax=(\\d+)M", " ".join(sys.argv))[1])
start = next(n for n, word in enumerate(sys.argv) if n and not word.startswith("-") and sys.argv[n - 1] != "-p")
with Group("newcomer", limit << 10) as group:
    child = os.fork()
    if child == 0:
        group.enter()
        os.execvp(sys.argv[start], sys.argv[start:])
    status = os.waitpid(child, 0)[1]
status = os.waitstatus_to_exitcode(status)
sys.exit(128 - status if status < 0 else status)
"""


# The C library as `make install` leaves it.
PKG_CONFIG = """Name: glebe
Description: glebe as built
Version: 0
Cflags: -I{headers}
Libs: -L{libraries} -lglebe
"""


class Failed(Exception):
    """A block did not do what its page says."""


def pages_of_pool():
    """Returns the pages of 2 MiB in the machine's pool that stay when their user ends."""
    counts = [POOL / name for name in ("nr_hugepages", "surplus_hugepages")]
    if not counts[0].exists():
        return 0
    every, surplus = (int(count.read_text()) for count in counts)
    return every - surplus


class Place:
    """A new folder, and a PATH with the built command."""

    def __init__(self, glebe, python, port):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gn-"))
        self.programs = self.folder.with_suffix(".bin")
        self.programs.mkdir()
        self.python = python
        self.program("glebe", GLEBE.format(glebe=glebe, port=port))
        self.program("python3", PYTHON.format(python=python))
        if os.geteuid() == 0:
            self.program("sudo", SUDO)
            if not os.path.isdir("/run/systemd/system"):
                self.program("systemd-run", LIMITED.format(scripts=str(SCRIPTS)))
        self.library(pathlib.Path(glebe).parent / "libglebe.so")
        # On tmpfs, as the real one.
        run = pathlib.Path(tempfile.mkdtemp(prefix="gn-", dir="/dev/shm"))
        self.env = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}",
                    "XDG_RUNTIME_DIR": str(run), "GLEBE_LEASES": f"{run}/leases",
                    "PKG_CONFIG_PATH": str(self.programs), "LD_LIBRARY_PATH": str(self.programs)}
        self.folders = [self.folder, self.programs, run]
        self.pages = pages_of_pool()

    def program(self, name, text):
        file = self.programs / name
        file.write_text(text)
        file.chmod(0o755)

    def library(self, built):
        """Puts the built C library where the compiler and the loader find it, if it is built."""
        if built.exists():
            for name in ("libglebe.so", "libglebe.so.0"):
                (self.programs / name).symlink_to(built)
            headers = markdown.ROOT / "crates" / "glebe-c" / "include"
            text = PKG_CONFIG.format(headers=headers, libraries=self.programs)
            (self.programs / "glebe.pc").write_text(text)

    def lacks(self, words):
        """Returns what is missing of `words`, which `needs` explains, or ""."""
        for word in words:
            if word == "libglebe":
                asked = ["pkg-config", "--exists", "glebe"]
                if subprocess.run(asked, env=self.env).returncode:
                    return "the C library is not built"
            elif shutil.which(word, path=self.env["PATH"]) is None:
                asked = [self.python, "-c", f"import {word}"]
                if subprocess.run(asked, capture_output=True, env=self.env).returncode:
                    return f"{word} is not installed"
        return ""

    def give_back(self, text):
        """Releases the huge pages that a failed page with this text reserved and did not release."""
        more = pages_of_pool() - self.pages
        if "contig reserve" in text and more > 0:
            words = [self.programs / "glebe", "contig", "release", str(more * HUGE_PAGE)]
            subprocess.run(words, env=self.env)

    def close(self):
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)


class Shell:
    """One shell that runs the blocks of a page, each to its end; `log` has all output."""

    def __init__(self, place):
        self.log = (place.programs / "log").open("w+b")
        self.shell = subprocess.Popen(
            ["bash", "--norc", "-uo", "pipefail"], stdin=subprocess.PIPE, stdout=self.log,
            stderr=subprocess.STDOUT, cwd=place.folder, env=place.env, start_new_session=True)
        self.done = place.programs / "done"

    def output(self, start=0):
        self.log.flush()
        return pathlib.Path(self.log.name).read_bytes()[start:].decode(errors="replace")

    def run(self, text, until, apart):
        """Runs commands up to the first failure, which ends the shell unless they run `apart`, in a
        shell of their own. Returns status and output."""
        self.done.unlink(missing_ok=True)
        start = os.path.getsize(self.log.name)
        finish = f"echo $? >{self.done}.new; mv {self.done}.new {self.done}"
        if apart:
            script = f"(\nset -e\n{text}\n)\n{finish}\n"
        else:
            script = f"trap '{finish}' EXIT\nset -e\n{text}\nset +e\ntrap - EXIT\ntrue\n{finish}\n"
        self.shell.stdin.write(script.encode())
        self.shell.stdin.flush()
        while not self.done.exists():
            if time.monotonic() > until:
                raise Failed(f"still running after {PAGE_S} s\n{self.output()}")
            time.sleep(0.02)
        if re.search(r"&\s*(?:#.*)?$", text.rstrip(), re.MULTILINE):
            self.wait_for_a_line(start)
        return int(self.done.read_text()), self.output(start)

    def wait_for_a_line(self, start):
        until = time.monotonic() + READY_S
        while os.path.getsize(self.log.name) == start and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.5)

    def close(self):
        try:
            os.killpg(self.shell.pid, signal.SIGTERM)
            self.shell.stdin.close()
            self.shell.wait(10)
            until = time.monotonic() + 20
            while time.monotonic() < until:
                os.killpg(self.shell.pid, 0)
                time.sleep(0.05)
            os.killpg(self.shell.pid, signal.SIGKILL)
        except (ProcessLookupError, BrokenPipeError):
            pass
        self.log.close()


def wishes(note):
    """Returns what the comment before a block says, as {word: rest}. Raises `Failed` for a word that
    this file does not explain."""
    if not note.startswith("newcomer:"):
        return {}
    found = re.fullmatch(r"newcomer: (skip|needs|status|prints),? (.*)", note)
    if not found:
        raise Failed(f"unknown word in {note!r}; known: skip, needs, status, prints")
    return {found[1]: found[2]}


def save(block, folder):
    """Saves a block that names its file. Returns true if it does."""
    named = NAME.match(block.text)
    if named:
        (folder / named[1]).write_text(block.text)
    return bool(named)


def page(text, place):
    """Runs the blocks of a page. Returns the number that ran, and [(line, reason)] of the others.
    Raises `Failed`."""
    ran, skipped, until = 0, [], time.monotonic() + PAGE_S
    shell = Shell(place)
    try:
        for block in markdown.blocks(text):
            wish = wishes(block.note)
            why = wish.get("skip") or place.lacks(wish.get("needs", "").split())
            if why:
                skipped.append((block.line, why))
            elif block.kind == "sh":
                if os.geteuid() and "sudo " in block.text:
                    skipped.append((block.line, "needs root"))
                    continue
                wanted = int(wish.get("status", 0))
                status, output = shell.run(block.text, until, apart=wanted != 0)
                if status != wanted or wish.get("prints", "") not in output:
                    raise Failed(f"line {block.line}: status {status}\n{block.text}{shell.output()}")
                ran += 1
            else:
                save(block, place.folder)
    finally:
        shell.close()
    return ran, skipped
