"""Virtual time, cores and the network, each by itself."""

from __future__ import annotations

import pytest

from manyhands.cluster import Cluster, Host, Link
from manyhands.failure import RunFailed
from manyhands.virtual.simulator.cores import Cores
from manyhands.virtual.simulator.kernel import Kernel, happens
from manyhands.virtual.simulator.member import VirtualProcess
from manyhands.virtual.simulator.network import Network


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def a_member(name: str = "worker-0", host: str = "a") -> VirtualProcess:
    member = VirtualProcess(name, host)
    member.begin()
    return member


async def sleep(kernel: Kernel, seconds: float) -> None:
    await happens(kernel.timeout(seconds))


def test_coroutines_run_on_virtual_time(kernel: Kernel) -> None:
    seen = []

    async def work(name: str, seconds: float) -> None:
        for _ in range(2):
            await sleep(kernel, seconds)
            seen.append((name, kernel.now))

    for name, seconds in (("a", 1000.0), ("b", 600.0)):
        kernel.start(a_member(name), work(name, seconds), lambda: None)
    kernel.after(5000, kernel.finish)
    kernel.run()
    assert seen == [("b", 600), ("a", 1000), ("b", 1200), ("a", 2000)]
    assert kernel.now == 5000


def test_what_is_dropped_is_never_resumed(kernel: Kernel) -> None:
    seen = []
    member = a_member()

    async def work() -> None:
        try:
            await sleep(kernel, 2)
            seen.append("went on")
        finally:
            seen.append(f"finally at {kernel.now}")

    def kill() -> None:
        member.end(kernel.now)
        kernel.drop(member)

    kernel.start(member, work(), lambda: seen.append("ended"))
    kernel.after(1, kill)
    kernel.after(3, lambda: seen.append("after"))
    kernel.after(4, kernel.finish)
    kernel.run()
    assert seen == ["after", "finally at 4.0"], "only when the run is over and the world is gone"


def test_a_new_life_of_a_member_does_not_wake_the_old_one(kernel: Kernel) -> None:
    seen = []
    member = a_member()

    async def work(life: int) -> None:
        await sleep(kernel, 2)
        seen.append(life)

    def die_and_return() -> None:
        member.end(kernel.now)
        kernel.drop(member)
        kernel.start(member, work(member.begin()), kernel.finish)

    kernel.start(member, work(1), kernel.finish)
    kernel.after(1, die_and_return)
    kernel.run()
    assert (seen, kernel.now) == ([2], 3)


def test_a_member_that_stands_still_goes_on_later(kernel: Kernel) -> None:
    member = a_member()
    kernel.start(member, sleep(kernel, 1), kernel.finish)
    kernel.after(0.5, lambda: member.pause(kernel.now, 2))
    kernel.run()
    assert kernel.now == 2.5
    assert member.stopped == 2


def test_an_error_ends_the_run(kernel: Kernel) -> None:
    async def work() -> None:
        await sleep(kernel, 1)
        raise LookupError("lost")

    kernel.start(a_member(), work(), lambda: None)
    with pytest.raises(LookupError, match="lost"):
        kernel.run()


def test_when_nothing_can_happen_any_more_it_says_who_waits(kernel: Kernel) -> None:
    async def work() -> None:
        await happens(kernel.event())

    kernel.start(a_member("worker-7"), work(), lambda: None)
    with pytest.raises(RunFailed, match=r"deadlock after 0 s: .* worker-7 still waiting"):
        kernel.run()


def computing(
    kernel: Kernel, cores: Cores, jobs: list[tuple[VirtualProcess, float]]
) -> dict[str, float]:
    """When each of these computations was done."""
    done: dict[str, float] = {}

    async def work(member: VirtualProcess, seconds: float) -> None:
        await cores.compute(member, seconds)
        done[member.name] = kernel.now

    for member, seconds in jobs:
        kernel.start(member, work(member, seconds), lambda: None)
    kernel.after(100, kernel.finish)
    kernel.run()
    return done


def test_cores_are_given_in_order(kernel: Kernel) -> None:
    jobs = [(a_member(str(number)), seconds) for number, seconds in enumerate((3.0, 1.0, 1.0, 1.0))]
    assert computing(kernel, Cores(kernel, 2), jobs) == {"0": 3, "1": 1, "2": 2, "3": 3}


