"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 05b2ed45750f0d5c5353b1f597ab0af98e459a305906818c46a01c670646f305
"""
