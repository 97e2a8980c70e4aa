"""Parse published files that both probes and statistics read: one parser for each format."""
