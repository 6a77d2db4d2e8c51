#!/usr/bin/env python3
"""Runs memcached's own tests against `glebe serve`.

Takes a checkout of memcached, or its git directory, and the command `glebe`. Puts the tests into a
temporary folder beside a wrapper with the name of the server they start, runs each, and prints a
table. Prints `skipped:` if the checkout or Perl is missing.

    scripts/memcached_tests.py [--glebe target/debug/glebe] CHECKOUT [TEST ...]

The lists below name each test of memcached: those that run, and those that do not, and why. Exits
with 1 unless each test ended as expected and the lists name all tests.
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

# Tests that run: of the text and meta protocols, of options and of general statistics.
TESTS = """
    00-startup 64bit ascii-auth ascii-auth2 binary-get bogus-commands cas daemonize dash-M
    evictions expirations flags flush-all getandtouch getset idle-timeout incrdecr issue_104
    issue_108 issue_14 issue_140 issue_152 issue_163 issue_183 issue_192 issue_22 issue_260
    issue_29 issue_3 issue_41 issue_42 issue_61 issue_68 issue_70 item_size_max line-lengths lru
    malicious-commands misbehave multiversioning noreply quit refhang shutdown slabhang slabs-cas
    stats stats-conns stats-detail touch unixsocket whitespace conn-limits metaget maxconns
    chunked-items strtol-testing watcher
""".split()
# Tests that do not run: a pattern for their names, and why.
LEFT_OUT = {
    r"binary": "the binary protocol, which is not spoken here",
    r"binary-sasl": "SASL, which is not spoken here",
    r".*extstore.*": "storage on disks, which is not here",
    r"dyn-maxbytes|slabs-mover|slabs[-_]reassign.*": "memcached's pages of slabs, which can move",
    r"issue_50": "-B binary, which is refused",
    r"issue_67": "a file of the ports in use, UDP ports in it",
    r"lru-crawler|lru-maintainer": "memcached's lists of items and their threads",
    r"proxy.*": "memcached's proxy, which is not here",
    r"restart": "items kept in a file for the next start (-e)",
    r"ssl_.*": "a client of Perl for TLS; `tls.rs` tests it",
    r"udp": "UDP, which is not spoken here",
    r"watcher_connid": "a watcher's line of the look-up inside a `set`, which is not written here",
}
# Memcached's names for its class of 70 kB items, with glebe's names, and the tests that use them.
CLASS = [('{"items:31:', '{"items:2:'), ('{"31:', '{"2:')]
CLASSES = ["issue_163", "issue_22", "slabs-cas"]
# Lines that tests go without: a watcher's line of the look-up inside a `set` is not written here.
WITHOUT = {
    "watcher": [
        (r'    like\(<\$watcher>, [^\n]*\n *"logged initial item fetch"\);\n', ""),
        (r"tests => 43;", "tests => 42;"),
    ],
}
# Tests that are known to fail, and why.
KNOWN = {
    "00-startup": "wants -B binary to start, which is refused, and -C to take items' numbers away",
    "64bit": "wants memcached's allocator to report what a hook in it says",
    "issue_22": "wants 40 evictions of 80 items in 3 MiB, as memcached's slabs have it",
    "issue_42": "wants ten items of 14 bytes to take more than 500 bytes: here they take 400",
    "stats-conns": "wants a UDP socket beside the TCP one",
    "lru": "wants 37 evictions of 101 items in 64 MiB, as memcached's slabs have it",
    "conn-limits": "wants -o read_buf_mem_limit to bound small answers that a client takes",
}

# The wrapper. `glebe serve` has no `-d` and runs in the foreground: with `-d` the wrapper exits
# when the server listens.
WRAPPER = """#!/bin/sh
for word; do
    case $word in
    -h) exec {glebe} serve --help;;
    -V) exec {glebe} --version;;
    -d) daemon=1;;
    *) quoted="$quoted '$word'";;
    esac
done
eval "set -- $quoted"
if [ -n "$daemon" ]; then
    said=$(mktemp)
    {glebe} serve --memcached --no-stats "$@" >"$said" 2>&1 </dev/null &
    until grep -q ^listening "$said"; do kill -0 $! || break; sleep 0.1; done
    rm "$said"
    exit 0
