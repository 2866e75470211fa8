"""Kafka adapters that every process shares: control writer and reader, producers, beacons."""
