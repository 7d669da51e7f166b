"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 956b1bcd986691f0a333482f647b5683151ee5fb416727a6eb3adfd2154a2464
"""