fi
exec {glebe} serve --memcached --no-stats "$@" >/dev/null
"""
# Replaces memcached's `timedrun`, a C program, as far as the tests need it.
TIMEDRUN = """#!/bin/sh
shift
exec "$@"
"""
# Seconds that a test may take, and one that is known to fail.
PATIENCE = 180
PATIENCE_KNOWN = 30


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", nargs="?")
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--glebe", default="target/debug/glebe")
    args = parser.parse_args()
    why = missing(args.checkout)
    if why:
        print(f"skipped: memcached's tests ({why})")
        return 0
    glebe = pathlib.Path(args.glebe).resolve()
    if not glebe.exists():
        print(f"{glebe}: not there; cargo build -p glebe-cli", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        unpack(pathlib.Path(args.checkout), folder)
        rename_classes(folder)
        leave_lines_out(folder)
        script(folder / "memcached-debug", WRAPPER.format(glebe=glebe))
        script(folder / "timedrun", TIMEDRUN)
        failed = run_all(folder, args.tests or TESTS)
        if not args.tests:
            failed += left_out(folder)
    return 1 if failed else 0


def missing(checkout):
    if not checkout:
        return "no checkout of memcached is given"
    if not os.path.isdir(checkout):
        return f"{checkout}: no such folder"
    if not shutil.which("perl"):
        return "perl is not installed"
    modules = ["Test::More", "IO::Socket::UNIX", "Time::HiRes"]
    for module in modules:
        if subprocess.run(["perl", f"-M{module}", "-e", "1"], capture_output=True).returncode:
            return f"Perl's {module} is not installed"
    return None


def unpack(checkout, folder):
    if (checkout / "t").is_dir():
        for name in ["t", "doc"]:
            shutil.copytree(checkout / name, folder / name)
        return
    archive = subprocess.Popen(
        ["git", f"--git-dir={checkout}", "archive", "HEAD", "t", "doc"], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", folder], stdin=archive.stdout, check=True)
    if archive.wait():
        sys.exit(f"{checkout}: no checkout and no git directory")


def rename_classes(folder):
    """Makes tests name glebe's class for the items instead of memcached's."""
    for test in CLASSES:
        path = folder / "t" / f"{test}.t"
        text = path.read_text()
        for theirs, ours in CLASS:
            text = text.replace(theirs, ours)
        path.write_text(text)


def leave_lines_out(folder):
    for test, edits in WITHOUT.items():
        path = folder / "t" / f"{test}.t"
        text = path.read_text()
        for pattern, instead in edits:
            text, times = re.subn(pattern, instead, text)
            if times != 1:
                sys.exit(f"{test}.t: {times} times: {pattern}")
        path.write_text(text)


def script(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def run_all(folder, tests):
    failed = []
    counts = {"pass": 0, "skipped": 0, "FAIL": 0, "known": 0}
    print(f"{'test':<22} {'outcome':<8} {'asserts':>8} {'failed':>7} {'s':>6}")
    for test in tests:
        outcome, asserts, bad, seconds, why = run_one(folder, test)
        if outcome == "FAIL" and test in KNOWN:
            outcome, why = "known", KNOWN[test]
        elif outcome == "pass" and test in KNOWN:
            outcome, why = "FAIL", f"it passes, but: {KNOWN[test]}"
        counts[outcome] += 1
        if outcome == "FAIL":
            failed.append(test)
        print(f"{test:<22} {outcome:<8} {asserts:>8} {bad:>7} {seconds:>6.1f}  {why}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return failed


def left_out(folder):
    """Prints the tests that do not run. Returns those that the lists do not name exactly once."""
    unnamed = []
    for path in sorted((folder / "t").glob("*.t")):
        why = [text for name, text in LEFT_OUT.items() if re.fullmatch(name, path.stem)]
        times = len(why) + (path.stem in TESTS)
        if times != 1:
            unnamed.append(path.stem)
            print(f"{path.stem:<22} FAIL: the lists name it {times} times")
        elif why:
            print(f"{path.stem:<22} not run: {why[0]}")
    return unnamed


def run_one(folder, test):
    environment = dict(os.environ, GLEBE_SERVE_DEBUG_TIME="1")
    begin = time.monotonic()
    patience = PATIENCE_KNOWN if test in KNOWN else PATIENCE
    command = ["perl", f"-I{folder}/t/lib", f"t/{test}.t"]
    # The test gets a session of its own, so that all its servers can be killed with it.
    ran = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, text=True,
                           errors="replace", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = ran.communicate(timeout=patience)
        code = ran.returncode
    except subprocess.TimeoutExpired:
        code = 1
    try:
        os.killpg(ran.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if code and ran.returncode is None:
        out, err = ran.communicate()[0], f"no end within {patience} s"
    seconds = time.monotonic() - begin
    asserts = len(re.findall(r"^(?:not )?ok\b", out, re.MULTILINE))
    bad = len(re.findall(r"^not ok\b(?!.*# (?:TODO|SKIP))", out, re.MULTILINE))
    if re.search(r"^1\.\.0\b", out, re.MULTILINE):
        return "skipped", asserts, bad, seconds, out.strip().splitlines()[-1][:60]
    if code == 0 and bad == 0:
        return "pass", asserts, bad, seconds, ""
    why = re.findall(r"#\s+Failed test '?(.*)", err) or err.strip().splitlines()[-1:]
    return "FAIL", asserts, bad, seconds, " ".join(why[:1])[:100]


if __name__ == "__main__":
    sys.exit(main())
