"""What a worker refuses is said in words, without frames of ours."""

from support import ROOT

SCRIPT = """
    import sys
    sys.path.insert(0, sys.argv[1])
    import manyhands as mh
    from option_effects import a_text_job

    job = a_text_job()

    if __name__ == "__main__":
        mh.train(job, 'context(before="block2")', workers=2, output="run")
"""


def test_a_refusal_that_a_worker_finds_is_told_without_frames(run_script) -> None:
    started = run_script(SCRIPT, str(ROOT / "tests"))
    assert started.finish(90) == 1, started.text()
    text = started.text()
    assert "GPT gives different outputs if its sequences are divided. Positions must" in text
    assert "sequence_shard.py" not in text
    assert "live/worker" not in text
