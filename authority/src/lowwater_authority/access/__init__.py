"""Principals, their permissions and limits, and the checks that servicers ask for."""
