"""The client on the tasks of one event loop."""
