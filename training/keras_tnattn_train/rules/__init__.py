"""Elementary cellular automata."""
