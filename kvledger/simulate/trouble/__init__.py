"""The named faults of a fleet: loss, dead peers, restarts, resets, killed and doubled hooks."""
