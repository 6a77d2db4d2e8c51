"""Runs a program in the foreground of a terminal, presses Ctrl-C, and ends it by SIGUSR1.

Prints what the program wrote. Exits with 1 unless the program exits with 3.
"""

import os
import pty
import signal
import sys
import time

child, terminal = pty.fork()
if child == 0:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)  # a shell cannot trap what was ignored at its start
    os.execvp(sys.argv[1], sys.argv[1:])


def read_until(word):
    said = b""
    while word not in said:
        said += os.read(terminal, 4096)
    return said


said = read_until(b"up")
os.write(terminal, b"\x03")
said += read_until(b"got")
time.sleep(0.5)  # a second signal would arrive now
os.kill(child, signal.SIGUSR1)
try:
    while part := os.read(terminal, 4096):
        said += part
except OSError:  # the terminal has no user any more
    pass
print(said.decode())
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status) != 3)
