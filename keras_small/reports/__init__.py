"""What a compression did, in rows, words and pictures."""
