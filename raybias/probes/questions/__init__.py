"""Questions with options, triples of sentences, and decisions about people: one file a source."""
