"""How much a view reveals about a private quantity, by round."""
