"""Tests the example of Dask workers that keep what they spill in idle memory."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
EXAMPLE = EXAMPLES / "dask_spill.py"
PATIENCE = 300
# A worker keeps few bytes, so it spills. Its idle memory has room for all, until it takes it.
SMALL = """
import functools
import dask_spill
from distributed import Client, LocalCluster

# Huge pages of the machine's pool are for other tests.
dask_spill.glebe.Reserve = functools.partial(dask_spill.glebe.Reserve, source="plain")
data = (dask_spill.Spill, {"target": 4 << 20, "idle": 64 << 20})
if __name__ == "__main__":
    with LocalCluster(n_workers=2, dashboard_address=None, threads_per_worker=1, data=data) as all:
        with Client(all) as client:
            dask_spill.job(client, values=40, length=1 << 20)
"""


def counts(said):
    """Returns the numbers of values, spilled ones, workers, hits and misses."""
    found = re.search(r"(\d+) values are right, (\d+) of them spilled, in (\d+) workers: "
                      r"(\d+) reads found them in idle memory, (\d+) in files", said)
    assert found, said
    return tuple(map(int, found.groups()))


def test_two_workers_find_spilled_values_in_idle_memory_and_in_files(tmp_path):
    pytest.importorskip("distributed", reason="distributed is not installed")
    program = tmp_path / "small.py"
    program.write_text(SMALL)
    env = {**os.environ, "PYTHONPATH": f"{EXAMPLES}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, program], env=env, cwd=tmp_path, capture_output=True,
                          text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    values, spilled, workers, hits, misses = counts(done.stdout)
    assert (values, workers) == (40, 2)
    assert 20 <= spilled < 40 and hits > 0
    # After the workers took their idle memory, only files had the values that were spilled.
    assert misses >= spilled // 2


class Hosts:
    """Network namespaces on one bridge, which is in a namespace of its own."""

    def __init__(self, number):
        self.names = [f"glebe{os.getpid()}-{nth}" for nth in range(number + 1)]

    def ip(self, *words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def __enter__(self):
        with contextlib.ExitStack() as ends:
            for name in self.names:
                self.ip("netns", "add", name)
                ends.callback(self.ip, "netns", "del", name)
            hub, *hosts = self.names
            self.ip("-n", hub, "link", "add", "hub", "type", "bridge")
            self.up(hub, "hub", 0)
            for nth, host in enumerate(hosts, 1):
                self.ip("-n", hub, "link", "add", f"port{nth}", "type", "veth",
                        "peer", "name", "net", "netns", host)
                self.ip("-n", hub, "link", "set", f"port{nth}", "master", "hub", "up")
                self.up(host, "net", nth)
            self.ends = ends.pop_all()
        return self

    def up(self, host, link, number):
        self.ip("-n", host, "link", "set", "lo", "up")
        self.ip("-n", host, "addr", "add", f"{self.address(number)}/24", "dev", link)
        self.ip("-n", host, "link", "set", link, "up")

    @staticmethod
    def address(number):
        return f"10.213.7.{number + 1}"

    def on(self, number, *words):
        return ["ip", "netns", "exec", self.names[number], *map(str, words)]

    def __exit__(self, *_):
        self.ends.close()


def hosts(number):
    if not os.environ.get("GLEBE_LONG"):
        pytest.skip("takes a minute: set GLEBE_LONG")
    if not shutil.which("ip"):
        pytest.skip("ip is not installed: iproute2")
    made = Hosts(number)
    try:
        return made.__enter__()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces: {error.stderr.decode().strip()}")


def test_workers_on_three_hosts_spill_a_job_that_their_limits_have_no_room_for(tmp_path):
    pytest.importorskip("distributed", reason="distributed is not installed")
    net, processes = hosts(3), []
    address = f"tcp://{net.address(0)}:8786"

    def start(number, *words):
        log = (tmp_path / f"log{len(processes)}").open("w")
        folder = tmp_path / f"host{len(processes)}"
        folder.mkdir()
        processes.append(subprocess.Popen(net.on(number, *words), cwd=folder, stdout=log,
                                          stderr=subprocess.STDOUT))

    try:
        start(0, sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard",
              "--host", net.address(0))
        for number in (1, 2, 3):
            start(number, sys.executable, EXAMPLE, "worker", address)
        words = net.on(0, sys.executable, EXAMPLE, "job", address, 3)
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
        logs = [log.read_text()[-2000:] for log in sorted(tmp_path.glob("log*"))]
        assert done.returncode == 0, [done.stderr, *logs]
        values, spilled, workers, hits, misses = counts(done.stdout)
        assert (values, workers) == (480, 3)
        assert spilled > values // 2 and hits > 0 and misses >= spilled
        print(done.stdout)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
        net.__exit__()
