"""A binary lookup's query string: whatever stands in it, the answer is a refusal and no fault of ours."""

from __future__ import annotations

import struct

import pytest

from tests.support.lookup_http import TOKENS, browser, kind, service

BODY = struct.pack(f"<{len(TOKENS)}I", *TOKENS)
BASE = "profile=tiny&domain=default&max_staleness_ms=1000"


@pytest.mark.parametrize(
    "more",
    [
        "min_coverage=%C2%B2",
        "min_coverage=%D9%A3%C2%B2",
        "min_coverage=-1",
        "min_coverage=1.5",
        "min_coverage=nan",
        "min_coverage=inf",
        "min_coverage=" + "9" * 5_000 + ".",
        "min_coverage=",
        "&".join(f"f{n}=1" for n in range(100)),
        "limit=%C2%B2",
        "wait_ms=%C2%B2",
        "wait_ms=1e999",
        "on_stale=%FF%FE",
        "min_token=%00",
    ],
)
async def test_a_malformed_field_is_refused(more: str) -> None:
    async with browser(service()) as http:
        response = await http.post(
            f"/v1/lookup?{BASE}&{more}", content=BODY, headers={"Content-Type": "application/octet-stream"}
        )
    assert (response.status_code, kind(response)) == (400, "malformed"), response.text


@pytest.mark.parametrize("share", ["1", "0", "0.5", "1.0", "1e0"])
async def test_numbers_of_streams_and_shares_are_read(share: str) -> None:
    async with browser(service()) as http:
        response = await http.post(
            f"/v1/lookup?{BASE}&min_coverage={share}",
            content=BODY,
            headers={"Content-Type": "application/octet-stream"},
        )
    assert response.status_code == 200, response.text
