"""Parts that the servers of lowwater share: certificates, tokens, logs, and connections over HTTP.

The authority and the status page use this package. It needs aiohttp and structlog, so the client
must not import it: a process that only reports has neither.
"""
