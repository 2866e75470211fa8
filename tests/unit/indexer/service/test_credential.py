"""Who is let in: a file that is there counts, also an empty one, and one that was named must be there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from indexer.service.credential import (
    CallerRole,
    CredentialError,
    Credentials,
    load_credentials,
    with_credential,
)
from kvledger.command.serve import make_config
from kvledger.settings import Settings
from tests.support.lookup_http import ASKED, browser, kind, service


def test_credentials_files_are_read_and_refused_by_name(tmp_path: Any) -> None:
    path = tmp_path / "credentials.json"
    assert not load_credentials(path).configured
    text = with_credential("", name="r", token="t1", role=CallerRole.ROUTER, domains=("default",))
    text = with_credential(text, name="acme", token="t2", role=CallerRole.TENANT, tenant="acme")
    text = with_credential(text, name="r", token="t3", role=CallerRole.ROUTER, domains=("default",))
    path.write_text(text)
    known = load_credentials(path)
    assert known.identify("Bearer t1") is None
    assert known.identify(None) is None
    found = known.identify("bearer t3")
    assert found is not None
    assert (found.name, found.role, found.domains) == ("r", CallerRole.ROUTER, frozenset({"default"}))
    with pytest.raises(CredentialError):
        with_credential(text, name="x", token="t", role=CallerRole.TENANT)
    path.write_text("{")
    with pytest.raises(CredentialError):
        load_credentials(path)


@pytest.mark.parametrize("text", ["", " \n", '{"credentials": []}'])
async def test_a_file_without_entries_lets_nobody_in(tmp_path: Path, text: str) -> None:
    path = tmp_path / "credentials.json"
    path.write_text(text)
    known = load_credentials(path)
    assert known.configured
    async with browser(service(credentials=known)) as http:
        for headers in ({}, {"Authorization": "Bearer anything"}):
            response = await http.post("/v1/lookup", json=ASKED, headers=headers)
            assert (response.status_code, kind(response)) == (401, "unauthenticated")
            assert (await http.get("/v1/workers", headers=headers)).status_code == 401


def test_a_file_that_was_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(CredentialError, match=r"nowhere\.json"):
        load_credentials(tmp_path / "nowhere.json", required=True)
    assert not load_credentials(tmp_path / "nowhere.json").configured
    (tmp_path / "link.json").symlink_to(tmp_path / "nowhere.json")
    with pytest.raises(CredentialError):
        load_credentials(tmp_path / "link.json")
    with pytest.raises(CredentialError):
        load_credentials(tmp_path)
    assert not Credentials().configured


def test_serve_refuses_to_start_without_the_file_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "keyring.json").write_text('{"domains": {}}')
    os.chmod(tmp_path / "keyring.json", 0o600)
    settings = Settings(home=tmp_path)
    given = {"host": "127.0.0.1", "port": 0, "replica": None}
    assert not make_config(settings, credentials=None, **given).credentials.configured  # type: ignore[arg-type]
    with pytest.raises(CredentialError):
        make_config(settings, credentials=tmp_path / "nowhere.json", **given)  # type: ignore[arg-type]
