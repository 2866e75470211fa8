"""The log and what it means: event model, identity, codec, chain and the one fold; `hooks` is the worker side."""
