"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 361f24dfa6a3659b5e90b2260e9c7306b4b15afb4431c69554786ba85bd8ae91
"""
