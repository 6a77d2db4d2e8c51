"""Runs the commands of the pages for newcomers in a fresh Debian tree that has our packages.

The tree has what its release and our packages install, and Python's packages glebe and NumPy. The
commands may change the machine's pools of huge pages, as the pages say.
"""

import pathlib
import platform
import shutil
import subprocess
import sys

from machines.table import Skipped
from testing.build import Failed

from .build import ROOT
from .checks import packages_in
from .tree import OLDEST, Tree

PACKAGES = ["gcc", "libc6-dev", "pkgconf", "procps", "python3", "python3-venv", "systemd"]
# The folders of a clone that the pages' commands need.
CLONE = ["scripts", "docs/start", "crates/glebe-c/include"]
INSTALL = """
dpkg --install /shared/*.deb >/dev/null
python3 -m venv /root/python
/root/python/bin/pip install --quiet --no-index --find-links /shared/wheels glebe numpy
"""
RUN = ["python3", "/shared/clone/scripts/newcomer.py"]
OPTIONS = ["--glebe", "/usr/bin/glebe", "--python", "/root/python/bin/python3"]


def wheels(out, folder):
    """Fetches NumPy for the tree's Python, and copies our wheel. Raises Skipped."""
    folder.mkdir()
    own = list(out.glob(f"glebe-*{platform.machine()}.whl"))
    if len(own) != 1:
        raise Failed(f"{out} has {len(own)} wheels of this machine, not one")
    shutil.copy(own[0], folder)
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    words += ["--no-deps", "--only-binary=:all:", "--python-version=3.11", "--dest", folder, "numpy"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise Skipped(f"pip fetches no NumPy: {done.stderr.strip().splitlines()[-1:]}")


def check(out):
    """Returns the exit status: 1 if a page failed."""
    _, files = packages_in(out)
    with Tree(OLDEST, PACKAGES, changes_pools=True) as tree:
        wheels(out, tree.shared / "wheels")
        for file in files:
            shutil.copy(file, tree.shared)
        for part in CLONE:
            shutil.copytree(ROOT / part, tree.shared / "clone" / part)
        status, said = tree.run("sh", "-euc", INSTALL)
        if status != 0:
            raise Failed(f"{INSTALL}\n{said}")
        status, said = tree.run(*RUN, *OPTIONS)
        print(said.rstrip())
    print(f"newcomers in {OLDEST}: {'ok' if status == 0 else 'FAILED'}")
    return int(status != 0)
