"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 80e60b46724a7a33be4c17439439e0e270805cb0561ae4e61a18db8d7f6f5766
"""
