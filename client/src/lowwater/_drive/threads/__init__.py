"""The client on threads, and its forks."""
