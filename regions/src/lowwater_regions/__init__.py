"""Regions: the global authority, which says which region owns what, and the agent of a region."""
