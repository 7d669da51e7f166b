"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 ea2c0a9ffca578d3eb8ee93a028814ba44ebc90a6bd7a32d20dfdee821d4467e
"""
