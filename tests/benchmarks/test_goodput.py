"""The benchmark of goodput under faults, shorter than it is meant to be."""

import pytest

from benchmarks import goodput


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_virtual_workers_keep_nine_tenths(tmp_path):
    measured = goodput.virtual(600.0, 15.0, seed=3, workers=1000, folder=tmp_path)
    assert measured.faults >= 30
    goodput.check(measured)


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.timeout(600)
def test_real_workers_keep_nine_tenths_for_two_minutes(tmp_path):
    measured = goodput.live(120.0, 15.0, seed=3, folder=tmp_path)
    assert measured.faults >= 6
    goodput.check(measured)
