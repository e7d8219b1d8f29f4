"""What a model consists of, what its layers see, and how much each of them matters."""
