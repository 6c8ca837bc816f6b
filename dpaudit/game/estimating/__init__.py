"""The best linear estimates of an agent's gradients from a view."""
