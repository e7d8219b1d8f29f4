"""Reads texts, sentence pairs and images, and makes batches of them."""
