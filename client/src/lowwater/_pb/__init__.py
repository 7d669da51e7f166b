"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 8bfc5ee68ae33a88b18b4bd03b77665ab16022454039a22053e6df247a3aa819
"""
