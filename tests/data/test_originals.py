import hashlib
import io
import tarfile
from dataclasses import replace

import pytest

from manyhands.data.originals import Original, read

CONTENT = b"as its author published it" * 1_000


def original(name="a.bin", content=CONTENT, **fields) -> Original:
    return Original(
        name=name,
        folders=("things", "elsewhere"),
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        published=("md5", hashlib.md5(content, usedforsecurity=False).hexdigest()),
        **fields,
    )


def put(folder, name, content=CONTENT):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def files(folder) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def data(monkeypatch, tmp_path, cache):
    """A data folder of the user's, beside an empty cache."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("MANYHANDS_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.mark.parametrize("folder", ["things", "elsewhere"])
def test_is_found_in_any_of_its_folders_of_the_users(data, cache, folder):
    put(data / folder, "a.bin")
    assert read([original()]) == [CONTENT]
    assert not cache.exists()


def test_is_found_in_a_folder_that_is_read_only(data, cache):
    put(data / "things", "a.bin")
    (data / "things").chmod(0o555)
    data.chmod(0o555)
    try:
        assert read([original()]) == [CONTENT]
    finally:
        data.chmod(0o755)
        (data / "things").chmod(0o755)


def test_is_found_in_the_cache_next(data, cache):
    put(cache / "things", "a.bin")
    assert read([original()]) == [CONTENT]


def test_a_data_folder_that_is_not_there_is_named(monkeypatch, cache):
    monkeypatch.setenv("MANYHANDS_DATA", "/nowhere/at/all")
    with pytest.raises(FileNotFoundError, match="MANYHANDS_DATA names '/nowhere/at/all'"):
        read([original()])


def test_a_file_of_another_size_is_refused(data):
    put(data / "things", "a.bin", CONTENT + b"!")
    with pytest.raises(ValueError, match=r"a\.bin is not the original: .* got 26,001"):
        read([original()])


def test_a_file_with_one_flipped_bit_is_refused(data):
    put(data / "things", "a.bin", bytes([CONTENT[0] ^ 1]) + CONTENT[1:])
    with pytest.raises(ValueError, match=r"a\.bin is not the original: expected sha256"):
        read([original()])


def test_the_published_checksum_is_compared_too(data):
    put(data / "things", "a.bin")
    with pytest.raises(ValueError, match="expected md5"):
        read([replace(original(), published=("md5", "0" * 32))])


def test_is_downloaded_into_the_cache_once(cache, site):
    site.files["a"] = CONTENT
    wanted = original(mirrors=(site.url("a"),))
    assert read([wanted]) == [CONTENT]
    assert read([wanted]) == [CONTENT]
    assert site.requests == ["a"]
    assert files(cache) == ["things/a.bin"]


def test_the_next_mirror_is_asked_when_one_fails(cache, site, nobody):
    site.files["bad"] = bytes([CONTENT[0] ^ 1]) + CONTENT[1:]
    site.files["good"] = CONTENT
    urls = (f"{nobody}/a", site.url("absent"), site.url("bad"), site.url("good"))
    assert read([original(mirrors=urls)]) == [CONTENT]
    assert files(cache) == ["things/a.bin"]


@pytest.mark.parametrize(
    "served",
    [bytes([CONTENT[0] ^ 1]) + CONTENT[1:], CONTENT[:-1], CONTENT + b"!", b""],
    ids=["corrupted", "short", "long", "empty"],
)
def test_a_wrong_download_is_refused_and_leaves_nothing_behind(cache, site, served):
    site.files["a"] = served
    with pytest.raises(FileNotFoundError, match="could not be downloaded"):
        read([original(mirrors=(site.url("a"),))])
    assert files(cache) == []


def test_without_a_network_the_error_says_what_to_copy_where(cache, nobody):
    wanted = [original(name, mirrors=(f"{nobody}/{name}",)) for name in ("a.bin", "b.bin")]
    with pytest.raises(FileNotFoundError) as caught:
        read(wanted)
    message = str(caught.value)
    assert f"{nobody}/a.bin: " in message
    assert "copy a.bin, b.bin to a folder 'things' and set MANYHANDS_DATA" in message


def packed(**contents: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"../../escape/{name}.bin")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def archived(content: bytes, **fields) -> Original:
    return replace(original("all.tar.gz", content, **fields), folders=("things", "."))


def test_an_archive_is_downloaded_once_and_never_unpacked(cache, site, tmp_path):
    contents = {name: name.encode() * 500 for name in ("a", "b", "c")}
    site.files["all"] = tar = packed(**contents)
    archive = archived(tar, mirrors=(site.url("all"),))
    wanted = [original(f"{n}.bin", contents[n], archive=archive) for n in ("c", "a")]
    assert read(wanted) == [contents["c"], contents["a"]]
    assert site.requests == ["all"]
    # The members' names point out of the folder; nothing was written there, or anywhere.
    assert files(tmp_path) == ["cache/things/all.tar.gz"]


def test_an_archive_in_the_users_folder_is_read_there(data, cache):
    tar = packed(a=CONTENT)
    put(data, "all.tar.gz", tar)
    assert read([original(archive=archived(tar))]) == [CONTENT]
    assert not cache.exists()


def test_a_file_beside_its_archive_needs_no_archive(data):
    put(data / "things", "a.bin")
    assert read([original(archive=archived(b"not a tar file"))]) == [CONTENT]


@pytest.mark.parametrize(
    ("tar", "complaint"),
    [
        (packed(a=CONTENT)[:-40], "cannot be read"),
        (b"not a tar file", "cannot be read"),
        (packed(b=CONTENT), r"has no a\.bin"),
        (packed(a=CONTENT[::-1]), "is not the original"),
        (packed(a=CONTENT + b"!"), "is not the original"),
    ],
    ids=["cut short", "garbage", "absent member", "wrong member", "long member"],
)
def test_a_bad_archive_in_the_users_folder_is_refused(data, tar, complaint):
    put(data, "all.tar.gz", tar)
    with pytest.raises(ValueError, match=complaint):
        read([original(archive=archived(tar))])
