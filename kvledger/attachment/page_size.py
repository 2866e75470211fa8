"""How many tokens SGLang names by one hash, from its own server: its first prompt may fill no page, and would be taken
for one.

`/server_info` says it under `kv_events.block_size` (page size times context-parallel size; read in SGLang 0.5.23);
older servers say `page_size` and `dcp_size` beside each other.
"""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from events.hooks.engine_http import EngineHttp, json_of

ASK_S = 5.0
ROUTES = ("/server_info", "/get_server_info")


async def page_size(http: EngineHttp, timeout_s: float = ASK_S) -> int | None:
    """Tokens of a full block; None where the server doesn't answer or doesn't say."""
    for route in ROUTES:
        try:
            answer = await http.ask("GET", route, None, timeout_s)
            document = json_of(answer) if answer.status_code == 200 else None
        except (httpx.HTTPError, TimeoutError, ValueError):
            continue
        found = _told(document)
        if found is not None:
            return found
    return None


def _told(document: object) -> int | None:
    if not isinstance(document, Mapping):
        return None
    events = document.get("kv_events")
    if isinstance(events, Mapping):
        return _positive(events.get("block_size"))
    page = _positive(document.get("page_size"))
    return None if page is None else page * (_positive(document.get("dcp_size")) or 1)


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 20 else None
