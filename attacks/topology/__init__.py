"""Which agents share a link, from their messages without the receivers."""
