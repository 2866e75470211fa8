"""Beside a running engine: what it says about itself, what that makes of its identity, and what goes wrong."""
