"""Network namespaces with an address each, joined in pairs: what passes between two of them can be cut off."""

import itertools
import os
import random
import shutil
import subprocess

ROUTED = "198.18"  # RFC 2544: for tests of networks, routed nowhere
NOBODY = "02:00:00:00:00:01"  # an address that no card has: frames to it are dropped without an answer


def can_make_namespaces() -> bool:
    """Whether this user may make network namespaces: root may, with iproute2."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"lk{random.SystemRandom().randrange(1 << 24):06x}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        _ip("netns", "del", name)
    return made


class Networks:
    """Namespaces numbered from 0.

    Each pair has a cable of its own, and so has each one with this process: a bridge's frames would pass the filters of
    the machine, which drop them where Docker runs.
    """

    def __init__(self, count: int) -> None:
        random_numbers = random.SystemRandom()
        self._name, self._subnet = f"lk{random_numbers.randrange(1 << 24):06x}", random_numbers.randrange(256)
        self._host, self._count = f"{ROUTED}.{self._subnet}.254", count
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def address(self, number: int) -> str:
        """The one address of a namespace."""
        return f"{ROUTED}.{self._subnet}.{number + 1}"

    def command(self, number: int) -> list[str]:
        """What runs a command in a namespace when it stands before it."""
        return ["ip", "netns", "exec", self._namespace(number)]

    def cut(self, one: int, other: int) -> None:
        """Drop all that two of them send to each other; connections stay open, and nothing answers."""
        for number, peer in ((one, other), (other, one)):
            wrong = (self.address(peer), "lladdr", NOBODY, "nud", "permanent", "dev", f"to{peer}")
            _ip("-n", self._namespace(number), "neigh", "replace", *wrong)

    def join(self, one: int, other: int) -> None:
        """End what `cut` did."""
        for number, peer in ((one, other), (other, one)):
            _ip("-n", self._namespace(number), "neigh", "del", self.address(peer), "dev", f"to{peer}")

    def close(self) -> None:
        """Remove them; their cables go with them."""
        for number in range(self._count):
            subprocess.run(["ip", "netns", "del", self._namespace(number)], capture_output=True)

    def _namespace(self, number: int) -> str:
        return f"{self._name}-{number}"

    def _make(self) -> None:
        for number in range(self._count):
            namespace, cable = self._namespace(number), f"{self._name}h{number}"
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", namespace, "addr", "add", f"{self.address(number)}/32", "dev", "lo")
            _ip("link", "add", cable, "type", "veth", "peer", "name", "host", "netns", namespace)
            _ip("addr", "add", f"{self._host}/32", "dev", cable)
            _ip("link", "set", cable, "up")
            _ip("route", "add", self.address(number), "dev", cable, "src", self._host)
            _ip("-n", namespace, "link", "set", "host", "up")
            _ip("-n", namespace, "route", "add", self._host, "dev", "host", "src", self.address(number))
        for one, other in itertools.combinations(range(self._count), 2):
            peer = ("peer", "name", f"to{one}", "netns", self._namespace(other))
            _ip("-n", self._namespace(one), "link", "add", f"to{other}", "type", "veth", *peer)
            for number, to in ((one, other), (other, one)):
                namespace, address = self._namespace(number), self.address(to)
                _ip("-n", namespace, "link", "set", f"to{to}", "up")
                _ip("-n", namespace, "route", "add", address, "dev", f"to{to}", "src", self.address(number))


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
