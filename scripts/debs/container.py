"""Carries out containers/Containerfile in a Debian tree, and asks the server there.

Reads the few instructions that the recipe has; another one is an error. An image is not made.
"""

import json
import pathlib
import re
import shlex
import shutil
import socket

from testing.build import Failed

from .tree import OLDEST, Tree

RECIPE = pathlib.Path(__file__).resolve().parents[2] / "containers" / "Containerfile"
BASE = f"debian:{OLDEST}-slim"
# Answers once the server listens, and then ends it. The words before it start the server.
ASK = r"""
"$@" &
for _ in $(seq 100); do exec 3<>/dev/tcp/127.0.0.1/PORT && break; sleep 0.1; done 2>/dev/null
printf 'set a 0 0 1\r\nx\r\nget a\r\nquit\r\n' >&3
tr -d '\r' <&3
kill %1
wait %1
"""
ANSWER = "STORED\nVALUE a 0 1\nx\nEND\n"


def instructions(text):
    """Returns the recipe's pairs of (word, rest)."""
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]


class Image:
    """What the instructions so far have set."""

    def __init__(self, tree):
        self.tree = tree
        self.user, self.environment, self.entry, self.command = "root", {}, [], []

    def run(self, *words):
        user = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--init-groups"]
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return self.tree.run(*user, "env", *variables, *words)

    def follow(self, word, rest):
        """Carries out an instruction. Raises Failed."""
        match word:
            case "FROM" if rest == BASE:
                pass
            case "COPY" if re.fullmatch(r"\S+ /\S+/", rest):
                # The packages are in /shared, as podman has them in the folder of the build.
                self.shell(f"cd /shared && cp {rest}")
            case "RUN":
                self.shell(rest)
            case "ENV":
                self.environment |= [rest.split("=", 1)]
            case "USER":
                self.user = rest
            case "EXPOSE":
                pass
            case "ENTRYPOINT":
                self.entry = json.loads(rest)
            case "CMD":
                self.command = json.loads(rest)
            case _:
                raise Failed(f"{RECIPE.name}: {word} {rest}")

    def shell(self, script):
        status, said = self.run("sh", "-c", script)
        if status != 0:
            raise Failed(f"{script}\n{said}")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def check(files, results):
    """Follows the recipe, and starts its server with a small memory at a free port."""
    with Tree(OLDEST, []) as tree:
        for file in files:
            shutil.copy(file, tree.shared)
        image = Image(tree)
        try:
            for word, rest in instructions(RECIPE.read_text()):
                image.follow(word, rest)
        except Failed as error:
            results.add("the container's recipe", 1, str(error))
            return
        results.add("the container's recipe", 0, "")
        port = free_port()
        words = [*image.entry, *image.command, "-m", "16", "-p", str(port)]
        status, said = image.run("bash", "-c", ASK.replace("PORT", str(port)), "bash", *words)
        said = f"{shlex.join(words)}\n{said}"
        results.add("the container's server answers", 0 if ANSWER in said else status or 1, said)
