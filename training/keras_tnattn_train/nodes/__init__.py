"""Classification of the nodes of a graph."""
