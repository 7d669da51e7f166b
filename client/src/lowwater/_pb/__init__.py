"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 ceddf5530c483335f0434f9e0ca3c60907ce9b4861525cb6b252575bb1db0978
"""
