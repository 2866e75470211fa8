"""Simulated workers, the traffic that drives them, and the checker that knows the truth."""
