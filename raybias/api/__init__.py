"""The public functions: what the command line does, from Python."""
