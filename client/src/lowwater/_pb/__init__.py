"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 dd181823f057672dfacdb2bba9ff037b50c7456c9a97e970a93ec123e8bc3020
"""
