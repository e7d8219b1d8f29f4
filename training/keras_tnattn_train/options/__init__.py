"""What every command builds on: declared options, command lines, errors."""
