"""Sub-commands of `vanilla-transformer`, one module each."""
