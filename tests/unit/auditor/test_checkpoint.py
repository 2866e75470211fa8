"""Notes, checkpoints and cosignatures against public vectors; whatever isn't one is an error, never half a note."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditor.checkpoint import (
    KeyKind,
    Note,
    NoteError,
    NoteKey,
    TreeHead,
    cosign,
    cosigned_at,
    parse_head,
    parse_key,
    parse_note,
    parse_signatures,
    sign,
)
from events.signing import Signer

VECTORS: dict[str, Any] = json.loads(Path("tests/golden/tlog/checkpoints.json").read_text())
NOTE, COSIGNED = VECTORS["note"], VECTORS["cosigned"]
PETER = parse_key(NOTE["vkey"])
WHOLE = (NOTE["text"] + "\n" + NOTE["signature"]).encode()


def test_a_note_is_signed_to_the_byte_as_the_public_one() -> None:
    seed = base64.b64decode(NOTE["seed_packed"])
    assert seed[0] == KeyKind.ED25519
    signer = Signer.from_seed(seed[1:])
    assert signer.public_key == PETER.public_key
    assert Note(NOTE["text"], (sign(NOTE["text"], PETER, signer),)).to_bytes() == WHOLE


def test_public_notes_hold_under_their_keys_and_no_other() -> None:
    enoch = parse_key(NOTE["second_vkey"])
    both = parse_note(WHOLE + NOTE["second_signature"].encode())
    assert both.signed_by(PETER)
    assert both.signed_by(enoch)
    assert not parse_note(WHOLE).signed_by(enoch)
    assert not parse_note(WHOLE.replace(b"problem is", b"problem Is")).signed_by(PETER)
    assert not parse_note(WHOLE).signed_by(NoteKey("PeterNeumann", enoch.public_key))


def test_a_real_checkpoint_holds_under_its_logs_and_a_witnesss_key() -> None:
    raw = COSIGNED["checkpoint"].encode()
    note = parse_note(raw)
    assert note.to_bytes() == raw
    assert parse_head(note.text).size == COSIGNED["size"]
    assert parse_head(note.text).text() == note.text
    for text in COSIGNED["vkeys"]:
        key = parse_key(text)
        assert str(key) == text
        assert note.signed_by(key)
        edited = Note(note.text.replace("1432088532", "1432088533"), note.signatures)
        assert not edited.signed_by(key)
    witness = parse_key(COSIGNED["vkeys"][1])
    assert witness.kind is KeyKind.COSIGNATURE
    given = [cosigned_at(one) for one in note.signatures if one.name == witness.name]
    assert given == [COSIGNED["cosigned_at_s"]]


def test_times_of_public_cosignatures() -> None:
    known = VECTORS["cosignature_time"]
    (one,) = parse_signatures(f"\N{EM DASH} w {known['signature']}\n")
    assert cosigned_at(one) == known["given_s"]
    spec = parse_note(VECTORS["specification"]["checkpoint"].encode())
    assert [cosigned_at(one) for one in spec.signatures] == [None, VECTORS["specification"]["cosigned_at_s"]]
    assert parse_head(spec.text).size == 20852163


@pytest.mark.parametrize("name", NOTE["bad_vkeys"])
def test_public_bad_keys_are_refused(name: str) -> None:
    with pytest.raises(NoteError):
        parse_key(name)


def test_no_part_and_no_edit_of_a_key_is_a_key() -> None:
    text = NOTE["vkey"]
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            if (start, end) != (0, len(text)):
                with pytest.raises(NoteError):
                    parse_key(text[start:end])
    for at in range(len(text)):
        with pytest.raises(NoteError):
            parse_key(text[:at] + chr(ord(text[at]) + 1) + text[at + 1 :])


LINE = NOTE["signature"]


@pytest.mark.parametrize(
    "raw",
    [
        NOTE["text"],
        NOTE["text"] + "\n",
        NOTE["text"] + "\n" + LINE[:-1],
        "\x01" + NOTE["text"] + "\n" + LINE,
        NOTE["text"] + "\n" + LINE.replace("PeterNeumann", "Bad Name"),
        NOTE["text"] + "\n" + LINE.replace("PeterNeumann", "Bad\N{NO-BREAK SPACE}Name"),
        NOTE["text"] + "\n" + LINE.replace("PeterNeumann", "Bad+Name"),
        NOTE["text"] + "\n" + LINE.replace("PeterNeumann ", ""),
        NOTE["text"] + "\n" + LINE + "Unexpected line.\n",
        NOTE["text"] + "\n" + LINE.replace("\N{EM DASH}", "-"),
        NOTE["text"] + "\n" + LINE.replace("nAM=", "nAN="),
        NOTE["text"] + "\n" + "\N{EM DASH} PeterNeumann x08gow==\n",
        NOTE["text"] + "\n" + LINE * 65,
        "\n" + LINE,
        "\n\n" + LINE.replace("\n", ""),
        "x" * 70_000 + "\n\n" + LINE,
        "",
    ],
)
def test_what_is_no_note_is_an_error(raw: str) -> None:
    with pytest.raises(NoteError):
        parse_note(raw.encode())


def test_bytes_that_are_no_text_are_an_error() -> None:
    with pytest.raises(NoteError):
        parse_note(b"\xff" + WHOLE)


def test_text_may_hold_empty_lines() -> None:
    note = parse_note(("a\n\nb\n\n" + LINE).encode())
    assert note.text == "a\n\nb\n"


@pytest.mark.parametrize(
    "text",
    [
        "log\n1\n",
        "log\n01\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "log\n-1\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "log\n+1\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "log\n9223372036854775808\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "log\n\N{ARABIC-INDIC DIGIT ONE}\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "log\n1\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2J=\n",
        "log\n1\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxqw==\n",
        "log\n1\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=",
        "log\n1\n\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "\n1\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "",
    ],
)
def test_what_is_no_checkpoint_is_an_error(text: str) -> None:
    with pytest.raises(NoteError):
        parse_head(text)


WITNESS = Signer.from_seed(b"w" * 32)
WITNESS_KEY = NoteKey("w.example/1", WITNESS.public_key, KeyKind.COSIGNATURE)
HEAD = TreeHead("example.com/log", 7, b"r" * 32)


def test_a_cosignature_binds_text_and_time() -> None:
    given = cosign(HEAD.text(), WITNESS_KEY, WITNESS, 1_700_000_000)
    note = parse_note(Note(HEAD.text(), (given,)).to_bytes())
    assert note.signed_by(WITNESS_KEY)
    assert cosigned_at(note.signatures[0]) == 1_700_000_000
    later = type(given)(given.name, given.id, (1_700_000_001).to_bytes(8, "big") + given.body[8:])
    assert not Note(HEAD.text(), (later,)).signed_by(WITNESS_KEY)
    assert not Note(TreeHead("example.com/log", 8, b"r" * 32).text(), (given,)).signed_by(WITNESS_KEY)
    plain = NoteKey(WITNESS_KEY.name, WITNESS.public_key)
    assert not Note(HEAD.text(), (given,)).signed_by(plain)


def test_a_key_that_signed_wrongly_once_has_not_signed() -> None:
    given = cosign(HEAD.text(), WITNESS_KEY, WITNESS, 1)
    wrong = type(given)(given.name, given.id, bytes(72))
    assert not Note(HEAD.text(), (given, wrong)).signed_by(WITNESS_KEY)


def test_signatures_are_added_once() -> None:
    given = cosign(HEAD.text(), WITNESS_KEY, WITNESS, 1)
    note = Note(HEAD.text()).with_signatures([given]).with_signatures([given])
    assert note.signatures == (given,)


@given(st.binary(max_size=300))
def test_parsing_is_total(raw: bytes) -> None:
    for candidate in (raw, WHOLE[: len(raw)] + raw, raw + WHOLE):
        try:
            note = parse_note(candidate)
        except NoteError:
            continue
        assert parse_note(note.to_bytes()) == note


@given(st.text(max_size=80))
def test_parsing_keys_and_heads_is_total(text: str) -> None:
    for parse in (parse_key, parse_head):
        try:
            parse(text)
        except NoteError:
            continue