def test_the_dead_give_their_core_back_and_leave_the_queue(kernel: Kernel) -> None:
    cores = Cores(kernel, 1)
    members = [a_member(str(number)) for number in range(3)]

    def kill(member: VirtualProcess) -> None:
        member.end(kernel.now)
        kernel.drop(member)
        cores.drop(member)

    kernel.after(0.5, lambda: kill(members[1]))
    kernel.after(2, lambda: kill(members[0]))
    done = computing(kernel, cores, [(member, 10.0) for member in members])
    assert done == {"2": 12}


def test_time_stood_still_is_not_computed_in(kernel: Kernel) -> None:
    member, other = a_member("0"), a_member("1")
    kernel.after(1, lambda: member.pause(kernel.now, 5))
    kernel.after(7, lambda: member.pause(kernel.now, 1))
    done = computing(kernel, Cores(kernel, 2), [(member, 3.0), (other, 3.0)])
    assert done == {"0": 9, "1": 3}


def a_network(kernel: Kernel, latency: float = 0.0, **links: float) -> Network:
    """Hosts a to e, joined by 100 bytes a second where nothing else is said."""
    hosts = tuple(Host(name, 1, 0) for name in "abcde")
    named = tuple((pair[0], pair[1], Link(rate, latency)) for pair, rate in links.items())
    return Network(kernel, Cluster(hosts, Link(100.0, latency), named), copy_rate=1000.0)


class Traffic:
    """Messages and what became of them."""

    def __init__(self, kernel: Kernel, network: Network) -> None:
        self.kernel, self.network = kernel, network
        self.members = {host: a_member(f"server-{'abcde'.index(host)}", host) for host in "abcde"}
        self.arrived: dict[str, float] = {}
        self.lost: dict[str, float] = {}

    def send(self, name: str, way: str, nbytes: int, at: float = 0.0) -> None:
        def go() -> None:
            self.network.send(
                self.members[way[0]],
                self.members[way[1]],
                nbytes,
                deliver=lambda: self.arrived.setdefault(name, self.kernel.now),
                lose=lambda: self.lost.setdefault(name, self.kernel.now),
            )

        self.kernel.after(at, go)

    def kill(self, host: str, at: float) -> None:
        def die() -> None:
            self.members[host].end(self.kernel.now)
            self.network.drop(self.members[host])

        self.kernel.after(at, die)

    def run(self) -> None:
        self.kernel.after(1000, self.kernel.finish)
        self.kernel.run()


@pytest.fixture
def traffic(kernel: Kernel) -> Traffic:
    return Traffic(kernel, a_network(kernel))


def test_a_message_alone_takes_its_latency_and_its_size(kernel: Kernel) -> None:
    traffic = Traffic(kernel, a_network(kernel, latency=0.5))
    traffic.send("x", "ab", 200)
    traffic.run()
    assert traffic.arrived == {"x": 2.5}


def test_within_a_host_a_message_is_copied_and_handed_over(kernel: Kernel) -> None:
    network = Network(kernel, Cluster((Host("a", 1, 0),)), copy_rate=1000.0, handover=0.25)
    traffic = Traffic(kernel, network)
    traffic.send("x", "aa", 500)
    traffic.send("y", "aa", 1000)
    traffic.run()
    assert traffic.arrived == {"x": 0.75, "y": 1.25}


def test_a_sender_s_port_is_shared(traffic: Traffic) -> None:
    for name, way in (("x", "ab"), ("y", "ac"), ("z", "ad")):
        traffic.send(name, way, 100)
    traffic.run()
    assert traffic.arrived == {"x": 3, "y": 3, "z": 3}


def test_a_port_is_shared_by_those_who_are_there(traffic: Traffic) -> None:
    traffic.send("first", "ab", 300)
    traffic.send("second", "ac", 100, at=1)
    traffic.send("third", "ad", 100, at=2)
    traffic.run()
    # 100 bytes of the first alone, 50 of each of two, 50 of each of three, and so on.
    assert traffic.arrived == {
        "first": pytest.approx(5),
        "second": pytest.approx(3.5),
        "third": pytest.approx(4.5),
    }


def test_a_small_message_does_not_wait_for_a_large_one(traffic: Traffic) -> None:
    traffic.send("large", "ab", 1000)
    traffic.send("small", "ab", 1, at=5)
    traffic.run()
    assert traffic.arrived == {
        "small": pytest.approx(5.02),
        "large": pytest.approx(10.01),
    }


def test_a_receiver_s_port_is_shared_and_its_senders_are_not_held_up(traffic: Traffic) -> None:
    traffic.send("x", "ac", 100)
    traffic.send("y", "bc", 100)
    traffic.send("elsewhere", "bd", 100, at=1)
    traffic.run()
    assert traffic.arrived == {"x": 2, "y": 2, "elsewhere": 2}, "b's port was busy for 1 s only"


