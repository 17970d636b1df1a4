"""What happens in a forward pass, step by step."""
