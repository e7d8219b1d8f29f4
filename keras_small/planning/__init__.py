"""Which candidate each layer gets, so that a goal is reached."""
