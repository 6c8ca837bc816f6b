"""How much a view tells about a private quantity, by round."""
