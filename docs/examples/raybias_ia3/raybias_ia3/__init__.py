"""(IA)3 for raybias, as a package of its own: an entry point lists `raybias_ia3.method`."""
