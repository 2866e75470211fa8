"""Sealed segments kept outside Kafka: raw bytes under their roots, and Parquet to ask questions of."""
