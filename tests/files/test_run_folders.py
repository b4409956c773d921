"""Folders of runs: whatever starts together, each run has its own."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from manyhands.files.run_folders import check_free, claim, new_folder, release


def test_processes_that_choose_one_name_together_get_different_folders(tmp_path):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        made = pool.map(new_folder, [tmp_path / "runs" / "now"] * 40, chunksize=1)
    assert len({*made}) == 40
    assert all(folder.is_dir() for folder in made)


def test_only_one_of_those_who_claim_a_folder_has_it(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(claim, [tmp_path / "out"] * 32))
    assert sum(got) == 1
    with pytest.raises(ValueError, match="already holds a run"):
        check_free(tmp_path / "out")


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "out").write_text("mine")
    for refuse in (claim, check_free):
        with pytest.raises(ValueError, match="out is a file; choose a folder"):
            refuse(tmp_path / "out")
    with pytest.raises(ValueError, match=r"cannot be created .*--output"):
        new_folder(tmp_path / "out" / "run")


def test_a_folder_is_given_back_only_while_it_is_empty(tmp_path):
    empty, full = tmp_path / "empty", tmp_path / "full"
    for folder in (empty, full):
        claim(folder)
    (full / "trace" / "worker-0.jsonl").write_text("{}\n")
    release(empty)
    release(full)
    assert not empty.exists()
    assert Path(full / "trace" / "worker-0.jsonl").exists()
