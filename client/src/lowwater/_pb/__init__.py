"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 b0ed51c1388f88eaee26cb5ed6a78aaf07be237441b3573fa0a522b5a8475532
"""
