"""The worker side: engine decoders, EngineStream, bridge, Kafka emitter and the obeying of deletions."""
