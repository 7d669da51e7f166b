"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 47e23c788da839e4962f92bf75802b444b07d00492ace581ea9d995540131b30
"""
