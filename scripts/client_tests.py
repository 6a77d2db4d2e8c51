#!/usr/bin/env python3
"""Runs programs and tests that others wrote for memcached, each against its own `glebe serve`.

    scripts/client_tests.py [--glebe target/debug/glebe] [--checkouts FOLDER] [NAME ...]

Uses what is installed: a conversation through each Python client, the examples of docs/serve.md,
memccapable, memtier_benchmark, Prometheus and its exporter. FOLDER (or GLEBE_CHECKOUTS) may hold checkouts
of the projects' own tests in `pymemcache`, `pylibmc`, `django` and `memcached`, at the installed
versions. Prints a table, and `skipped:` with the reason for what is missing. Exits with 1 if
anything failed.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

SCRIPTS = pathlib.Path(__file__).resolve().parent
PAGE = SCRIPTS.parent / "docs" / "serve.md"
ALERTS = SCRIPTS.parent / "monitoring" / "alerts.yaml"
DASHBOARD = SCRIPTS.parent / "monitoring" / "grafana.json"
# The port in the page's examples.
PAGE_PORT = "11211"
# Times for which the page's blocks hold memory: in the page, and here.
PAGE_HELD, HELD = "10s", "1s"
# Certificates of the tests: the server's, and the one that signed it.
CERTIFICATES = SCRIPTS.parent / "crates/glebe-serve/tests/certificates"
AUTHORITY = CERTIFICATES / "ca.pem"
TLS_OPTIONS = ["-Z", "-o", f"ssl_chain_cert={CERTIFICATES}/server.pem",
               "-o", f"ssl_key={CERTIFICATES}/server.key"]
# The system's Python may have clients that the first Python in PATH lacks.
PYTHONS = list(dict.fromkeys([sys.executable, shutil.which("python3"), "/usr/bin/python3"]))
# Seconds that a short test, and a whole suite, may take.
PATIENCE, PATIENCE_SUITE = 60, 600
# Tests left out: they need a server with TLS, the usual port, or keys that text cannot have.
PYMEMCACHE_LEFT_OUT = "not tls"
PYLIBMC_LEFT_OUT = "not test_no_autoconf and not test_utf8_encoding and not test_zerokey"
# A plugin for pytest: pylibmc's tests that ask for the binary protocol use the text protocol, and
# tests that name a port use the server's.
PYLIBMC_PLUGIN = """
import os, pylibmc, tests
tests.PylibmcTestCase.memcached_port = os.environ["MEMCACHED_PORT"]
class Client(pylibmc.Client):
    def __init__(self, servers, behaviors=None, binary=False, **more):
        super().__init__(servers, behaviors, **more)
tests.make_test_client.__defaults__ = (Client, *tests.make_test_client.__defaults__[1:])
"""


class Skipped(Exception):
    """The reason why a test cannot run here."""


class Failed(Exception):
    """The error of a test."""


class Server:
    """A `glebe serve` at a free port, ended on leaving."""

    def __init__(self, glebe, *options, command=None, env=None):
        own = [glebe, "serve", "--memcached", "--no-stats", "-l", "127.0.0.1:0", *options]
        self.process = subprocess.Popen(command or own, env=env, text=True, start_new_session=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.said = []
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            if found := re.match(r"listening at tcp:.*:(\d+)$", line):
                self.port = found[1]
                return
        raise Failed("glebe serve: " + " / ".join(self.said))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        if status := self.process.wait(PATIENCE):
            raise Failed(f"glebe serve ended with {status}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TESTS))
    parser.add_argument("--glebe", default="target/debug/glebe")
    parser.add_argument("--checkouts", default=os.environ.get("GLEBE_CHECKOUTS"))
    args = parser.parse_args()
    glebe = shutil.which(args.glebe)
    if not glebe:
        print(f"{args.glebe}: not there; cargo build -p glebe-cli", file=sys.stderr)
        return 1
    if unknown := set(args.names) - set(TESTS):
        parser.error(f"no test is called {unknown.pop()}")
    failed = False
    for name in args.names or TESTS:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            try:
                found = TESTS[name](os.path.abspath(glebe), checkout(args, name), scratch)
            except Skipped as why:
                print(f"skipped: {name} ({why})", flush=True)
                continue
            except (Failed, subprocess.TimeoutExpired) as why:
                failed = True
                found = f"FAILED: {why}"
        print(f"{name:<18} {time.monotonic() - begin:>6.1f} s  {found}", flush=True)
    return 1 if failed else 0


def checkout(args, name):
    path = pathlib.Path(args.checkouts or "/nonexistent") / name.removesuffix("-suite")
    return path if path.is_dir() else None


def run(command, patience=PATIENCE, **how):
    """Returns a command's output with its standard error. Raises Failed if the command fails."""
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                         stderr=subprocess.STDOUT, timeout=patience, errors="replace", **how)
    if ran.returncode:
        raise Failed(f"status {ran.returncode} of {' '.join(map(str, command))[:100]}:\n"
                     + ran.stdout[-3000:])
    return ran.stdout


