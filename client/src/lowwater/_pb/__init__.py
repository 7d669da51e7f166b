"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 888fb1b05b332e3b4399902da2282956a0fa701978da4b48a26ca7922271383c
"""
