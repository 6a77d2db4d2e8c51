"""Gets packages and sources of others' programs, once, into a folder that git ignores."""

import pathlib
import shutil
import tempfile

from .lent import Failed, Skipped, run

KEPT = pathlib.Path(__file__).resolve().parent.parent.parent / "target" / "strangers"
# The machine's own repositories, as lines for their sources.
REPOSITORIES = "deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)"


def kept(name, fill):
    """Returns a folder that `fill` fills at the first time. Raises Skipped if it cannot."""
    folder = KEPT / name
    if folder.exists():
        return folder
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT, prefix="new-") as scratch:
        made = pathlib.Path(scratch) / "made"
        made.mkdir()
        try:
            fill(made, pathlib.Path(scratch))
        except (Failed, FileNotFoundError) as why:
            raise Skipped(f"{name} cannot be had: {why}") from why
        made.rename(folder)
    return folder


def debian_source(package, parts):
    """Returns the sources that an installed package was built from: the folders `parts`."""
    source, version = run(["dpkg-query", "-W", "-f", "${source:Package} ${source:Version}",
                           package]).split()

    def fill(made, scratch):
        lines, lists = scratch / "sources.list", scratch / "lists"
        lists.mkdir()
        lines.write_text(run(["apt-get", "indextargets", "--format", REPOSITORIES,
                              "Created-By: Packages"]))
        options = [f"-oDir::Etc::sourcelist={lines}", "-oDir::Etc::sourceparts=/dev/null",
                   f"-oDir::State::lists={lists}", "-oAPT::Sandbox::User=root", "-qq"]
        run(["apt-get", *options, "update"])
        run(["apt-get", *options, "source", "--download-only", f"{source}={version}"], cwd=scratch)
        [archive] = scratch.glob("*.orig.tar.*")
        patterns = [f"*/{part}" for part in parts]
        run(["tar", "-xf", archive, "-C", made, "--strip-components=1", "--wildcards", *patterns])
    return kept(f"{source}_{version}", fill)


def debian_files(package, like):
    """Returns the files of a package, in the version of the installed package `like`."""
    version = run(["dpkg-query", "-W", "-f", "${Version}", like])

    def fill(made, scratch):
        run(["apt-get", "download", "-qq", "-oAPT::Sandbox::User=root", f"{package}={version}"],
            cwd=scratch)
        [file] = scratch.glob("*.deb")
        run(["dpkg", "-x", file, made])
    return kept(f"{package}_{version}", fill)


def checkout(name, public, given):
    """Returns a folder with the files of a git repository: a work tree or a git directory that is
    given, else a clone."""
    def fill(made, scratch):
        at = given
        if not at:
            at = scratch / "clone"
            run(["git", "clone", "--quiet", "--bare", "--depth", "1", public, at])
        archive = scratch / "files.tar"
        run(["git", "-C", at, "archive", "-o", archive, "HEAD"])
        run(["tar", "-xf", archive, "-C", made])
    if not shutil.which("git"):
        raise Skipped("git is not installed")
    return kept(name, fill)
