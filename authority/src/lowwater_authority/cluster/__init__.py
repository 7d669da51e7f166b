"""The living shards, and which of them serves what.

``membership`` decides, a ``Directory`` stores.
"""
