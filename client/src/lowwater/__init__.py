"""Low watermarks across jobs: the client."""
