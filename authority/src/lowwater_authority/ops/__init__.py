"""Figures for operators: events and logs, metrics, traces."""
