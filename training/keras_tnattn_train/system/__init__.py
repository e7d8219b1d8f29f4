"""Files, locks and child processes: what is asked of the operating system."""
