"""The client on threads, and what it does when its process forks."""
