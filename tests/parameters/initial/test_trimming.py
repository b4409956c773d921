"""Memory that is freed: kept by workers, unless the user has decided on that."""

import pytest

FREED = """
    import resource, sys
    from manyhands.parameters.initial.trimming import keep_freed
    import torch

    torch.set_num_threads(1)

    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    def steps(count):
        # Blocks of 16 MB, freed together, as gradients are.
        for _ in range(count):
            held = [torch.ones(4 << 20) for _ in range(8)]
            del held

    keep_freed()
    steps(3)
    before = faults()
    steps(5)
    print(faults() - before)
"""


@pytest.mark.parametrize("decided", [False, True])
def test_pages_are_used_again_without_the_system(run_script, decided):
    environment = {"MALLOC_TRIM_THRESHOLD_": "131072"} if decided else {}
    script = run_script(FREED, **environment)
    assert script.finish(60) == 0, script.text()
    of_the_system = int(script.text()) / 5
    pages = 8 * (16 << 20) / 4096
    assert (of_the_system > 0.5 * pages) == decided
