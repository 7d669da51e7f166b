"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 fa25766666e9aa4bd9e3a2574b56eb44f6669330a127838215f10cdd46109c49
"""
