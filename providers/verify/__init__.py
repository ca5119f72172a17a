"""The child process that decodes what strangers made: see `providers.media_check` for who starts it and why.

Nothing here is imported by the parent but `words`; only the child loads the decoders.
"""
