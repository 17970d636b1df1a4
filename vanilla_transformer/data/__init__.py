"""Data: the phrasebook, the Hub or local files, checked, and tokenizers."""
