"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 553ef8024a58d60144de67795832fe7053d5c76508353b5ae6335bb665a27c9a
"""
