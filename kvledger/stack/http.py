"""Whether an HTTP address says that it is ready."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

_TIMEOUT_S = 3.0


async def answers(url: str) -> bool:
    """Whether a GET of this plain-http URL is answered with 200 now; False on any failure to reach it."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                request = (
                    f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
                )
                writer.write(request.encode())
                await writer.drain()
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return status.split()[1:2] == [b"200"]