def python_with(*modules):
    for python in filter(None, PYTHONS):
        has = subprocess.run([python, "-c", "import " + ", ".join(modules)], capture_output=True)
        if has.returncode == 0:
            return python
    raise Skipped(f"no Python here has {' and '.join(modules)}")


def talk(client, *modules, options=(), extra=()):
    """Returns a test: a short conversation through an installed client. `options` are the server's,
    `extra` the conversation's."""
    def test(glebe, _checkout, _scratch):
        python = python_with(client, *modules)
        with Server(glebe, *options) as server:
            run([python, SCRIPTS / "client_talk.py", client, server.port, *extra])
        version = run([python, "-c", f"import {client}; print({client}.__version__)"])
        return f"a conversation, version {version.strip()}"
    return test


def memccapable(glebe, _checkout, _scratch):
    if not shutil.which("memccapable"):
        raise Skipped("memccapable is not installed: libmemcached-tools")
    with Server(glebe) as server:
        out = run(["memccapable", "-a", "-h", "127.0.0.1", "-p", server.port])
    passed = len(re.findall(r"\[pass\]", out))
    if passed == 0 or re.search(r"\[(FAIL|skip)", out):
        raise Failed(out[-2000:])
    return f"{passed} of {passed} of its text tests"


def memtier(glebe, _checkout, _scratch):
    if not shutil.which("memtier_benchmark"):
        raise Skipped("memtier_benchmark is not installed")
    total = 0
    with Server(glebe) as server:
        for size, pipeline in [(100, 1), (100, 16), (4000, 1), (100_000, 4)]:
            out = run(["memtier_benchmark", "-s", "127.0.0.1", "-p", server.port, "-P",
                       "memcache_text", "-t", "2", "-c", "4", "-n", "500", "--ratio", "1:4",
                       "--key-maximum", "100", "--hide-histogram",
                       "--data-size", str(size), "--pipeline", str(pipeline)])
            if re.search(r"(?i)error|connection (?:dropped|refused)", out):
                raise Failed(out[-2000:])
            rates = re.search(r"^Totals\s+([\d.]+)\s+([\d.]+)", out, re.MULTILINE)
            if not rates or float(rates[2]) == 0.0:
                raise Failed("no hits:\n" + out[-2000:])
            total += 2 * 4 * 500
    return f"{total} requests"


