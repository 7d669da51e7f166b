"""Completeness of an output: the marks that its writers leave in it, and the questions to them."""
