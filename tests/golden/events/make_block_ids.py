"""Writes block_ids.json once; later versions add vectors and never edit one. Independent of `events.identity`:
the arithmetic is spelled out here, so that agreement means something."""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from pathlib import Path


def derive(secret: bytes, label: str) -> bytes:
    return hmac.new(secret, f"kvledger {label} v1".encode() + b"\x01", hashlib.sha256).digest()


def canonical(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def profile(**known: object) -> dict[str, object]:
    names = [
        "model",
        "revision",
        "tokenizer_revision",
        "chat_template",
        "adapter",
        "adapter_revision",
        "mm_processor",
        "attention",
        "position_encoding",
        "kv_dtype",
        "block_tokens",
    ]
    return {name: known.get(name) for name in names}


def chain(
    key: bytes, root: bytes, tokens: list[int], size: int, extras: list[dict[str, object]]
) -> list[str]:
    out, parent = [], root
    for index in range(len(tokens) // size):
        packed = struct.pack(f"<{size}I", *tokens[index * size : (index + 1) * size])
        extra = b""
        if extras and (extras[index]["mm"] or extras[index]["pe"]):
            extra = canonical(extras[index])
        body = parent + struct.pack("<I", len(packed)) + packed + struct.pack("<I", len(extra)) + extra
        parent = hashlib.blake2b(body, key=key, digest_size=16).digest()
        out.append(parent.hex())
    return out


def main() -> None:
    full = profile(
        model="meta/llama-3.1-8b",
        revision="0e9e39f",
        tokenizer_revision="0e9e39f",
        attention="gqa",
        position_encoding="rope-500000",
        kv_dtype="bf16",
        block_tokens=4,
    )
    profiles = [
        full,
        profile(model="tiny", block_tokens=16),
        full | {"adapter": "é/ü", "adapter_revision": "1"},
    ]
    rows = []
    cases: list[tuple[list[int], int, list[dict[str, object]]]] = [
        (list(range(12)), 4, []),
        ([0, 4294967295, 7, 7], 4, []),
        ([1, 2, 3], 4, []),
        (list(range(8)), 4, [{"mm": [["sha256:ab", -3]], "pe": []}, {"mm": [], "pe": ["sha256:cd"]}]),
    ]
    for number, (tokens, size, extras) in enumerate(cases):
        secret = hashlib.sha256(b"golden secret %d" % number).digest()
        root = hashlib.sha256(canonical(full)).digest()[:16]
        key = derive(secret, "id")
        rows.append(
            {
                "domain": f"tenant-{number}",
                "secret": secret.hex(),
                "id_key": key.hex(),
                "root": root.hex(),
                "block_tokens": size,
                "tokens": tokens,
                "extras": extras,
                "ids": chain(key, root, tokens, size, extras),
            }
        )
    document = {
        "profiles": [{"profile": p, "digest": hashlib.sha256(canonical(p)).hexdigest()} for p in profiles],
        "chains": rows,
    }
    Path(__file__).with_name("block_ids.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
