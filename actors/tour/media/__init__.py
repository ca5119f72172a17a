"""Looking at media and changing it, always in child processes with limits."""
