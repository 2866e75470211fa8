"""Frozen records and events, past tense, one module a topic family."""
