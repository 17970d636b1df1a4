"""The paper's training recipe on top of the library's Trainer."""
