"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 e0dac8e9cfc6b9cbecdb95372b4a8f572521df494ae2b3e646b3ab4d73a5e55a
"""
