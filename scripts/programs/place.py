"""Runs programs in a folder, an environment and a circumstance, and finds what they leave."""

import ctypes
import hashlib
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import time

SOURCES = pathlib.Path(__file__).resolve().parent
PR_SET_CHILD_SUBREAPER = 36
# Seconds that a program's last children get to end.
PATIENCE_CHILDREN = 15
NOBODY = 65534


class Skipped(Exception):
    """The reason why a case cannot run here."""


class Failed(Exception):
    """The error of a case."""


def adopt_orphans():
    """Makes this process the parent of orphans, so that it sees every process a case leaves."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def needed(program, package):
    found = shutil.which(program)
    if not found:
        raise Skipped(f"{program} is not installed: apt-get install {package}")
    return found


class Place:
    """A folder for one run of a case. Leaving the context removes the folder with all files.

    Programs that run here preload `library` if it is not None. Their output goes to files
    elsewhere, because a process that stays must not hold a pipe that this process reads to its
    end."""

    def __init__(self, folder, library, circumstance, scale, patience):
        self.folder, self.library, self.circumstance = folder, library, circumstance
        self.scale, self.patience = scale, patience
        self.logs = folder.parent / "logs"
        self.said_wrong = ""

    def __enter__(self):
        for folder in [self.folder, self.folder / "home", self.folder / "tmp", self.logs]:
            folder.mkdir()
            self.give(folder)
        return self

    def __exit__(self, *_):
        end_children()
        shutil.rmtree(self.folder)
        shutil.rmtree(self.logs)

    def give(self, path):
        if self.circumstance.uid is not None:
            os.chown(path, self.circumstance.uid, self.circumstance.uid)
        return path

    def source(self, name):
        return self.write(name, (SOURCES / name).read_text())

    def write(self, name, text):
        path = self.folder / name
        for folder in reversed(path.relative_to(self.folder).parents):
            folder = self.folder / folder
            if not folder.is_dir():
                folder.mkdir()
                self.give(folder)
        path.write_text(text)
        self.give(path)
        return path

    def built(self, name, *command):
        """Returns a program that a compiler builds once for all places, without the library."""
        program = self.folder.parent / name
        if not program.exists():
            subprocess.run([*command, "-o", program], check=True)
        return program

    def environment(self, more):
        home, tmp = str(self.folder / "home"), str(self.folder / "tmp")
        plain = {"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": tmp, "LC_ALL": "C.UTF-8",
                 "TZ": "UTC", **more}
        if self.library:
            plain |= {"LD_PRELOAD": str(self.library), "GLEBE_MALLOC": self.circumstance.options}
        return plain

    def start(self, command, log, env):
        how = self.circumstance

        def prepare():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if how.address_limit:
                resource.setrlimit(resource.RLIMIT_AS, (how.address_limit, how.address_limit))
            if how.group:
                how.group.enter()
            if how.uid is not None:
                os.setgroups([])
                os.setgid(how.uid)
                os.setuid(how.uid)

        with open(self.logs / f"{log}.out", "wb") as out, \
                open(self.logs / f"{log}.err", "wb") as err:
            return subprocess.Popen([*how.prefix, *map(str, command)], cwd=self.folder, stdout=out,
                                    stderr=err, stdin=subprocess.DEVNULL, start_new_session=True,
                                    preexec_fn=prepare, env=self.environment(env))

    def run(self, *command, **env):
        """Returns what a command prints. Raises Failed if it fails or takes too long."""
        process = self.start(command, "run", env)
        self.wait(process, command, "run")
        return (self.logs / "run.out").read_text(errors="replace")

    def shell(self, text, **env):
        return self.run("bash", "-euo", "pipefail", "-c", text, **env)

    def wait(self, process, command, log):
        shown = " ".join(map(str, command))[:120]
        try:
            status = process.wait(self.patience)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise Failed(f"over {self.patience} s: {shown}\n" + self.log(log)) from None
        if status:
            what = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            raise Failed(f"{what} of {shown}\n" + self.log(log))
        self.said_wrong += (self.logs / f"{log}.err").read_text(errors="replace")

    def log(self, name):
        both = [(self.logs / f"{name}{end}").read_text(errors="replace") for end in (".out", ".err")]
        return "\n".join(text[-2000:] for text in both if text)

    def found(self, said):
        """Returns the results of a run: the case's text, standard error, and the files left."""
        left = sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))
        return {"what it says": said, "its errors": self.said_wrong.replace(str(self.folder), "."),
                "files left": "\n".join(left)}

    def digest(self, *names):
        all_of_them = b"".join((self.folder / name).read_bytes() for name in names)
        return hashlib.sha256(all_of_them).hexdigest()[:16]


class Server:
    """A program that runs until a signal ends it."""

    def __init__(self, place, *command, end=signal.SIGTERM):
        self.place, self.command, self.end = place, command, end
        self.process = place.start(command, "server", {})

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.check_preloaded()
        if self.process.poll() is None:
            self.process.send_signal(self.end)
        try:
            self.place.wait(self.process, self.command, "server")
        except Failed:
            if kind is None:
                raise

    def check_preloaded(self):
        library = self.place.library
        if library and library.name not in pathlib.Path(f"/proc/{self.process.pid}/maps").read_text():
            raise Failed(f"{self.command[0]} has not loaded {library}")

    def until(self, ready):
        """Waits until a call returns true. Raises Failed if the server ends or takes too long."""
        end = time.monotonic() + self.place.patience
        while True:
            if self.process.poll() is not None:
                raise Failed(f"{self.command[0]} ended:\n" + self.place.log("server"))
            try:
                if ready():
                    return
            except Failed:
                if time.monotonic() > end:
                    raise
            if time.monotonic() > end:
                raise Failed(f"{self.command[0]} was not ready in {self.place.patience} s")
            time.sleep(0.02)


def children():
    """Yields (pid, name) of this process's children, without zombies."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            pid, _, rest = (folder / "stat").read_text().partition(" (")
        except OSError:
            continue
        name, _, rest = rest.rpartition(") ")
        state, parent = rest.split()[:2]
        if int(parent) == os.getpid() and state not in "ZX":
            yield int(pid), name


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def left_running():
    """Returns the names of children that do not end in time. Reaps those that have ended."""
    until = time.monotonic() + PATIENCE_CHILDREN
    while True:
        reap()
        left = list(children())
        if not left or time.monotonic() > until:
            return ", ".join(f"{name} ({pid})" for pid, name in left)
        time.sleep(0.01)


def end_children():
    """Kills all children, and then their children, which become this process's."""
    while left := list(children()):
        for pid, _ in left:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
        reap()
    reap()
