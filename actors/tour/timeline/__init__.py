"""What is decided about media, without touching any: a probe goes in, a decision comes out."""
