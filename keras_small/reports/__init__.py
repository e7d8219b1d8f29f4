"""Reports of compressions, in rows, words and pictures."""
