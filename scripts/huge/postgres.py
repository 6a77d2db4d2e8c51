"""PostgreSQL with its shared memory in leased huge pages, and its own tests."""

import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess

from .lent import PATIENCE_SHORT, Failed, Skipped, as_other, eventually, kill_group, run
from .sources import debian_files, debian_source

POSTGRES = pathlib.Path("/usr/lib/postgresql")
# Seconds that PostgreSQL's own tests may take.
PATIENCE_REGRESS = 1200
SHARED_BUFFERS_MIB = 512
REGRESS = "src/test/regress"
# Modules that its tests load beside their own.
MODULES = ("autoinc.so", "refint.so")


class Cluster:
    """PostgreSQL with shared buffers in huge pages, under glebe."""

    SETTINGS = (f"shared_buffers = {SHARED_BUFFERS_MIB}MB\nhuge_pages = on\nfsync = off\n"
                "listen_addresses = ''\n")

    def __init__(self, lent, settings=""):
        versions = sorted(POSTGRES.glob("*/bin/postgres"), key=lambda path: path.parts[-3].zfill(3))
        if not versions:
            raise Skipped("no PostgreSQL here: postgresql")
        self.lent, self.programs = lent, versions[-1].parent
        self.major = versions[-1].parts[-3]
        try:
            self.user = pwd.getpwnam("postgres")
        except KeyError:
            self.user = pwd.getpwnam("nobody")
        self.folder = lent.scratch / "postgres"
        self.folder.mkdir()
        self.data = self.folder / "data"
        self.settings = self.SETTINGS + settings
        self.give(self.folder)

    def give(self, path):
        os.chown(path, self.user.pw_uid, self.user.pw_gid)
        return path

    def __enter__(self):
        self.as_user("initdb", "-D", self.data, "-A", "trust", "-N", "-U", "postgres",
                     "--no-locale", "-E", "UTF8")
        with open(self.data / "postgresql.conf", "a") as file:
            file.write(self.settings + f"unix_socket_directories = '{self.folder}'\n")
        words = self.lent.words(self.programs / "postgres", "-D", self.data, flags=["--required"],
                                user=self.user)
        log = self.folder / "log"
        with open(log, "w") as file:
            self.process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT,
                                            env=self.lent.environment(), cwd=self.folder,
                                            start_new_session=True)
        ready = [self.programs / "pg_isready", "-q", "-h", self.folder]

        def answers():
            if self.process.poll() is not None:
                raise Failed(f"PostgreSQL ended: {log.read_text()}")
            return subprocess.run(ready).returncode == 0
        try:
            eventually("PostgreSQL's start", answers)
            if self.value("SHOW huge_pages") != "on":
                raise Failed("PostgreSQL runs without huge pages")
            if self.lent.counted("held_bytes") < SHARED_BUFFERS_MIB << 20:
                raise Failed("PostgreSQL's shared buffers are not leased")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(PATIENCE_SHORT)
        except subprocess.TimeoutExpired:
            kill_group(self.process)
            raise Failed(f"PostgreSQL did not end in {PATIENCE_SHORT} s") from None

    def as_user(self, name, *words, **how):
        """Runs a program of PostgreSQL, without huge pages."""
        return run([*as_other(self.user), self.programs / name, *words], cwd=self.folder, **how)

    def client(self, name, *words):
        return self.as_user(name, "-h", self.folder, "-U", "postgres", *words)

    def value(self, query):
        return self.client("psql", "-At", "-d", "postgres", "-c", query).strip()


def pgbench(lent):
    """Runs pgbench's transactions. Its four sums must agree, and the indexes and tables too."""
    with Cluster(lent, "autovacuum = off\n") as cluster:
        cluster.client("pgbench", "-i", "-q", "-s", "5", "postgres")
        out = cluster.client("pgbench", "-n", "-c", "4", "-j", "2", "-T", "5", "postgres")
        sums = [cluster.value(f"SELECT sum({column}) FROM pgbench_{table}")
                for table, column in [("accounts", "abalance"), ("tellers", "tbalance"),
                                      ("branches", "bbalance"), ("history", "delta")]]
        if len(set(sums)) != 1:
            raise Failed(f"sums differ: {sums}")
        cluster.client("pg_amcheck", "--install-missing", "--heapallindexed", "-d", "postgres")
        count = re.search(r"actually processed: (\d+)", out)[1]
        return lent.with_leases(f"{count} transactions; sums and pg_amcheck agree")


def pg_regress(lent):
    """Runs PostgreSQL's own tests of the installed version."""
    cluster = Cluster(lent, "max_prepared_transactions = 2\n")
    package = f"postgresql-{cluster.major}"
    lib = cluster.programs.parent / "lib"
    tool = lib / "pgxs" / REGRESS / "pg_regress"
    if not tool.exists() or not shutil.which("cc") or not shutil.which("dpkg"):
        raise Skipped("pg_regress needs Debian's packages postgresql and gcc")
    inputs = debian_source(package, [REGRESS]) / REGRESS
    headers = debian_files(f"postgresql-server-dev-{cluster.major}", package)
    includes = headers / f"usr/include/postgresql/{cluster.major}/server"
    # The server's user may not enter the folder of the sources.
    copy, output = cluster.folder / "inputs", cluster.give(made(cluster.folder / "output"))
    shutil.copytree(inputs, copy)
    run(["cc", "-O2", "-fPIC", "-shared", "-w", f"-I{includes}", copy / "regress.c", "-o",
         copy / "regress.so"])
    for module in MODULES:
        shutil.copy(lib / module, copy)
    with cluster:
        words = [f"--host={cluster.folder}", "--user=postgres", f"--bindir={cluster.programs}",
                 f"--inputdir={copy}", f"--outputdir={output}", f"--dlpath={copy}", "--no-locale",
                 "--encoding=UTF8", f"--schedule={copy / 'parallel_schedule'}",
                 "--max-concurrent-tests=20"]
        out = cluster.as_user(tool, *words, patience=PATIENCE_REGRESS, wanted=(0, 1))
    found = re.search(r"All (\d+) tests passed", out)
    if not found:
        wrong = re.findall(r"^(?:test )? *(\S+) +\.\.\. FAILED.*$", out, re.MULTILINE)
        differences = output / "regression.diffs"
        shown = differences.read_text()[:5000] if differences.exists() else out[-3000:]
        raise Failed(f"wrong: {', '.join(wrong)}\n{shown}")
    return lent.with_leases(f"all {found[1]} tests of PostgreSQL {cluster.major} passed")


def made(folder):
    folder.mkdir()
    return folder
