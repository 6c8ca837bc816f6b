"""One step of a defense, played with chosen states, gradients and noise."""
