"""Makes Debian packages of what is built, by debhelper: of this machine, or of a Debian tree."""

import email.utils
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile

from testing.build import Failed

from .tree import OLDEST, Tree

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ["glebe", "libglebe0", "libglebe-dev"]
AUTHORS = "glebe authors <glebe@users.noreply.github.com>"
# Else an empty package with debug information, which release builds do not have, for each of ours.
# DPKG_DEB_COMPRESSOR_TYPE=gzip saves most of the time where packages are only tried.
SETTINGS = {
    "DEB_BUILD_OPTIONS": "noautodbgsym",
    "DPKG_DEB_COMPRESSOR_TYPE": os.environ.get("DPKG_DEB_COMPRESSOR_TYPE", "xz"),
}
# Compiles nothing, so it needs debhelper alone.
WORDS = ["dpkg-buildpackage", "--build=binary", "--no-sign", "--no-check-builddeps"]


def make(built, out):
    """Makes the packages from the folder of a build. Returns their files. Raises Failed, and
    Skipped without debhelper."""
    out.mkdir(parents=True, exist_ok=True)
    if shutil.which("dh"):
        with tempfile.TemporaryDirectory(prefix="glebe-deb-") as folder:
            prepare(pathlib.Path(folder) / "glebe", built)
            environment = {**os.environ, **SETTINGS}
            done = subprocess.run(
                WORDS, cwd=f"{folder}/glebe", env=environment, capture_output=True, text=True
            )
            return collected(pathlib.Path(folder), out, done.returncode, done.stdout + done.stderr)
    with Tree(OLDEST) as tree:
        prepare(tree.shared / "glebe", built)
        settings = [f"{name}={value}" for name, value in SETTINGS.items()]
        status, said = tree.run("env", "--chdir=/shared/glebe", *settings, *WORDS)
        return collected(tree.shared, out, status, said)


def prepare(folder, built):
    """Fills a folder with the packages' descriptions and with the files to pack."""
    seconds = time_of_sources()
    shutil.copytree(ROOT / "packaging" / "debian", folder / "debian")
    version = run("scripts/versions.py").strip()
    with open(folder / "debian" / "copyright", "a") as copyright:
        copyright.write("\n" + (ROOT / "LICENSES-THIRD-PARTY").read_text())
    (folder / "debian" / "changelog").write_text(
        f"glebe ({version}) unstable; urgency=medium\n\n"
        "  * The news are in CHANGELOG.md of the sources.\n\n"
        f" -- {AUTHORS}  {email.utils.formatdate(seconds)}\n"
    )
    destination = folder / "files"
    places = {
        "DESTDIR": str(destination),
        "PREFIX": "/usr",
        "LIBDIR": f"/usr/lib/{platform.machine()}-linux-gnu",
        "INCLUDEDIR": "/usr/include",
    }
    run("scripts/install.sh", str(built.resolve()), env={**os.environ, **places})
    settings = destination / "etc" / "glebe"
    settings.mkdir(parents=True)
    shutil.copy(ROOT / "systemd" / "serve.env", settings)


def time_of_sources():
    """Returns the time of the last commit, so that equal sources make equal packages."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    done = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True
    )
    return int(done.stdout) if done.returncode == 0 else int((ROOT / "Cargo.toml").stat().st_mtime)


def run(*words, env=None):
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def collected(folder, out, status, said):
    """Moves the packages to `out`. Returns their paths there."""
    if status != 0:
        raise Failed(f"dpkg-buildpackage: status {status}\n{said}")
    for name in PACKAGES:
        for old in out.glob(f"{name}_*.deb"):
            old.unlink()
    files = sorted(folder.glob("*.deb"))
    return [pathlib.Path(shutil.move(file, out / file.name)) for file in files]
