"""`python -m kvledger` is the `kvledger` command."""

from kvledger.cli import main

if __name__ == "__main__":
    main()
