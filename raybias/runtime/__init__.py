"""Run a planned study, in this process or on Ray."""
