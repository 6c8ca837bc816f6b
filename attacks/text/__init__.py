"""Recovery of text from gradients of transformers."""
