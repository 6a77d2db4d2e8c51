"""Downloads and unpacks Debian packages of any suite and architecture. Installs nothing.

The mirror is the one that this machine's apt uses. Each pair of suite and architecture has an apt
state of its own in the folder that the variable GLEBE_VM names, or in the folder vm below the
target folder. A package stays there until somebody removes it.
"""

import os
import pathlib
import re
import shutil
import subprocess
import tarfile

from testing import build

from .table import Skipped

FOLDER = pathlib.Path(os.environ.get("GLEBE_VM") or build.TARGET / "vm").resolve()
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
NETWORK_S = 300
# A kernel package unpacks to some 400 MB, most of them drivers.
WANTED = re.compile(
    r"\./(boot/vmlinuz|(usr/)?bin/(busybox|mmdebstrap)$|(usr/)?lib/modules/[^/]+/(vmlinuz$|kernel/"
    r"(crypto|lib|mm|drivers/block/zram|drivers/dma-buf|arch/[^/]+/crypto)/))"
)


def mirror():
    """Returns the address of the Debian mirror in this machine's apt lists."""
    apt = pathlib.Path("/etc/apt")
    lists = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    for file in lists:
        text = file.read_text() if file.is_file() else ""
        if found := re.search(r"^[^#\n]*?(\w+://\S+/debian)/?\s", text, re.MULTILINE):
            return found[1]
    raise Skipped("the apt lists of this machine name no Debian mirror")


class Archive:
    """The packages of one suite for one architecture, in a folder. `at_hand`: fetches none."""

    def __init__(self, suite, architecture, at_hand=False):
        self.suite, self.architecture, self.at_hand = suite, architecture, at_hand
        self.folder = FOLDER / f"{suite}-{architecture}"
        self.unpacked = self.folder / "unpacked"

    def unpack(self, package):
        """Returns the folder with the wanted files of a package, or of the kernel on which it
        depends. Raises Skipped."""
        folder = self.unpacked / package
        if not folder.exists():
            if self.at_hand:
                raise Skipped(f"no {package} in {self.unpacked}")
            if not shutil.which("apt-get"):
                raise Skipped("no apt on this machine")
            self.update()
            image = self.image_of(package)
            self.extract(image, self.parts_of(image))
            if image != package:
                folder.symlink_to(image)
        return folder

    def apt(self, *words, **options):
        """Runs a command of apt on this archive's own state. Raises Skipped."""
        state = self.folder
        settings = {
            "Dir::Etc::SourceList": state / "sources.list",
            "Dir::Etc::SourceParts": "-",
            "Dir::State::Lists": state / "lists",
            "Dir::State::status": state / "status",
            "Dir::Cache": state / "cache",
            "APT::Architecture": self.architecture,
            "APT::Architectures": self.architecture,
            # Else apt would prefer the suite to its backports.
            "APT::Default-Release": self.suite,
            "APT::Sandbox::User": "",
            "Acquire::Languages": "none",
            "Acquire::Retries": "1",
            "Acquire::http::Timeout": "20",
        }
        given = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        words = [words[0], "-q", *given, *words[1:]]
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=NETWORK_S,
                **options,
            )
        except subprocess.TimeoutExpired:
            raise Skipped(f"no answer within {NETWORK_S} s: {words[-1]}") from None
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if line.startswith("E:")]
            raise Skipped((errors or [f"{words[0]} {words[-1]} failed"])[0])
        return done.stdout

    def update(self):
        """Gets new lists, because mirrors drop old packages."""
        for name in ("lists/partial", "cache/archives/partial", "unpacked"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "status").touch()
        # A kernel of backports may depend on packages of the suite.
        suites = {self.suite, self.suite.removesuffix("-backports")}
        lines = [f"deb [signed-by={KEYS}] {mirror()} {suite} main\n" for suite in sorted(suites)]
        (self.folder / "sources.list").write_text("".join(lines))
        self.apt("apt-get", "update")

    def image_of(self, package):
        """Returns the kernel on which a package depends; other packages are returned as given."""
        if not package.startswith("linux-image-"):
            return package
        text = self.apt("apt-cache", "show", "--no-all-versions", package)
        depends = re.search(r"^Depends:.*?(linux-image-[^ ,(]+)", text, re.MULTILINE)
        return depends[1] if depends else package

    def parts_of(self, image):
        """Returns the packages with the files of a kernel: itself, or since Linux 7 its parts."""
        text = self.apt("apt-cache", "show", "--no-all-versions", image)
        depends = re.search(r"^Depends:.*", text, re.MULTILINE)
        parts = re.findall(r"linux-(?:binary|modules)-[^ ,(]+", depends[0] if depends else "")
        return parts or [image]

    def extract(self, package, parts):
        """Unpacks the wanted files. The last step gives the folder its name, and so an interrupted
        call leaves no half folder."""
        half = self.unpacked / f"{package}.half"
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir()
        for part in parts:
            self.extract_into(half, part)
        half.rename(self.unpacked / package)

    def extract_into(self, half, package):
        self.apt("apt-get", "download", package, cwd=self.folder / "cache")
        deb = next((self.folder / "cache").glob(f"{package}_*.deb"))
        words = ["dpkg-deb", "--fsys-tarfile", deb]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as reader:
            with tarfile.open(fileobj=reader.stdout, mode="r|") as tar:
                for member in tar:
                    if member.isfile() and WANTED.match(member.name):
                        path = half / member.name
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_bytes(tar.extractfile(member).read())
        if reader.returncode != 0:
            raise Skipped(f"{deb.name} cannot be unpacked")
        deb.unlink()
