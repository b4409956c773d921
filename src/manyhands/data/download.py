"""Download of one file of a known size."""

from __future__ import annotations

from http.client import HTTPException
from typing import IO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

TIMEOUT = 30.0
"""Timeout in seconds."""

_CHUNK = 1 << 20


def download(url: str, file: IO[bytes], size: int) -> None:
    """Download `url`, which must have `size` bytes, to `file`.

    Never writes more than `size` bytes, whatever the server sends. The caller verifies the content.
    Raises `OSError` for all failures.
    """
    # S310 asks which schemes may occur: the addresses are constants of this package, and the
    # content is compared with a SHA-256 before it is used.
    request = Request(url, headers={"User-Agent": "manyhands"})  # noqa: S310
    received = 0
    try:
        with urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310
            while chunk := response.read(_CHUNK):
                received += len(chunk)
                if received > size:
                    raise OSError(f"expected {size:,} bytes, got more")
                file.write(chunk)
    except HTTPError as error:
        with error:
            raise OSError(f"answered {error.code} {error.reason}") from None
    except HTTPException as error:
        raise OSError(f"invalid HTTP response ({error!r})") from error
    if received < size:
        raise OSError(f"expected {size:,} bytes, got {received:,}")
