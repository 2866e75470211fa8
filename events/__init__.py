"""The log and what it means: model, identity, codec, chain, the one fold; `hooks` is the worker side."""
