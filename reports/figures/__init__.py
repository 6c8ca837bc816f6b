"""What is drawn on a page: one kind of evidence a file."""