def test_the_two_directions_are_two(traffic: Traffic) -> None:
    traffic.send("there", "ab", 100)
    traffic.send("back", "ba", 100)
    traffic.run()
    assert traffic.arrived == {"there": 1, "back": 1}


def test_who_is_held_up_at_one_port_does_not_fill_another(traffic: Traffic) -> None:
    for name, way in (("x", "ae"), ("y", "be"), ("z", "ce")):
        traffic.send(name, way, 100)
    traffic.send("free", "ab", 100, at=1)
    traffic.run()
    assert traffic.arrived == {"x": 3, "y": 3, "z": 3, "free": 2}


def test_a_slow_link_does_not_fill_a_fast_port(kernel: Kernel) -> None:
    traffic = Traffic(kernel, a_network(kernel, ab=10.0))
    traffic.send("slow", "ab", 100)
    traffic.send("fast", "ac", 100)
    traffic.run()
    assert traffic.arrived == {"slow": 10, "fast": 2}


def test_a_host_whose_links_are_all_declared_one_by_one_has_the_port_of_the_fastest(kernel) -> None:
    # Three messages of 50 bytes to d at once: 50 B/s for all of them, whatever the common link.
    links = {"ad": 50.0, "bd": 50.0, "cd": 20.0, "de": 50.0}
    traffic = Traffic(kernel, a_network(kernel, **links))
    for name in "abe":
        traffic.send(name, f"{name}d", 50)
    traffic.run()
    assert traffic.arrived == {"a": 3.0, "b": 3.0, "e": 3.0}


def test_within_a_host_a_message_is_copied(kernel: Kernel) -> None:
    traffic = Traffic(kernel, a_network(kernel, latency=0.5))
    traffic.members["b"].host = "a"
    traffic.send("x", "ab", 100)
    traffic.send("y", "ab", 100)
    traffic.run()
    assert traffic.arrived == {"x": 0.1, "y": 0.1}


def test_a_message_to_the_dead_is_lost(traffic: Traffic) -> None:
    traffic.kill("b", at=0.5)
    traffic.send("one", "ab", 100)
    traffic.send("two", "ab", 100)
    traffic.send("later", "ab", 100, at=3)
    traffic.send("to another", "ac", 100, at=1.2)
    traffic.run()
    assert traffic.arrived == {"to another": pytest.approx(2.2)}, "nothing is sent to the dead"
    assert traffic.lost == {"one": 0.5, "two": 0.5, "later": 3}


def test_what_a_receiver_has_not_taken_in_is_lost_with_it_and_frees_its_port(
    traffic: Traffic,
) -> None:
    for name, way in (("x", "ac"), ("y", "bc"), ("z", "dc")):
        traffic.send(name, way, 100)
    traffic.kill("c", at=0.5)
    traffic.kernel.after(1, traffic.members["c"].begin)
    traffic.send("new", "ec", 100, at=1)
    traffic.run()
    assert traffic.arrived == {"new": 2}
    assert traffic.lost == {"x": 0.5, "y": 0.5, "z": 0.5}


def test_a_message_survives_its_sender_once_its_last_byte_has_left(kernel: Kernel) -> None:
    traffic = Traffic(kernel, a_network(kernel, latency=5.0))
    traffic.send("whole", "ab", 100)
    traffic.send("part", "ac", 100, at=1)
    traffic.kill("a", at=1.5)
    traffic.kernel.after(2, traffic.members["a"].begin)
    traffic.run()
    assert traffic.arrived == {"whole": 6}
    assert list(traffic.lost) == ["part"]


@pytest.mark.parametrize(
    ("start", "stop", "arrives"),
    [(0, 0.5, False), (0.5, 0.6, False), (0.9, 9, False), (1.0, 9, False), (1.1, 9, True)],
)
def test_a_message_is_lost_if_it_meets_a_cut(
    traffic: Traffic, start: float, stop: float, arrives: bool
) -> None:
    traffic.network.cut("server-1", "server-0", start, stop)
    traffic.send("x", "ab", 100)
    traffic.send("y", "dc", 100)
    traffic.run()
    assert ("x" in traffic.arrived) == arrives
    assert ("x" in traffic.lost) != arrives
    assert "y" in traffic.arrived


def test_a_cut_ends(traffic: Traffic) -> None:
    traffic.network.cut("server-0", "server-1", 0, 2)
    traffic.send("x", "ab", 100, at=2)
    traffic.run()
    assert traffic.arrived == {"x": 3}
