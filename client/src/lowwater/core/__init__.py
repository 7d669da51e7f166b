"""The client's core, without network, threads or clock: state machines, and pure functions.

Clock and randomness are passed in. The shells own the sockets and the waiting:
:mod:`lowwater._drive.threads` has threads, and holds a lock around every call into the core;
:mod:`lowwater._drive.tasks` has the tasks of one event loop, and needs no lock.

The authority, Spark and the pipeline import these modules too. All distributions of one version
share them. Users import from :mod:`lowwater` itself, whose names keep their meaning from release to
release.
"""
