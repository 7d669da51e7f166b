"""MillWheel's figure 12: a zombie's write is delayed, its successor scans, the write goes on.

Run it with ``make zombie``.
"""
