"""What `kvledger demo` does: a stack of its own, a trace through it, then scenes that each show one promise."""
