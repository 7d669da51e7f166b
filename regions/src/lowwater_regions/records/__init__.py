"""Generated from proto/lowwater/regions/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 f22e64aaef1c19c35fd40dab763321a19e481c3499f6b07f2a9ef5a4aafba485
"""
