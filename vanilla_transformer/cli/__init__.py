"""What `vanilla-transformer` runs: one module for each sub-command."""
