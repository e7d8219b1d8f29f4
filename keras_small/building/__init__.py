"""Makes the small model of a choice, and trains and saves it."""
