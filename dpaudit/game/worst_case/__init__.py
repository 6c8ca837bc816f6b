"""Which agent, batch and record a defense protects least."""
