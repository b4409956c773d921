import io
import socket

import pytest

from manyhands.data import download as module
from manyhands.data.download import download


def test_writes_what_the_address_holds(site):
    site.files["a"] = content = bytes(range(256)) * 10_000
    file = io.BytesIO()
    download(site.url("a"), file, len(content))
    assert file.getvalue() == content


def test_stops_at_the_size_that_was_expected(site):
    site.files["a"] = bytes(50 << 20)
    file = io.BytesIO()
    with pytest.raises(OSError, match=r"expected 1,000 bytes, got more"):
        download(site.url("a"), file, 1_000)
    assert len(file.getvalue()) <= 1_000


def test_refuses_a_file_that_is_cut_short(site):
    site.files["a"] = bytes(900)
    with pytest.raises(OSError, match="expected 1,000 bytes, got 900"):
        download(site.url("a"), io.BytesIO(), 1_000)


def test_says_what_the_server_answered(site):
    with pytest.raises(OSError, match="answered 404 Not Found"):
        download(site.url("absent"), io.BytesIO(), 1)


def test_a_silent_server_is_given_up(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(module, "TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/a"
        with pytest.raises(OSError, match="timed out"):
            download(url, io.BytesIO(), 1)


def test_a_server_of_another_kind_is_reported(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    import threading

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"220 mail.example ready\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/a"
            with pytest.raises(OSError, match="invalid HTTP response"):
                download(url, io.BytesIO(), 1)
        finally:
            thread.join()