def exporter(glebe, _checkout, _scratch):
    """Reads the server's statistics with Prometheus' own exporter, which fails if a series comes
    twice."""
    names = ("memcached_exporter", "prometheus-memcached-exporter")
    program = next(filter(None, map(shutil.which, names)), None)
    if not program:
        raise Skipped("prometheus-memcached-exporter is not installed")
    with Server(glebe) as server, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        with socket.create_connection(("127.0.0.1", int(server.port))) as client:
            for key, size in (("small", 1), ("large", 20_000)):
                client.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key.encode(), size, b"x" * size))
                if client.recv(100) != b"STORED\r\n":
                    raise Failed(f"{key} was not stored")
        process = subprocess.Popen(
            [program, f"--memcached.address=127.0.0.1:{server.port}",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            text = page_of(f"http://127.0.0.1:{port}/metrics", process)
        finally:
            process.terminate()
            process.wait(PATIENCE)
    series = [line for line in text.splitlines() if line.startswith("memcached_")]
    classes = set(re.findall(r'^memcached_slab_current_items{slab="(\d+)"} 1$', text, re.M))
    if "memcached_up 1" not in series or classes != {"1", "2"}:
        raise Failed("\n".join(series))
    return f"{len(series)} series"


PROMETHEUS = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs: [{{job_name: glebe, static_configs: [{{targets: ["{target}"]}}]}}]
"""


def prometheus(glebe, _checkout, scratch):
    """Lets Prometheus scrape the server, and evaluate the alert rules and the dashboard's queries."""
    if not shutil.which("prometheus"):
        raise Skipped("prometheus is not installed")
    with Server(glebe, "--metrics", "127.0.0.1:0") as server, \
            socket.create_server(("127.0.0.1", 0)) as free:
        said = server.process.stdout.readline()
        target = re.match(r"metrics at http://(.*)/metrics$", said)[1]
        config = pathlib.Path(scratch, "prometheus.yml")
        config.write_text(PROMETHEUS.format(rules=ALERTS, target=target))
        web = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={scratch}/data",
             f"--web.listen-address={web}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def ask(what):
            return json.loads(page_of(f"http://{web}/api/v1/{what}", process))["data"]

        def rules():
            return [rule for group in ask("rules")["groups"] for rule in group["rules"]]

        try:
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end:
                target = next(iter(ask("targets")["activeTargets"]), {"health": "unknown"})
                told = {rule["health"] for rule in rules()}
                series = ask("query?query={__name__=~%22glebe_.*%22}")["result"]
                if target["health"] == "down" or "err" in told:
                    raise Failed(f"{target}: {rules()}")
                if target["health"] == "up" and told == {"ok"} and series:
                    asked = [ask("query?query=" + query) for query in queries()]
                    return f"{len(series)} series, {len(rules())} rules, {len(asked)} queries"
                time.sleep(0.2)
        finally:
            process.terminate()
            process.wait(PATIENCE)
    raise Failed(f"no scrape in {PATIENCE} s: {target}")


def queries():
    """Returns the dashboard's queries for a URL, with values for Grafana's variables."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    values = [("$__rate_interval", "1m"), ("$job", "glebe"), ("$instance", ".*")]
    for name, value in values:
        asked = [query.replace(name, value) for query in asked]
    return map(urllib.parse.quote, asked)


def page_of(url, process):
    """Returns a page as soon as its server, a process, answers."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                return answer.read().decode()
        except OSError as why:
            # Prometheus answers 503 until it is ready.
            if isinstance(why, urllib.error.HTTPError) and why.code != 503:
                raise Failed(f"{url}: {why}: {why.read().decode()[:2000]}") from why
            if process.poll() is not None:
                raise Failed(f"{process.args[0]} ended with {process.returncode}") from why
            if time.monotonic() > end:
                raise Failed(f"{url}: {why}") from why
            time.sleep(0.05)


def pytest_suite(checkout, modules, tests, *options, **env):
    """Runs a pytest suite without its configuration. Returns the line that sums it up."""
    python = python_with("pytest", *modules)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull,
               f"--rootdir={checkout}", *options, tests]
    out = run(command, PATIENCE_SUITE, cwd=checkout, env={**os.environ, **env})
    return out.strip().splitlines()[-1].strip("= ")


def pymemcache_suite(glebe, checkout, _scratch):
    if not checkout:
        raise Skipped("no checkout is given")
    with Server(glebe) as server:
        return pytest_suite(checkout, ["pymemcache", "mock"], "pymemcache/test",
                            "--server=127.0.0.1", f"--port={server.port}", "--count=200",
                            "-k", PYMEMCACHE_LEFT_OUT)


def pylibmc_suite(glebe, checkout, scratch):
    if not checkout:
        raise Skipped("no checkout is given")
    with Server(glebe) as server:
        pathlib.Path(scratch, "plugin_of_glebe.py").write_text(PYLIBMC_PLUGIN)
        return pytest_suite(checkout, ["pylibmc"], "tests", "-p", "plugin_of_glebe",
                            "-k", PYLIBMC_LEFT_OUT, MEMCACHED_PORT=server.port,
                            PYTHONPATH=scratch)


DJANGO_SETTINGS = """
DATABASES = {{name: {{"ENGINE": "django.db.backends.sqlite3"}} for name in ("default", "other")}}
SECRET_KEY = "secret"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
CACHES = {{"default": {{"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}}}
for backend in ("PyMemcacheCache", "PyLibMCCache"):
    CACHES[backend] = {{"BACKEND": "django.core.cache.backends.memcached." + backend,
                        "LOCATION": "127.0.0.1:{port}"}}
"""


def django_suite(glebe, checkout, scratch):
    if not checkout:
        raise Skipped("no checkout is given")
    python = python_with("django", "pymemcache", "pylibmc")
    with Server(glebe) as server:
        settings = pathlib.Path(scratch, "settings_of_glebe.py")
        settings.write_text(DJANGO_SETTINGS.format(port=server.port))
        classes = [f"cache.tests.{name}Tests" for name in ("PyMemcacheCache", "PyLibMCCache")]
        out = run([python, "runtests.py", "--settings", settings.stem, "--parallel", "1", *classes],
                  PATIENCE_SUITE, cwd=checkout / "tests", env={**os.environ, "PYTHONPATH": scratch})
    ran = re.search(r"^Ran (\d+) tests.*\n+(OK.*)$", out, re.MULTILINE)
    if not ran:
        raise Failed(out[-2000:])
    return f"{ran[1]} tests, {ran[2]}"


def memcached_suite(glebe, checkout, _scratch):
    if not checkout:
        raise Skipped("no checkout is given")
    out = run([sys.executable, SCRIPTS / "memcached_tests.py", "--glebe", glebe, checkout], 1800)
    return out.strip().splitlines()[-1]


# Replaces `glebe` in the page's blocks, with another port: other servers may use the usual one.
COMMAND = """#!/bin/sh
verb=$1
shift
case $verb in
serve) exec {glebe} serve -p {port} --control {control} "$@";;
recall) exec {glebe} recall --control {control} "$@";;
*) exec {glebe} $verb "$@";;
esac
"""


def page(glebe, _checkout, scratch):
    """Runs the page's blocks in order. An `sh` block that begins with `glebe serve` runs to the end
    of the page; the other `sh` blocks run as they are. A `toml` block configures another server. A
    Python block is a file with the name in its first line, and runs unless it is the settings."""
    text = PAGE.read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    with Server(glebe) as free:
        port = free.port
    command = pathlib.Path(scratch, "glebe")
    command.write_text(COMMAND.format(glebe=glebe, port=port, control=f"{scratch}/control"))
    command.chmod(0o755)
    runtime = pathlib.Path(scratch, "run")
    runtime.mkdir()
    env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "PYTHONPATH": scratch,
           "DJANGO_SETTINGS_MODULE": "settings", "PATH": f"{scratch}:{os.environ['PATH']}"}
    server, ran, skipped = None, 0, []
    try:
        for kind, block in blocks:
            block = block.replace(PAGE_PORT, port).replace(PAGE_HELD, HELD)
            if kind == "sh" and block.startswith("glebe serve"):
                server = Server(glebe, command=["bash", "-c", f"exec {block}"], env=env)
            elif kind == "sh":
                run(["bash", "-euo", "pipefail", "-c", block], env=env, cwd=scratch)
            elif kind == "toml":
                config(block, scratch, env, glebe)
            elif kind == "python":
                if why := example(block, scratch, env):
                    skipped.append(why)
                    continue
            else:
                continue
            ran += 1
    finally:
        if server:
            server.__exit__()
    if ran == 0:
        raise Failed(f"{PAGE}: no blocks")
    left = "".join(f", skipped: an example ({why})" for why in skipped)
    return f"{ran} blocks of {PAGE.name}{left}"


