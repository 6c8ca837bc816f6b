"""What a program sends, by the library that sends it."""
