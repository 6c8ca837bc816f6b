"""One training run with many canaries, and what guesses about them prove."""
