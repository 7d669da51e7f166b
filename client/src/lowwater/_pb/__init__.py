"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 883a78dfec3bcec100361b075a8c3748ea7d3690357fa011aeb5fbff0978bbae
"""
