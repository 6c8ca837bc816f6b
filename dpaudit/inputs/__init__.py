"""What a run read of the user's files, in all of its Python processes."""
