"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 d486f63dafab0a1ac151e4b2b6683b4aeeb2006554a85f4db087d5643cc840e6
"""
