"""Plans: the candidates of each layer, their costs, and the budget that layers share."""
