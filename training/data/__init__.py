"""Reading data: texts, pairs of sentences, images, and batches of them."""
