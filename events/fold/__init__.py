"""The one fold of the log: `apply(state, record) -> changes`, pure, for every store."""
