"""Deterministic simulation: every protocol under thousands of schedules, each a seed.

A seed that breaks a law is printed with the command that replays it. `MANYHANDS_SEED` replays one;
`MANYHANDS_SEEDS` says how many each variant gets. The slow battery has 20,000 for each.
"""

from __future__ import annotations

import os

import pytest
from simulated_variants import BY_NAME, VARIANTS, Variant

from manyhands.protocols import ALL

EVERYDAY = 60
FEWER = {
    "push_sum_straggler": 25,
    "broadcast": 25,
    "diloco_streaming": 25,
    "diloco_quorum": 25,
    **{name: 12 for name in BY_NAME if name.endswith("_coded")},
}
"""Of a variant whose seeds take longer, or that is another one under codecs."""
BATTERY = 20_000
REPLAY = "tests/simulation/test_seeds.py::test_no_law_is_broken_under_any_of_these_seeds"
AGAIN = 25
"""Every so many seeds one is run twice."""
FOUND = {
    "synchronous": [1, 11, 15, 17, 44],
    "softsync": [0, 5, 7, 51, 100, 1829, 2136, 3939],
    "softsync_drop": [0, 2, 6, 7, 26],
    "ssp": [1, 4],
    "asynchronous": [0, 1003],
    "compensated": [0, 2, 7, 22],
    "averaging": [2, 7, 12, 32, 1003],
    "local_sgd": [4, 19, 25, 33, 75],
    "diloco": [1003],
    "diloco_quorum": [884, 3174, 3202, 3364, 3389, 8729, 13588, 30004],
    "ensemble": [2324],
    "broadcast": [1133],
    "push_sum": [1053, 1133, 15450, 18709, 18944, 19747],
    "push_sum_coded": [121],
    "easgd_parallel": [23, 29, 42, 119],
    "easgd_round_robin": [1, 33, 81, 89, 103],
    "gossip_lockstep": [2, 15, 22, 46, 71, 130, 180, 192, 686, 867, 5787, 19650],
    "gossip_asynchronous": [7, 41, 1951],
    "hierarchical": [255, 282, 405, 1560],
    "hierarchical_sums": [28, 130, 156, 2454],
}
"""Seeds that once broke a law."""

every = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)


def simulate(variant: Variant, seed: int, *, twice: bool = False) -> None:
    """Run a seed; if it breaks a law, say how to run it again."""
    try:
        first = variant.run(seed)
        assert not twice or first == variant.run(seed), "the same seed gave another run"
    except Exception as error:  # noqa: BLE001 - whatever it is, the seed is named
        pytest.fail(
            f"{variant.name}, seed {seed}: {type(error).__name__}: {error}\n"
            f"  {variant.case(seed)}\n"
            f"  MANYHANDS_SEED={seed} python -m pytest '{REPLAY}[{variant.name}]'",
            pytrace=bool(os.environ.get("MANYHANDS_SEED")),
        )


def simulate_all(variant: Variant, first: int, last: int) -> None:
    only = os.environ.get("MANYHANDS_SEED")
    if only is not None:
        first, last = int(only), int(only) + 1
    for seed in range(first, last):
        simulate(variant, seed, twice=seed % AGAIN == 0 or only is not None)


def everyday(variant: Variant) -> int:
    return int(os.environ.get("MANYHANDS_SEEDS", FEWER.get(variant.name, EVERYDAY)))


def test_every_protocol_is_simulated() -> None:
    drawn = {type(variant.case(1).protocol) for variant in VARIANTS}
    assert drawn == set(ALL)


@pytest.mark.timeout(900)
@every
def test_no_law_is_broken_under_any_of_these_seeds(variant: Variant) -> None:
    simulate_all(variant, 0, everyday(variant))


@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for name, seeds in FOUND.items() for seed in seeds]
)
def test_what_was_found_stays_mended(name: str, seed: int) -> None:
    BY_NAME[name].watch(BY_NAME[name].plain(seed))
    simulate(BY_NAME[name], seed, twice=True)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(10))
@every
def test_the_battery_of_seeds(variant: Variant, part: int) -> None:
    size = BATTERY // 10
    simulate_all(variant, part * size, (part + 1) * size)
