"""scripts/hosts: hosts that share what hosts share, cables that are limited and pulled, and nothing left."""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

SCRIPT = str(Path(__file__).resolve().parents[2] / "scripts" / "hosts")
SKIPPED = 77

# In ranks: `reach()` is a stream between the first two, over the cable.
PRELUDE = """
import os, socket, sys, threading, time
rank, local = int(os.environ["UBEP_RANK"]), int(os.environ["LOCAL_RANK"])
place = os.environ["UBEP_ADDRESS"], int(os.environ["UBEP_PORT"])
family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
def reach():
    if rank == 0:
        return socket.create_server(place, family=family).accept()[0]
    for _ in range(500):
        try:
            return socket.create_connection(place, timeout=20)
        except ConnectionRefusedError:
            time.sleep(0.01)
"""

BOTH_WAYS = """
stream, amount, got = reach(), 2_500_000, 0
start = time.monotonic()
sender = threading.Thread(target=stream.sendall, args=(bytes(amount),))
sender.start()
while got < amount:
    got += len(stream.recv(1 << 20))
took = time.monotonic() - start
sender.join()
print(took, file=sys.stderr)
"""

# Rank 1 tells the time every 10 ms until the first has heard one from after the last event.
TICKS = """
talk = socket.socket(family, socket.SOCK_DGRAM)
talk.settimeout(8)
if rank == 0:
    talk.bind(place)
    stream, heard, late = reach(), [], 0
    while late < 5:
        heard.append((time.monotonic(), float(talk.recv(100))))
        late += heard[-1][0] - heard[0][0] > float(sys.argv[1])
    for column in (0, 1):
        times = [pair[column] for pair in heard]
        print(max(b - a for a, b in zip(times, times[1:])))
    os._exit(0)
stream = reach()
for _ in range(1000):
    try:
        talk.sendto(str(time.monotonic()).encode(), place)
    except OSError:
        pass
    time.sleep(0.01)
    if rank == 1 and _ % 20 == 0:
        stream.setblocking(False)
        try:
            if stream.recv(1) == b"":
                break
        except BlockingIOError:
            pass
"""

SHARED = r"""
name = "\0" + "of one host"
if local == 0:
    here = socket.socket(socket.AF_UNIX)
    here.bind(name)  # would fail if another host's were here
    here.listen()
    open("/dev/shm/of_one_host", "x").close()
    here.accept()
else:
    for _ in range(500):
        try:
            there = socket.socket(socket.AF_UNIX)
            there.connect(name)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    assert os.path.exists("/dev/shm/of_one_host")
ids = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "ipc", "uts", "pid", "mnt")]
print(socket.gethostname(), *ids, file=sys.stderr)
assert sorted(os.listdir("/sys/class/net")) == ["eth0", "lo"]
assert socket.gethostbyname("host0") == place[0]
"""

# Each rank exchanges 1 MB with its neighbour, or with the other host's rank; without mpi.h and a compiler.
MPI = """
import ctypes, socket, sys
mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
def constant(name):
    return ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_" + name))
def number(function, communicator):
    value = ctypes.c_int()
    assert function(communicator, ctypes.byref(value)) == 0
    return value.value
world, byte, size, here = constant("comm_world"), constant("byte"), 1_000_000, ctypes.c_void_p()
assert mpi.MPI_Init(None, None) == 0
rank, ranks = number(mpi.MPI_Comm_rank, world), number(mpi.MPI_Comm_size, world)
assert mpi.MPI_Comm_split_type(world, 0, 0, constant("info_null"), ctypes.byref(here)) == 0
peer = rank ^ 1 if sys.argv[1] == "near" else (rank + 2) % 4
sent, got = ((ctypes.c_char * size)() for _ in range(2))
sent[-1] = rank
assert mpi.MPI_Sendrecv(sent, size, byte, peer, 0, got, size, byte, peer, 0, world, None) == 0
assert got[-1] == bytes([peer])
sys.stdout.write(f"{rank} of {ranks} on {socket.gethostname()} with {number(mpi.MPI_Comm_size, here)}\\n")
mpi.MPI_Finalize()
"""


def run(*arguments, timeout=60, **variables):
    """(status, output, what went to the error output)"""
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, timeout=timeout,
                          env={**os.environ, **variables}, check=False)
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def python(text, *arguments):
    return ["--", sys.executable, "-c", PRELUDE + text, *arguments]


def of_ranks(errors):
    """{rank: lines}"""
    found = {}
    for rank, line in re.findall(r"^rank (\d+): (.*)$", errors, re.MULTILINE):
        found.setdefault(int(rank), []).append(line)
    return found


