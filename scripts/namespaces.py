"""Hosts of one machine, for scripts/hosts: each has namespaces of its own and a cable to a common switch.

No namespace has a name anywhere: each lives as long as the processes in it. Network(...) is made by the
first process of a namespace of processes, so that all the rest ends with that process, however it ends.
"""

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

CLONE = {"user": 0x10000000, "pid": 0x20000000, "ipc": 0x08000000, "uts": 0x04000000,
         "net": 0x40000000, "mnt": 0x00020000}
OF_A_HOST = ("ipc", "uts", "net", "mnt")  # and pid, which only children are born into
MS_REC, MS_BIND, MS_PRIVATE, PR_SET_PDEATHSIG = 0x4000, 0x1000, 0x40000, 1
FORWARDING = "3"  # state of a bridge's port
DEVICE = "eth0"  # of every host
libc = ctypes.CDLL(None, use_errno=True)


class Unavailable(Exception):
    """This machine lets us have no namespaces."""


def call(name, *arguments):
    if getattr(libc, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def unshare(*kinds):
    call("unshare", sum(CLONE[kind] for kind in kinds))


def mount(source, target, kind="", flags=0):
    call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None)


def new_process_namespace():
    """The caller's next child is the first process of one; without root's rights in a user namespace."""
    user, group = os.getuid(), os.getgid()
    try:
        try:
            unshare("pid")
        except PermissionError:
            unshare("user", "pid")
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    except OSError as error:
        raise Unavailable(f"{error.strerror}, as root or in a user namespace") from error


def die_with_parent():
    call("prctl", PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))


def own_files(name):
    """Files of the kernel and in memory, and the name, of this process's namespaces alone."""
    call("sethostname", name.encode(), len(name))
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc")
    mount("sysfs", "/sys", "sysfs")
    mount("tmpfs", "/dev/shm", "tmpfs")


def ip(*lines):
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)


def fork_into(process, body):
    """A child of the caller, in the namespaces of that process: what body() returns is its status."""
    kinds = ("pid", *OF_A_HOST)
    there = {kind: os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY) for kind in kinds}
    here, folder = os.open("/proc/self/ns/pid", os.O_RDONLY), os.getcwd()
    call("setns", there["pid"], CLONE["pid"])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for kind in OF_A_HOST:
                call("setns", there[kind], CLONE[kind])
            os.chdir(folder)
            status = body()
        finally:
            os._exit(status or 0)
    call("setns", here, CLONE["pid"])
    for file in (here, *there.values()):
        os.close(file)
    return child


class Host:
    """Its first process only reaps and holds the namespaces; fork_into() puts others there."""

    def __init__(self, number, addresses, names):
        self.number = number
        self.addresses = addresses  # IPv4, IPv6
        self.port = f"host{number}"  # the switch's end of the cable, and the host's name
        here = os.open("/proc/self/ns/pid", os.O_RDONLY)
        told, tell = os.pipe()
        unshare("pid")
        self.process = os.fork()
        if self.process == 0:
            os.close(told)
            self._live(tell, names)
        call("setns", here, CLONE["pid"])
        os.close(here)
        os.close(tell)
        with open(told) as answer:
            if trouble := answer.read():
                raise Unavailable(trouble)

    def _live(self, tell, names):
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reaps
            unshare(*OF_A_HOST)
            own_files(self.port)
            Path("/dev/shm/names").write_text(names)
            mount("/dev/shm/names", "/etc/hosts", flags=MS_BIND)
            Path("/dev/shm/names").unlink()  # that is another name of it
            os.close(tell)
            while True:
                signal.pause()
        except OSError as error:
            os.write(tell, (error.strerror or str(error)).encode())
        finally:
            os._exit(1)

    def do(self, body):
        """body() on this host; returns when it is done."""
        status = os.waitstatus_to_exitcode(os.waitpid(fork_into(self.process, body), 0)[1])
        if status != 0:
            raise RuntimeError(f"host {self.number}: status {status}")

    def signal_all(self, number):
        """To all processes on it but the first."""
        self.do(lambda: os.kill(-1, number))


class Network:
    """The switch, in network and mount namespaces of its own, and its hosts."""

    ADDRESS, SUBNET = "10.77.255.254", "10.77.0.0/16"  # the switch's own

    def __init__(self, count, rate=None):
        try:
            unshare("net", "mnt", "ipc", "uts")
            own_files("switch")
        except OSError as error:
            raise Unavailable(error.strerror or str(error)) from error
        ip("link set lo up", "link add switch type bridge", "link set switch up",
           f"addr add {self.ADDRESS}/16 dev switch")
        addresses = [(f"10.77.{i // 250}.{i % 250 + 1}", f"fd77:7562:6570::{i + 1:x}")
                     for i in range(count)]
        names = "127.0.0.1 localhost\n::1 localhost\n" + "".join(
            f"{address} host{i}\n" for i, both in enumerate(addresses) for address in both)
        self.hosts = []
        for number, both in enumerate(addresses):
            self.hosts.append(Host(number, both, names))
            self._plug(self.hosts[-1], rate)
        self._wait_for_ports()

    def _plug(self, host, rate):
        port = host.port
        ip(f"link add {port} type veth peer name {DEVICE} netns {host.process}",
           f"link set {port} master switch up")
        host.do(lambda: ip(
            "link set lo up", f"link set {DEVICE} up", f"addr add {host.addresses[0]}/16 dev {DEVICE}",
            f"addr add {host.addresses[1]}/64 dev {DEVICE} nodad"))
        if rate:
            limit(port, rate)
            host.do(lambda: limit(DEVICE, rate))

    def _wait_for_ports(self):
        """The kernel may look at new cables only after a second."""
        states = [Path(f"/sys/class/net/{host.port}/brport/state") for host in self.hosts]
        deadline = time.monotonic() + 10
        while any(state.read_text().strip() != FORWARDING for state in states):
            if time.monotonic() > deadline:
                raise RuntimeError("the switch does not forward")
            time.sleep(0.01)

    def set_link(self, host, state):
        ip(f"link set {self.hosts[host].port} {state}")

    def bytes_of(self, host):
        """(sent, received) of its link, with headers, as the switch counted them."""
        counts = Path(f"/sys/class/net/{self.hosts[host].port}/statistics")
        return tuple(int((counts / name).read_text()) for name in ("rx_bytes", "tx_bytes"))


def limit(device, bits_per_second):
    """A token bucket: what passes at once after a pause is a tenth of a millisecond or 16 KiB, what
    queues 10 ms. Packets larger than the bucket would have to be cut here, at a core's cost."""
    bucket = max(16384, int(bits_per_second / 8 * 100e-6))
    queue = bucket + int(bits_per_second / 8 * 10e-3)
    ip(f"link set {device} gso_max_size {min(65536, bucket * 7 // 8)}")
    subprocess.run(["tc", "qdisc", "add", "dev", device, "root", "tbf", "rate",
                    f"{bits_per_second}bit", "burst", str(bucket), "limit", str(queue)], check=True)
