"""Writes the root file system of a guest: an archive that the kernel unpacks into memory.

The archive has the format `newc` of cpio(5).
"""

import lzma
import pathlib
import re

from .table import Skipped

FOLDERS = ("bin", "dev", "etc", "lib", "lib64", "modules", "proc", "sys", "t", "tmp")
USERS = "root:x:0:0::/tmp:/bin/sh\nnobody:x:65534:65534::/tmp:/bin/sh\n"
GROUPS = "root:x:0:\nnogroup:x:65534:\n"
FOLDER, FILE = 0o040755, 0o100755


class Writer:
    def __init__(self, file):
        self.file, self.entries = file, 0

    def add(self, path, mode, data=b""):
        name = path.encode() + b"\0"
        self.entries += 1
        fields = (self.entries, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
        self.file.write(b"070701" + b"".join(b"%08x" % field for field in fields))
        self.padded(name, 110)
        self.padded(data, 0)

    def padded(self, data, before):
        self.file.write(data + bytes(-(before + len(data)) % 4))


def module_of(file):
    """Returns the name of a module, for which `-` and `_` are equal."""
    return file.partition(".ko")[0].replace("-", "_")


def contents(module):
    """Returns a kernel module as it was before the package compressed it. Raises Skipped."""
    data = module.read_bytes()
    if module.suffix not in (".ko", ".xz"):
        raise Skipped(f"{module.name} is compressed, and not by xz")
    return lzma.decompress(data) if module.suffix == ".xz" else data


def with_needs(kernel, names):
    """Yields the files of kernel modules, each after the modules that it needs. Modules that are
    part of the kernel are left out. Raises Skipped if a named one is neither."""
    files = {module_of(file.name): file for file in kernel.rglob("*.ko*")}
    done = set()

    def walk(name):
        if name in done or name not in files:
            return
        done.add(name)
        data = contents(files[name])
        needs = re.search(rb"\0depends=([^\0]*)\0", data)
        for need in needs[1].decode().split(",") if needs else ():
            yield from walk(module_of(need))
        yield name, data

    for name in names:
        if module_of(name) not in files:
            raise Skipped(f"{kernel.name} has no module {name}")
        yield from walk(module_of(name))


def write(path, machine, kernel, busybox, programs, libraries, commands):
    """Writes an archive. `commands` is the text of the script that runs the tests."""
    here = pathlib.Path(__file__).parent
    with open(path, "wb") as file:
        archive = Writer(file)
        for folder in FOLDERS:
            archive.add(folder, FOLDER)
        archive.add("bin/busybox", FILE, busybox.read_bytes())
        archive.add("init", FILE, (here / "init.sh").read_bytes())
        archive.add("commands", FILE, commands.encode())
        archive.add("etc/passwd", FILE, USERS.encode())
        archive.add("etc/group", FILE, GROUPS.encode())
        order = []
        for name, data in with_needs(kernel, machine.modules):
            archive.add(f"modules/{name}.ko", FILE, data)
            order.append(f"{name}\n")
        archive.add("modules/order", FILE, "".join(order).encode())
        for inside, outside in libraries.items():
            archive.add(inside.lstrip("/"), FILE, pathlib.Path(outside).read_bytes())
        for name, program in programs.items():
            archive.add(f"t/{name.replace('/', '-')}", FILE, program.read_bytes())
        archive.add("TRAILER!!!", 0)
