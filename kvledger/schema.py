"""JSON Schema of every record and an AsyncAPI 3 document, generated from the models and checked in.

`python -m kvledger.schema` writes them to `docs/schema`; a test fails when they differ from the models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from events.model.audit import AccessBatch, AuditRecord, AuditStatement, DeadRecord, QuotaState, SubjectBound
from events.model.batch import Header
from events.model.control import ControlBody, ControlHeader
from events.model.part import DomainPart, StreamPart
from events.model.signal import Pulse, Signal
from events.topic import ALL, DEFAULT_PARTITIONS, Topic

FOLDER = Path(__file__).parent.parent / "docs" / "schema"

RECORDS: dict[str, Any] = {
    "event_batch_header": Header,
    "stream_part": StreamPart,
    "domain_part": DomainPart,
    "pulse": Pulse,
    "signal": Signal,
    "control_header": ControlHeader,
    "control_body": ControlBody,
    "quota_state": QuotaState,
    "audit_record": AuditRecord,
    "audit_statement": AuditStatement,
    "access_batch": AccessBatch,
    "subject_bound": SubjectBound,
    "dead_record": DeadRecord,
}
"""Every line or record that a topic can hold; unions are discriminated by `type` or `kind`."""

LINES: dict[str, tuple[str, ...]] = {
    "kv.events": ("event_batch_header", "stream_part", "domain_part"),
    "kv.pulse": ("pulse",),
    "kv.signals": ("signal",),
    "kv.control": ("control_header", "control_body"),
    "kv.quota": ("quota_state",),
    "kv.audit": ("audit_record",),
    "kv.access": ("access_batch",),
    "kv.subjects": ("subject_bound",),
    "kv.dead": ("dead_record",),
}
"""Which of them make up a record of each topic, in order; the last one repeats (one domain part a domain)."""


def json_schema(name: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of one entry of RECORDS, as it is on the wire."""
    schema = TypeAdapter(RECORDS[name]).json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def asyncapi() -> dict[str, Any]:
    """AsyncAPI 3.0: a channel a topic, with the lines that its records are made of."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "kvledger log",
            "version": "1",
            "description": "Records are lines of UTF-8 JSON; signatures are in the Kafka header kvl-sig.",
        },
        "defaultContentType": "application/json",
        "channels": {topic.name.replace(".", "_"): _channel(topic) for topic in ALL},
        "operations": {
            f"{action}_{topic.name.replace('.', '_')}": {
                "action": action,
                "channel": {"$ref": f"#/channels/{topic.name.replace('.', '_')}"},
            }
            for topic in ALL
            for action in ("send", "receive")
        },
        "components": {
            "messages": {
                name: {"name": name, "payload": {"$ref": f"./{name}.schema.json"}} for name in RECORDS
            }
        },
    }


def _channel(topic: Topic) -> dict[str, Any]:
    names = LINES[topic.name]
    return {
        "address": topic.name,
        "description": f"{topic.content}, keyed by {topic.keyed_by}; lines: {', '.join(names)}",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
        "bindings": {
            "kafka": {
                "partitions": topic.partitions or DEFAULT_PARTITIONS,
                "topicConfiguration": {
                    "cleanup.policy": ["compact" if topic.compacted else "delete"],
                    "retention.ms": topic.retention_ms,
                },
            }
        },
    }


def documents() -> dict[str, str]:
    """File name -> text of everything generated."""
    made = {f"{name}.schema.json": json_schema(name) for name in RECORDS}
    made["asyncapi.json"] = asyncapi()
    return {name: json.dumps(document, indent=1, sort_keys=True) + "\n" for name, document in made.items()}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in documents().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
