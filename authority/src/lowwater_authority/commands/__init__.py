"""The commands that come with the authority: ``lowwater serve``, ``access`` and ``journal``."""
