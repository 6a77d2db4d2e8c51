"""Small Debian systems in folders, in which packages are made and tried. Needs root.

mmdebstrap makes a tree from the mirror of this machine's apt, once; it stays in the folder trees
below the target folder until somebody deletes it. Each use is an overlay over that tree, with mount
and process namespaces of its own: nothing of the machine changes, and the tree stays as it was.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile
import zlib

from machines.packages import KEYS, Archive, mirror
from machines.table import Skipped
from testing.build import TARGET

TREES = TARGET / "trees"
# The release on which packages are made, and so the oldest one on which they run.
OLDEST = "bookworm"
SUITES = [OLDEST, "trixie"]
COMMON = ["systemd", "gcc", "libc6-dev", "pkgconf", "cmake", "make"]
MAKERS = ["debhelper", "lintian"]
MAKE_S = 900
RUN_S = 900

# $1 has the folders upper, work and root, $2 is the tree, $3 a shared folder; the command follows.
ENTER = """
root=$1/root
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -o remount,bind,ro "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
mount --rbind /sys "$root/sys"
[ "$CHANGES_POOLS" = yes ] || mount -o remount,bind,ro "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/shared"
mount --bind "$3" "$root/shared"
shift 3
exec chroot "$root" env -i HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
"""


def made(suite, packages):
    """Returns the folder of a tree, which it makes if it is not there. Raises Skipped."""
    if os.geteuid() != 0:
        raise Skipped("Debian trees need root")
    folder = TREES / f"{suite}-{zlib.crc32(' '.join(packages).encode()):08x}"
    if not folder.exists():
        TREES.mkdir(parents=True, exist_ok=True)
        half = pathlib.Path(tempfile.mkdtemp(prefix="half-", dir=TREES))
        try:
            make(suite, packages, half)
            half.chmod(0o755)
            half.rename(folder)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return folder


def make(suite, packages, folder):
    program = shutil.which("mmdebstrap") or next(
        Archive(OLDEST, "amd64").unpack("mmdebstrap").rglob("mmdebstrap")
    )
    words = ["perl", program, "--mode=root", "--variant=minbase", "--format=directory", "--quiet"]
    words += [f"--include={','.join(packages)}"] if packages else []
    words += [f"--keyring={KEYS}", suite, folder, mirror()]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=MAKE_S)
    except subprocess.TimeoutExpired:
        raise Skipped(f"no tree of {suite} within {MAKE_S} s") from None
    if done.returncode != 0:
        last = [line for line in done.stderr.splitlines() if line.startswith("E:")][-1:]
        raise Skipped(f"mmdebstrap {suite}: {' '.join(last) or done.returncode}")


class Tree:
    """One use of a tree: a context manager. The folder `shared` is /shared in the tree. Without a
    list, the tree has packages that build programs in C and, on the oldest release, packages. With
    `changes_pools`, commands in it may write to the machine's /sys."""

    def __init__(self, suite, packages=None, changes_pools=False):
        if packages is None:
            packages = COMMON + (MAKERS if suite == OLDEST else [])
        self.base = made(suite, packages)
        self.environment = {**os.environ, "CHANGES_POOLS": "yes" if changes_pools else "no"}

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="use-", dir=TREES))
        for name in ("upper", "work", "root", "shared"):
            (self.folder / name).mkdir()
        self.folder.chmod(0o755)
        self.shared = self.folder / "shared"
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def run(self, *command):
        """Runs a command in the tree. Returns its status, 124 if it did not end in time, and its
        output with its errors."""
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", ENTER, "sh"]
        words += [self.folder, self.base, self.shared, *command]
        try:
            done = subprocess.run(
                words,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=RUN_S,
            )
        except subprocess.TimeoutExpired:
            return 124, f"no end within {RUN_S} s"
        return done.returncode, done.stdout

    def changed(self):
        """Returns the paths that differ from the tree: files made, changed or removed."""
        upper = self.folder / "upper"
        files = (path for path in upper.rglob("*") if not path.is_dir())
        return {f"/{path.relative_to(upper)}" for path in files}
