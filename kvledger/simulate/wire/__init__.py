"""The event wire of a simulated engine: bytes, publisher and replay as vLLM has them, and its faults."""
