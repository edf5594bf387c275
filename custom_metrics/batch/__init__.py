"""Judging by batch files: calls written to files, replies read from them.

``export`` writes what the judge's store lacks as OpenAI batch files, ``replies`` reads result files
into the store, after which ``score`` finds everything there; ``rounds`` does both with a batch API
in between. ``files`` knows the two formats, ``registry`` what was exported and what became of it.
"""
