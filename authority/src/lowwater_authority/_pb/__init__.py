"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 6388b60a8a359e4781354c2e8b2f2f54ffe8adb3729adb2c05cfe3e21fac2cb3
"""
