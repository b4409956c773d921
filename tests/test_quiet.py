"""A timed test fails where the cores are ours, and is skipped with figures where they are not."""

import pytest

import quiet

pytest_plugins = ["pytester"]

CONFTEST = """
import quiet

def pytest_runtest_protocol(item, nextitem):
    quiet.run(item, nextitem)
    return True
"""


@pytest.fixture
def outcomes(pytester, monkeypatch):
    """Run a test that fails so many times while others take so much of the cores."""

    def run(failures: int, taken: float) -> tuple[dict[str, int], str]:
        monkeypatch.setattr(quiet, "_REPEAT_AFTER", 0.0)
        monkeypatch.setattr(quiet, "others", lambda: taken)
        monkeypatch.setattr(quiet, "stolen", lambda: (0.0, 1.0))
        pytester.makeconftest(CONFTEST)
        pytester.makepyfile(
            f"""
            calls = []

            def test_it(tmp_path):
                calls.append(tmp_path)
                assert len(set(calls)) == len(calls)
                assert len(calls) > {failures}
            """
        )
        result = pytester.runpytest_inprocess("-rs", "-p", "no:cacheprovider")
        return result.parseoutcomes(), result.stdout.str()

    return run


def test_a_failure_on_cores_that_are_ours_is_a_failure(outcomes) -> None:
    assert outcomes(failures=1, taken=0.01)[0] == {"failed": 1}


def test_a_failure_on_busy_cores_is_run_again(outcomes) -> None:
    counts, text = outcomes(failures=2, taken=0.4)
    assert counts == {"passed": 1}
    assert "others took 40% of the cores (attempt 2 of 3); it is run again" in text


def test_cores_that_are_never_ours_are_the_reason_of_a_skip(outcomes) -> None:
    counts, text = outcomes(failures=3, taken=0.4)
    assert counts == {"skipped": 1}
    assert "others took 40% of the cores (attempt 3 of 3)" in text


def test_what_others_take_is_a_share() -> None:
    assert 0 <= quiet.others(0.2) < 1
    before, after = quiet.stolen(), quiet.stolen()
    assert before[0] <= after[0]
    assert before[1] <= after[1]
