"""What the servers of lowwater share: the authority, and the status page, which is another distribution.

Certificates, tokens, logs, and connections over HTTP. No module of the client imports any of this: it needs aiohttp and structlog, which
the two distributions bring, and a process that only reports has neither.
"""
