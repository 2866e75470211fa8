"""The local stack: Kafka, Postgres and kvledger's own processes under one supervisor."""
