"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 a84e1a758775e57c2e89fac0eb3822e5ba6c05ac30507cf6d797bebde2dfcfad
"""
