"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 6023ea69a418bd97e5d80f3d5db421d38e61c5c11c4a74fc8b53a423d4bc28a6
"""
