"""Serve the runs of a finished study over HTTP."""
