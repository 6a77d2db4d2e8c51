"""Builds everything that the tests run: by cargo for the tests, by cargo for the models, by pip.

The three go side by side. Everything of the first is built by one command, with one profile and one
set of features, so that no test builds anything again.
"""

import json
import os
import pathlib
import subprocess
import threading
import time
from dataclasses import dataclass, field

# All that is built in one go.
TARGETS = ["--lib", "--bins", "--tests", "--examples"]
# The folder of the benchmarks, whose package has more dependencies than all others.
BENCHMARKS = "bench"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", "target")).resolve()


def packages(with_benchmarks):
    """Returns cargo's words for what is tested. All commands use the same: another set of packages or
    features would have cargo build some of them again."""
    without = [] if with_benchmarks else ["--exclude", "glebe-bench"]
    return ["--workspace", *without, "--features", "glebe/faults"]


class Failed(Exception):
    """Something that the tests need could not be made; the text says what."""


@dataclass
class Built:
    """What was built, by name: `package/target`, where a library's unit tests are `package/unit`."""

    packages: list
    programs: dict = field(default_factory=dict)
    models: dict = field(default_factory=dict)
    libraries: dict = field(default_factory=dict)
    # Why there is no environment for Python; none if there is one.
    no_python: str | None = None
    # (seconds, what) of each build
    seconds: list = field(default_factory=list)


def artifacts(words, environment=None):
    """Runs cargo and yields its messages of what it made; raises Failed."""
    words = ["cargo", *words, "--message-format=json-render-diagnostics"]
    cargo = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    for line in cargo.stdout:
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") == "compiler-artifact":
            yield message
    if cargo.wait() != 0:
        raise Failed(" ".join(words))


def name_of(message):
    """`package/target`, where a library's or a program's unit tests are `package/unit`."""
    package = pathlib.Path(message["manifest_path"]).parent.name
    is_test = message["target"]["kind"] == ["test"]
    return f"{package}/{message['target']['name'] if is_test else 'unit'}"


def tests(built):
    """Every test program, every example, and the libraries for C, Python and LD_PRELOAD."""
    for message in artifacts(["build", *built.packages, *TARGETS]):
        if message["executable"] and message["profile"]["test"]:
            if message["target"]["kind"] != ["example"]:
                built.programs[name_of(message)] = message["executable"]
        elif "cdylib" in message["target"]["kind"]:
            shared = next(name for name in message["filenames"] if name.endswith(".so"))
            built.libraries[message["target"]["name"]] = shared


def models(built):
    """The concurrency models. A flag of the compiler selects them: in the folder of all else it would
    have cargo build everything again."""
    flags = f"{os.environ.get('RUSTFLAGS', '')} --cfg loom"
    words = ["test", "--no-run", "-p", "glebe", "-p", "glebe-malloc", "--no-default-features"]
    words += ["--lib", "--profile", "loom", "--target-dir", str(TARGET / "loom")]
    for message in artifacts(words, {**os.environ, "RUSTFLAGS": flags}):
        if message["executable"] and message["profile"]["test"]:
            built.models[name_of(message)] = message["executable"]


def python_script(*words):
    """Runs scripts/python.sh and returns why it skipped what was asked, if it did."""
    words = ["scripts/python.sh", *words]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout.strip() if "skipped:" in done.stdout else None


def python(built):
    """The environment for Python's tests, by pip."""
    built.no_python = python_script("environment")


def everything(with_benchmarks):
    """Returns what was built; raises Failed."""
    built, failures = Built(packages(with_benchmarks)), []

    def run(what):
        begin = time.monotonic()
        try:
            what(built)
        except Failed as error:
            failures.append(error)
        built.seconds.append((time.monotonic() - begin, f"build: {what.__name__}"))

    threads = [threading.Thread(target=run, args=[what]) for what in (tests, models, python)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    if not built.no_python:
        python_script("install", built.libraries["glebe_python"])
    # The tests of `make install` run it with a cargo that fails.
    words = f"PACKAGES={' '.join([*built.packages, *TARGETS])}"
    if subprocess.run(["make", "-s", "build", "PROFILE=dev", words]).returncode != 0:
        raise Failed("make build")
    # Where tests find the libraries; without it they build them.
    os.environ["GLEBE_BUILT"] = str(pathlib.Path(built.libraries["glebe_malloc"]).parent)
    return built