class WithNamespaces(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        status, _, errors = run("1x1", "--", "true")
        if status == SKIPPED:
            raise unittest.SkipTest(errors.strip())


class Hosts(WithNamespaces):
    def well(self, *arguments, **variables):
        """(output, {rank: lines}, all of the error output) of a run without a failure."""
        status, output, errors = run(*arguments, **variables)
        self.assertEqual(status, 0, errors)
        return output.decode(), of_ranks(errors), errors

    def test_ranks_count_host_by_host(self):
        show = ["--", "sh", "-c", 'echo "$(hostname) $UBEP_WORLD_SIZE $LOCAL_RANK '
                '$LOCAL_WORLD_SIZE $UBEP_JOB $UBEP_ADDRESS $UCX_NET_DEVICES" >&2']
        for shape, expected in (("2x2", [2, 2]), ("4x2", [2] * 4), ("1,3", [1, 3])):
            _, lines, errors = self.well(shape, *show)
            self.assertEqual(sorted(lines), list(range(sum(expected))), errors)
            job = lines[0][0].split()[4]
            places = [(host, local, ranks) for host, ranks in enumerate(expected)
                      for local in range(ranks)]
            for rank, (host, local, ranks) in enumerate(places):
                self.assertEqual(lines[rank], [f"host{host} {sum(expected)} {local} {ranks} {job} "
                                               "10.77.0.1 eth0"])
        _, lines, _ = self.well("1x1", "--ipv6", *show, UCX_NET_DEVICES="lo")
        self.assertEqual(lines[0][0].split()[5:], ["fd77:7562:6570::1", "lo"])
        self.assertNotEqual(lines[0][0].split()[4], job)

    def test_output_is_rank_0s_unaltered(self):
        status, output, errors = run("2x1", "--", "sh", "-c", r'printf "a\377\n\nof $UBEP_RANK"')
        self.assertEqual((status, output), (0, b"a\xff\n\nof 0"), errors)
        self.assertEqual(of_ranks(run("2x1", "--", "sh", "-c", r'printf "a\n\nof $UBEP_RANK"')[2]),
                         {1: ["a", "", "of 1"]})

    def test_the_first_failure_is_told(self):
        status, _, errors = run("2x2", "--", "sh", "-c",
                                "case $UBEP_RANK in 2) exit 3;; 1) sleep 0.5; kill -9 $$;; esac")
        self.assertEqual(status, 3)
        self.assertIn("hosts: rank 2 ended with status 3\n", errors)
        self.assertIn("hosts: rank 1 was killed by signal 9 (Killed)\n", errors)
        self.assertEqual(run("1x1", "--", "sh", "-c", "kill -9 $$")[0], 128 + 9)

    def test_refused(self):
        status, _, errors = run("1x1", "--", "no-such-command")
        self.assertEqual((status, errors), (127, "hosts: there is no command no-such-command\n"))
        for arguments in (["0x1", "--", "true"], ["2x2"], ["2x", "--", "true"],
                          ["1,0", "--", "true"], ["1x1", "--rate", "fast", "--", "true"],
                          ["1x1", "--down", "1@0", "--", "true"], ["1x1", "--up", "0", "--", "true"]):
            self.assertEqual(run(*arguments)[0], 2, arguments)

    def test_time_limit(self):
        status, _, errors = run("1,2", "--timeout", "0.5", "--", "sh", "-c",
                                "[ $UBEP_RANK = 1 ] || sleep 600")
        self.assertEqual(status, 124)
        self.assertIn("hosts: not done after 0.5 s, killed: rank 0, rank 2\n", errors)

    def test_what_hosts_share(self):
        _, lines, _ = self.well("2x2", *python(SHARED))
        spaces = [lines[rank][0].split() for rank in range(4)]
        self.assertEqual(spaces[0], spaces[1])
        self.assertEqual(spaces[2], spaces[3])
        for here, there in zip(spaces[0], spaces[2]):
            self.assertNotEqual(here, there)

    def test_rate_and_report(self):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report"
            for options in ([], ["--ipv6"]):
                _, lines, errors = self.well("2x1", "--rate", "100mbit", "--report", str(report),
                                             *options, *python(BOTH_WAYS))
                for rank in (0, 1):  # 0.2 s each way, and both at once; less 16 KiB
                    self.assertGreater(float(lines[rank][0]), 0.19, errors)
                told = json.loads(report.read_text())
                self.assertEqual((told["rate_bits"], told["status"]), (100_000_000, 0))
                for number, host in enumerate(told["hosts"]):
                    self.assertEqual(host["ranks"], [number])
                    for way in ("sent_bytes", "received_bytes"):
                        self.assertGreater(host[way], 2_500_000)
                        self.assertLess(host[way], 3_000_000)
                    self.assertIn(f"host {number} (ranks {number}-{number}): {host['sent_bytes']} "
                                  f"bytes sent, {host['received_bytes']} received", errors)

    def test_without_a_rate_it_is_faster(self):
        took = [float(self.well("2x1", *python(BOTH_WAYS))[1][0][0]) for _ in range(3)]
        self.assertLess(min(took), 0.19)

    def gaps(self, *events):
        """The longest silence at the listener, and between what was said."""
        output, _, _ = self.well("2x1", *events, *python(TICKS, "1.2"))
        return [float(line) for line in output.split()]

    def test_a_pulled_cable(self):
        heard, _ = self.gaps("--down", "1@0.5", "--up", "1@1")  # the kernel keeps some for later
        self.assertGreater(heard, 0.45)
        status, _, errors = run("2x1", "--down", "0@0", "--timeout", "1", *python(TICKS, "1"))
        self.assertEqual(status, 124, errors)

    def test_a_paused_host(self):
        heard, said = self.gaps("--pause", "1@0.5", "--resume", "1@1")
        self.assertGreater(heard, 0.45)
        self.assertGreater(said, 0.45)


def network_namespaces():
    """Those of all processes that one may look at."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(link))
        except OSError:
            pass
    return found


def processes_with(mark):
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.add(int(path.parts[2]))
        except OSError:
            pass
    return found


@unittest.skipUnless(shutil.which("mpirun.openmpi"), "no mpirun.openmpi here")
class OpenMpi(WithNamespaces):
    def crossed(self, whom):
        """(bytes that host 0 sent, that it received) while the ranks exchanged."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report"
            status, output, errors = run("2x2", "--mpi", "--report", str(report), "--", sys.executable,
                                         "-c", MPI, whom)
            self.assertEqual(status, 0, errors)
            self.assertEqual(sorted(output.decode().splitlines()),
                             [f"{rank} of 4 on host{rank // 2} with 2" for rank in range(4)])
            host = json.loads(report.read_text())["hosts"][0]
            return host["sent_bytes"], host["received_bytes"]

    def test_cables_between_hosts_and_memory_within(self):
        for amount in self.crossed("far"):
            self.assertGreater(amount, 2_000_000)
            self.assertLess(amount, 2_400_000)
        for amount in self.crossed("near"):
            self.assertLess(amount, 200_000)

    def test_a_failure(self):
        status, _, errors = run("2x1", "--mpi", "--", "sh", "-c", "exit $((3 * OMPI_COMM_WORLD_RANK))")
        self.assertEqual(status, 3, errors)
        self.assertIn("hosts: mpirun ended with status 3\n", errors)


class Ends(WithNamespaces):
    """Whatever ends the script, nothing of it stays."""

    def check(self, number, status, *options):
        mark, devices = f"hosts-test-{secrets.token_hex(8)}", os.listdir("/sys/class/net")
        before = network_namespaces()
        with subprocess.Popen([sys.executable, SCRIPT, "2x2", *options, "--", "sh", "-c",
                               "trap '' TERM INT HUP; setsid sleep 600 & echo here; sleep 600"],
                              env={**os.environ, "MARK": mark}, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as script:
            self.assertEqual(script.stdout.readline(), b"here\n")
            made = network_namespaces() - before
            self.assertGreaterEqual(len(made), 3)
            self.assertEqual(os.listdir("/sys/class/net"), devices)
            script.send_signal(number)
            self.assertEqual(script.wait(10), status)
        deadline = time.monotonic() + 10
        while processes_with(mark) or made & network_namespaces():
            self.assertLess(time.monotonic(), deadline, f"{processes_with(mark)} are left")
            time.sleep(0.02)
        self.assertEqual(os.listdir("/sys/class/net"), devices)

    def test_kill_9(self):
        self.check(signal.SIGKILL, -9)

    @unittest.skipUnless(shutil.which("mpirun.openmpi"), "no mpirun.openmpi here")
    def test_kill_9_of_mpi(self):
        self.check(signal.SIGKILL, -9, "--mpi")

    def test_terminate(self):
        self.check(signal.SIGTERM, 128 + 15)

    def test_interrupt(self):
        self.check(signal.SIGINT, 128 + 2)


if __name__ == "__main__":
    unittest.main()
