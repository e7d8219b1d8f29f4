"""Reads texts, sentence pairs, images and graphs, and makes batches of them."""
