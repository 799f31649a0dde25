"""What usage costs and what follows from it: pure functions of prices, plans, credits, budgets and the month's totals."""
