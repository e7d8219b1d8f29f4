"""What every program of this folder builds on: options, command lines, errors, files."""
