"""`python -m kvledger` is the `kvledger` command."""

import gc

# Importing makes hundreds of thousands of objects that live for good: looking for garbage among them
# again and again is a tenth of a start.
gc.disable()

from kvledger.cli import main  # noqa: E402

if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    main()
