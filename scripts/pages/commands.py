"""Checks that the commands in the pages exist: each `glebe` command, its subcommands and options."""

import re
import subprocess

from . import markdown

KINDS = ("sh", "text", "ini", "")
CALL = re.compile(r"(?:^|[\s;|&(`=]|bin/|release/)(?:\$ |sudo )?glebe((?: +[^\s;|&`]+)+)")
# A subcommand; other words are values.
WORD = re.compile(r"^[a-z][a-z-]*$")


def calls(text):
    """Yields (line, words) for each call of glebe in a page: in a block or in a code span."""
    for block in markdown.blocks(text):
        if block.kind in KINDS:
            joined = re.sub(r"\\\n", lambda _: " \x00", block.text)
            for number, line in enumerate(joined.split("\n"), block.line + 1):
                yield from ((number, words) for words in of_line(re.sub(r"(?:^|\s)#.*", "", line)))
    for number, line in markdown.prose_lines(text):
        for code in re.findall(r"`([^`]+)`", line):
            yield from ((number, words) for words in of_line(code))


def of_line(line):
    for found in CALL.finditer(line.replace("\x00", "")):
        words = found[1].split()
        yield words[: words.index("--")] if "--" in words else words


class Known:
    """The command's own help, asked once for each subcommand."""

    def __init__(self, glebe):
        self.glebe, self.seen = glebe, {}

    def help(self, path):
        if path not in self.seen:
            done = subprocess.run([self.glebe, *path, "--help"], capture_output=True, text=True)
            self.seen[path] = done.stdout if done.returncode == 0 else None
        return self.seen[path]

    def wrong(self, words):
        """Returns what is wrong with a call, or None."""
        if not WORD.match(words[0]) or words[0] in ("man", "help", "completions"):
            return None
        path = (words[0],)
        if self.help(path) is None:
            return f"there is no `glebe {words[0]}`"
        if len(words) > 1 and WORD.match(words[1]) and "Commands:" in self.help(path):
            path += (words[1],)
            if self.help(path) is None:
                return f"there is no `glebe {words[0]} {words[1]}`"
        for word in words:
            option = re.match(r"--?[A-Za-z][\w-]*", word)
            if option and not re.search(rf"(?<![\w-]){re.escape(option[0])}(?![\w-])", self.help(path)):
                return f"`glebe {' '.join(path)}` has no option {option[0]}"
        return None


def findings(pages, glebe):
    """Yields (page, line, text) for each call that the command would refuse."""
    known = Known(glebe)
    for page in pages:
        for line, words in calls(page.read_text()):
            if wrong := known.wrong(words):
                yield page, line, wrong
