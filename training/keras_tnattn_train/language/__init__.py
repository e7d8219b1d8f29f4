"""The task `language`: language models of characters or bytes."""
