"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 6cc7a2645c5c7c25a8c0cdb6fe55d86ad75ca75d2a162429e752ebffd6d48737
"""
