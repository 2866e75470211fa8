"""One module for each command of `kvledger`; each has `register(app)` and imports the heavy parts late."""
