"""What only reproduces the papers (docs/papers.md): their file formats and printed tables."""
