"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 6ca5ada077a2f502812486a52ad01e52d32925973da4e1933d927bb0d5d2abde
"""
