#!/usr/bin/env python3
"""Checks that the release has one version, and that what crates.io shows of a crate is complete.

Usage: versions.py           print the version
       versions.py --check   exit with 1 on any fault

The version stands in Cargo.toml: once for the packages, and once for each line by which they
depend on each other, where cargo wants it. Everything else takes it from there, or is compared.
"""

import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORKSPACE = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
VERSION = WORKSPACE["package"]["version"]
SHARED = ("version", "edition", "rust-version", "license", "repository")
# What the index shows and accepts: words for the search, and names of its categories.
KEYWORDS_MAX, KEYWORD_MAX, CATEGORIES_MAX, DESCRIPTION_MAX = 5, 20, 5, 100
CATEGORIES = {
    "caching",
    "command-line-utilities",
    "compression",
    "data-structures",
    "development-tools::ffi",
    "hardware-support",
    "memory-management",
    "network-programming",
    "os::linux-apis",
}


def dependencies(manifest):
    """Yields (name, entry) of each dependency of a package, those for some targets too."""
    tables = [manifest, *manifest.get("target", {}).values()]
    for table in tables:
        for kind in ("dependencies", "dev-dependencies", "build-dependencies"):
            yield from table.get(kind, {}).items()


def of_workspace():
    for name, entry in WORKSPACE["dependencies"].items():
        if isinstance(entry, dict) and "path" in entry:
            # cargo leaves a development dependency without version out of a published package.
            published = tomllib.loads((ROOT / entry["path"] / "Cargo.toml").read_text())
            wanted = VERSION if published["package"].get("publish", True) else None
            if entry.get("version") != wanted:
                yield f"Cargo.toml: {name} has version {entry.get('version')}, not {wanted}"


def of_package(file):
    manifest = tomllib.loads(file.read_text())
    package, where = manifest["package"], file.relative_to(ROOT)
    is_published = package.get("publish", True)
    for key in SHARED if is_published else SHARED[:-1]:
        if package.get(key) != {"workspace": True}:
            yield f"{where}: {key} is not the workspace's"
    for name, entry in dependencies(manifest):
        if isinstance(entry, dict) and "path" in entry:
            yield f"{where}: {name} is not a dependency of the workspace, whose table has versions"
    if is_published:
        for fault in incomplete(file.parent, package):
            yield f"{where}: {fault}"


def incomplete(folder, package):
    """Yields what the published package lacks, or the index would refuse."""
    if not 10 <= len(package.get("description", "")) <= DESCRIPTION_MAX:
        yield f"a description has 10 to {DESCRIPTION_MAX} characters"
    keywords, categories = package.get("keywords", []), package.get("categories", [])
    if not 1 <= len(keywords) <= KEYWORDS_MAX:
        yield f"1 to {KEYWORDS_MAX} keywords"
    for word in keywords:
        if len(word) > KEYWORD_MAX or not re.fullmatch("[a-z0-9][a-z0-9_+-]*", word):
            yield f"no keyword: {word}"
    if not 1 <= len(categories) <= CATEGORIES_MAX or not CATEGORIES.issuperset(categories):
        yield f"categories: {categories}"
    if not package.get("documentation", "").startswith("https://"):
        yield "documentation is missing"
    if package.get("readme") != "README.md" or not (folder / "README.md").is_file():
        yield "README.md is missing"
    for name in ("LICENSE-APACHE", "LICENSE-MIT"):
        own = folder / name
        if not own.is_file() or own.read_bytes() != (ROOT / name).read_bytes():
            yield f"{name} is missing or differs"


def elsewhere():
    """Yields differences in what has the version as text."""
    texts = {
        "CHANGELOG.md": rf"^## \[{re.escape(VERSION)}\] - \d{{4}}-\d\d-\d\d$",
        "crates/glebe-c/include/glebe.h": rf'^#define GLEBE_VERSION "{re.escape(VERSION)}"$',
    }
    texts |= {
        str(page.relative_to(ROOT)): rf'^\.TH .* "glebe {re.escape(VERSION)}" '
        for page in (ROOT / "man").glob("*.1")
    }
    for name, line in texts.items():
        if not re.search(line, (ROOT / name).read_text(), re.MULTILINE):
            yield f"{name}: no line has version {VERSION}"
    project = tomllib.loads((ROOT / "crates/glebe-python/pyproject.toml").read_text())["project"]
    if "version" in project or "version" not in project["dynamic"]:
        yield "crates/glebe-python/pyproject.toml: the version is cargo's (dynamic)"


def faults():
    yield from of_workspace()
    for member in WORKSPACE["members"]:
        yield from of_package(ROOT / member / "Cargo.toml")
    yield from elsewhere()


def main():
    if sys.argv[1:] != ["--check"]:
        print(VERSION)
        return 0
    found = list(faults())
    print(*found, sep="\n", end="\n" if found else "")
    print(f"version {VERSION}: {len(found)} faults in {len(WORKSPACE['members'])} packages")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
