"""Reads texts, sentence pairs and graphs, and makes batches of them."""
