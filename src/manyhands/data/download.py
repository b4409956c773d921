"""One file from the network, of a size that is known beforehand."""

from __future__ import annotations

from http.client import HTTPException
from typing import IO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

TIMEOUT = 30.0
"""Seconds that a server may be silent."""

_CHUNK = 1 << 20


def download(url: str, file: IO[bytes], size: int) -> None:
    """Write what `url` holds, which must be `size` bytes, to `file`.

    Never writes more than `size` bytes, whatever the server sends. Says nothing about what the
    bytes are: the caller checks that. Raises `OSError` for whatever went wrong.
    """
    # S310 asks which schemes may occur: the addresses are this package's own constants, and what
    # they give is compared with a SHA-256 before it is used.
    request = Request(url, headers={"User-Agent": "manyhands"})  # noqa: S310
    received = 0
    try:
        with urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310
            while chunk := response.read(_CHUNK):
                received += len(chunk)
                if received > size:
                    raise OSError(f"gave more than the {size:,} bytes that the file has")
                file.write(chunk)
    except HTTPError as error:
        with error:
            raise OSError(f"answered {error.code} {error.reason}") from None
    except HTTPException as error:
        raise OSError(f"did not speak HTTP as expected ({error!r})") from error
    if received < size:
        raise OSError(f"gave only {received:,} of {size:,} bytes")
