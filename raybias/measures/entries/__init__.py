"""One module for each kind of answers: its sums, its scores, and the files that others publish."""
