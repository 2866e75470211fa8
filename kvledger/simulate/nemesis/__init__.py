"""Faults on the processes of a running stack, and the soak that strikes all faults at random."""
