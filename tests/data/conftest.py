"""Where the real data is, a cache of the tests' own, and a server to download from."""

import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _given() -> Path | None:
    named = os.environ.get("MANYHANDS_DATA")
    shared = ROOT.parent / "shared" / "data"
    if named:
        return Path(named).expanduser()
    return shared if shared.is_dir() else None


# Read once, before any test changes the environment.
GIVEN = _given()


@pytest.fixture(scope="session")
def originals() -> Path:
    """The folder of real originals."""
    if GIVEN is None:
        pytest.skip(
            f"no real data: MANYHANDS_DATA is not set and {ROOT.parent}/shared/data is absent"
        )
    return GIVEN


@pytest.fixture(scope="session")
def cifar_originals() -> Path:
    """A folder that has CIFAR-10 in it."""
    for root in (GIVEN, ROOT / ".data"):
        for folder in ("cifar10", "cifar-10-batches-bin"):
            if root is not None and (root / folder / "test_batch.bin").is_file():
                return root
    pytest.skip("no CIFAR-10: neither MANYHANDS_DATA nor .data has it (data/make-cifar10 makes it)")


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def real(monkeypatch, originals, session_cache) -> Path:
    """The real data, decoded once for all tests that only look at it."""
    monkeypatch.setenv("MANYHANDS_DATA", str(originals))
    monkeypatch.setenv("MANYHANDS_CACHE", str(session_cache))
    return originals


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    """An empty cache, and no data folder."""
    monkeypatch.delenv("MANYHANDS_DATA", raising=False)
    monkeypatch.setenv("MANYHANDS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Site:
    """A web server on this machine: what it holds, and what it was asked for."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"


@pytest.fixture
def site(monkeypatch):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.removeprefix("/")
            pages.requests.append(name)
            if name not in pages.files:
                self.send_error(404)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(pages.files[name])

        def log_message(self, *arguments):
            """Tests are silent."""

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    pages = Site(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield pages
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def nobody(monkeypatch) -> str:
    """An address at which nobody answers."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"
