"""The status page in a real Chromium, against a real authority under a real pipeline."""