def config(block, scratch, env, glebe):
    path = pathlib.Path(scratch, "serve.toml")
    path.write_text(block)
    command = [glebe, "serve", "--memcached", "--config", path, "-l", "127.0.0.1:0"]
    with Server(glebe, command=command, env=env):
        pass


def example(block, scratch, env):
    """Runs an example. Returns why it cannot run, or None."""
    name = re.match(r"# (\w+\.py)\b", block)
    if not name:
        raise Failed(f"an example that names no file: {block[:60]!r}")
    path = pathlib.Path(scratch, name[1])
    path.write_text(block)
    if path.stem == "settings":
        return None
    needed = set(re.findall(r"^(?:from|import) (\w+)", block, re.MULTILINE))
    if "django" in needed:
        needed.add("pymemcache")
    try:
        run([python_with(*sorted(needed)), path], env=env)
    except Skipped as why:
        return why
    return None


TESTS = {
    "page": page,
    "pymemcache": talk("pymemcache"),
    "pymemcache-tls": talk("pymemcache", "ssl", options=TLS_OPTIONS, extra=[AUTHORITY]),
    "pylibmc": talk("pylibmc"),
    "django": talk("django", "pymemcache"),
    "memccapable": memccapable,
    "memtier": memtier,
    "exporter": exporter,
    "prometheus": prometheus,
    "pymemcache-suite": pymemcache_suite,
    "pylibmc-suite": pylibmc_suite,
    "django-suite": django_suite,
    "memcached-suite": memcached_suite,
}


if __name__ == "__main__":
    sys.exit(main())
