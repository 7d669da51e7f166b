"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 ed98e27e82bb91eddc75657fb1c4e9da4e9d2f75af67904fc8fedb0e3749528e
"""
