"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 59ef8ca9c6f155e79470af7271f488b904a6297f521bd6363c0c534f2148faad
"""
