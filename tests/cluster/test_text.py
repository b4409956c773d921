"""Clusters as text: what is written is read as the same, and mistakes are named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.cluster import Cluster, Link
from manyhands.cluster.text import EXAMPLE, ClusterLayout, read, write
from manyhands.units import bandwidth, bandwidth_text, seconds, seconds_text

BANDWIDTHS = st.floats(1e-3, 1e15) | st.sampled_from([12.5e6, 125e6, 1.25e9, 1 / 3])
LATENCIES = st.floats(0, 1e3) | st.sampled_from([0.0, 1e-4, 5e-5, 0.04, 1 / 3])
LINKS = st.builds(Link, BANDWIDTHS, LATENCIES)


@st.composite
def layouts(draw: st.DrawFn) -> ClusterLayout:
    sites = draw(st.none() | st.integers(1, 5))
    hosts = draw(st.integers(1, 9))
    apart = draw(st.integers(0, 3))
    places = st.lists(st.integers(0, hosts * (sites or 1) - 1), max_size=3).map(tuple)
    may_have_none = hosts + apart == 1
    needs_none = sites is None and may_have_none
    return ClusterLayout(
        workers=draw(st.integers(1, 9)),
        hosts=hosts,
        sites=sites,
        within=None if needs_none else draw(st.none() | LINKS if may_have_none else LINKS),
        between=draw(LINKS) if sites is not None and sites > 1 else None,
        cores=draw(st.none() | st.integers(1, 9)),
        servers=() if apart else draw(places),
        apart=apart,
        memory=draw(st.integers(0, 10**14)),
    )


@given(layouts())
def test_what_is_written_is_read_as_the_same(layout: ClusterLayout) -> None:
    assert read(write(layout)) == layout
    made = Cluster.parse(write(layout))
    assert Cluster.parse(str(made)) == made
    assert len(made.hosts) == layout.hosts * (layout.sites or 1) + layout.apart
    assert made.workers == layout.workers * (len(made.hosts) - layout.apart)
    apart = {host.name for host in made.hosts if not host.workers}
    assert len(apart) == layout.apart
    assert not apart or {*made.hosts_for_servers} == apart


@given(BANDWIDTHS, LATENCIES)
def test_quantities_are_written_exactly(rate: float, time: float) -> None:
    assert bandwidth(bandwidth_text(rate)) == rate
    assert seconds(seconds_text(time)) == time


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (EXAMPLE, ClusterLayout(1, 8, 2, Link(125e6, 1e-4), Link(12.5e6, 0.04))),
        ("4 workers", ClusterLayout(4)),
        ("1 worker", ClusterLayout(1)),
        ("4 workers, 1gbit", ClusterLayout(1, 4, None, Link(125e6, 1e-4))),
        ("2 hosts of 4 workers, 1gbit and 1ms", ClusterLayout(4, 2, None, Link(125e6, 1e-3))),
        ("2 sites of 4 workers, 1gbit between", ClusterLayout(4, 1, 2, None, Link(125e6, 1e-4))),
        (
            "2 Sites  of 2 hosts of 4 workers , 10gbit and 50us within, 1gbit between",
            ClusterLayout(4, 2, 2, Link(1.25e9, seconds("50us")), Link(125e6, 1e-4)),
        ),
        ("4 workers, 2 cores per host", ClusterLayout(4, cores=2)),
        ("4 workers, 16GB of memory", ClusterLayout(4, memory=16 * 10**9)),
        (
            "2 workers, 1gbit, servers at host 1",
            ClusterLayout(1, 2, None, Link(125e6, 1e-4), servers=(1,)),
        ),
        (
            "4 workers, 1gbit, servers at hosts 3 and 1",
            ClusterLayout(1, 4, None, Link(125e6, 1e-4), servers=(3, 1)),
        ),
        ("2 workers, 1gbit, servers in turn", ClusterLayout(1, 2, None, Link(125e6, 1e-4))),
        ("2 workers, 1gbit, servers apart", ClusterLayout(1, 2, None, Link(125e6, 1e-4), apart=1)),
        (
            "1 host of 4 workers, 1gbit, servers on 2 hosts apart",
            ClusterLayout(4, 1, None, Link(125e6, 1e-4), apart=2),
        ),
    ],
)
def test_texts(text: str, expected: ClusterLayout) -> None:
    assert read(text) == expected
    assert read(write(expected)) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' is not a number of workers"),
        ("many workers", "'many workers' is not a number of workers"),
        ("4 hosts", "'4 hosts' is not a number of workers"),
        ("2 hosts of 2 sites of 4 workers", "is not a number of workers, or of sites or hosts"),
        ("4 workers, fast", "'fast' is not a link: expected a bandwidth such as '100mbit'"),
        ("4 workers, 1gbit and soon", "expected a time such as '0.5ms'"),
        ("4 workers, 1gbit or so", "'1gbit or so' is neither a link, nor 'N cores', nor"),
        ("4 workers, 1gbit, 2gbit", "there is more than one link"),
        ("4 workers, 2 cores, 3 cores", "there is more than one number of cores"),
        ("4 workers, 1gbit within", "there are no sites, so write the link without 'within'"),
        ("2 hosts of 2 workers", "its hosts have no link to each other: add ', 1gbit'"),
        ("1 host of 2 workers, 1gbit", "one host has no link: leave out the bandwidth"),
        ("2 sites of 4 workers, 1gbit", "'1gbit' does not say where: add 'within' or 'between'"),
        ("2 sites of 4 workers, 1gbit within", "its sites have no link to each other"),
        ("2 sites of 2 hosts of 2 workers, 1gbit between", "add ', 1gbit within'"),
        ("1 site of 4 workers, 1gbit between", "a single site has no link to others"),
        ("0 workers", "at least 1 of everything, got 0"),
        ("4 workers, 0 cores", "at least 1 of everything, got 0"),
        ("1000 sites of 1000 workers, 1gbit between", "at most 100,000 workers"),
        ("4 workers, 1gbit, servers at host 4", "no host 4 for the servers: its hosts are 0 to 3"),
        ("4 workers, 1gbit, servers on 0 hosts apart", "servers apart need at least 1 host, got 0"),
        ("4 workers, servers apart", "its hosts have no link to each other: add ', 1gbit'"),
        ("4 workers, servers in turn, servers apart", "there is more than one place of servers"),
        ("4 workers, servers at site 0", "no site 0 for the servers: there are no sites"),
        (f"{EXAMPLE}, servers at site 2", "no site 2 for the servers: its sites are 0 to 1"),
    ],
)
def test_mistakes_are_named_and_a_right_text_is_shown(text: str, why: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the message is compared below
        Cluster.parse(text)
    assert why in str(raised.value)
    assert str(raised.value).startswith(f"{text!r} is not a cluster: ")
    assert str(raised.value).endswith(f"A cluster is written as in {EXAMPLE!r}")


def test_a_cluster_without_a_text_is_shown_as_a_value() -> None:
    made = Cluster(
        Cluster.parse("2 workers, 1gbit").hosts, Link(1.0), (("host-0", "host-1", Link(2.0)),)
    )
    assert made.text == ""
    assert str(made) == repr(made)
    assert Cluster.parse(made) is made
