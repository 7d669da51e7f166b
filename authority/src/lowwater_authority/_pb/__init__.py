"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 aa068bd11c9aacb54e6b0ca051afd0a3de7037c5908371c54fc2d1a7417bb4d2
"""
