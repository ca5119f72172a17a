"""The demo: a small app, fake providers, real workers, and what becomes of 40 paid calls when workers are killed."""
