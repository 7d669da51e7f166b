"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 6133c0acf423a7a2ad63c9365c8bd18a5f51b413abff0e4de6f72ad87c5de3a3
"""
