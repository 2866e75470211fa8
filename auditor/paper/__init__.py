"""Proofs and reports on paper: what a signed statement says, for people, as HTML, PDF, CSV and Parquet."""
