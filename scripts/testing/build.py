"""Builds all that the tests run: cargo builds tests, pip environments for Python.

All run side by side. One command with one profile and one set of features builds the tests,
so that no test builds anything again. Only the run of the models builds something: see plan.py.
"""

import json
import os
import pathlib
import subprocess
import threading
import time
from dataclasses import dataclass, field

TARGETS = ["--lib", "--bins", "--tests", "--examples"]
# The benchmarks' folder. Their package has more dependencies than all others.
BENCHMARKS = "bench"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", "target")).resolve()


def packages(with_benchmarks):
    """Returns cargo's words for the packages under test. All commands use these words: with other
    packages or features cargo would build some of them again."""
    without = [] if with_benchmarks else ["--exclude", "glebe-bench"]
    return ["--workspace", *without, "--features", "glebe/cuda,glebe/faults"]


class Failed(Exception):
    """Raised if something that the tests need cannot be built; the text says what."""


@dataclass
class Built:
    """The results by name: `package/target`, or `package/unit` for unit tests."""

    packages: list
    programs: dict = field(default_factory=dict)
    libraries: dict = field(default_factory=dict)
    # Why there is no environment for Python, or None.
    no_python: str | None = None
    # (seconds, name) of each build
    seconds: list = field(default_factory=list)


def artifacts(words, environment=None):
    """Runs cargo, and yields its messages about artifacts. Raises Failed."""
    words = ["cargo", *words, "--message-format=json-render-diagnostics"]
    cargo = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    for line in cargo.stdout:
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") == "compiler-artifact":
            yield message
    if cargo.wait() != 0:
        raise Failed(" ".join(words))


def name_of(message):
    """Returns `package/target`, or `package/unit` for unit tests of a library or a program."""
    package = pathlib.Path(message["manifest_path"]).parent.name
    is_test = message["target"]["kind"] == ["test"]
    return f"{package}/{message['target']['name'] if is_test else 'unit'}"


def tests(built):
    """Builds test programs, examples, and the libraries for C, Python and LD_PRELOAD."""
    for message in artifacts(["build", *built.packages, *TARGETS]):
        if message["executable"] and message["profile"]["test"]:
            if message["target"]["kind"] != ["example"]:
                built.programs[name_of(message)] = message["executable"]
        elif "cdylib" in message["target"]["kind"]:
            shared = next(name for name in message["filenames"] if name.endswith(".so"))
            built.libraries[message["target"]["name"]] = shared


def script(*words):
    """Runs a script. Returns why it skipped its work, or None."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout.strip() if "skipped:" in done.stdout else None


def python(built):
    built.no_python = script("scripts/python.sh", "environment")


def mooncake(_):
    """Tests that use Mooncake's package find its interpreter by a variable."""
    skipped = script("scripts/mooncake.sh")
    if skipped:
        print(skipped)
    else:
        python = TARGET / "mooncake/bin/python3"
        os.environ.setdefault("GLEBE_TEST_MOONCAKE_PYTHON", str(python))


def everything(with_benchmarks):
    built, failures = Built(packages(with_benchmarks)), []

    def run(what):
        begin = time.monotonic()
        try:
            what(built)
        except Failed as error:
            failures.append(error)
        built.seconds.append((time.monotonic() - begin, f"build: {what.__name__}"))

    threads = [threading.Thread(target=run, args=[what]) for what in (tests, python, mooncake)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    if not built.no_python:
        script("scripts/python.sh", "install", built.libraries["glebe_python"])
    # Builds what `make install` copies, because its tests run with a cargo that always fails.
    words = f"PACKAGES={' '.join([*built.packages, *TARGETS])}"
    if subprocess.run(["make", "-s", "build", "PROFILE=dev", words]).returncode != 0:
        raise Failed("make build")
    # Tests find the libraries here; without the variable they build them.
    os.environ["GLEBE_BUILT"] = str(pathlib.Path(built.libraries["glebe_malloc"]).parent)
    return built
