"""The data that `compress` gets: batches, renumbered ids, and the progress that it prints."""
