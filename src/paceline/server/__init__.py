"""An OpenAI-compatible server: an engine's worker (engine_worker.py), and HTTP in front of it.

service.py     the engine's worker, with limits, metrics and the page's figures
metrics.py     what Prometheus reads
live_stats.py  what the page shows
schemas.py     requests as HTTP has them; convert.py: as the engine has them
responses.py   answers as HTTP has them; tool_stream.py: calls of tools in their text
errors.py      errors as HTTP has them
connection.py  one client's connection, and what becomes of one that stalls
security.py    what is refused before a request is read: keys, hosts, sizes, stalls
app.py         the routes
listen.py      the process: socket, signals, logs
replicas.py    the settings of a server, and the same as a Ray Serve deployment; cluster.py: where it runs
affinity.py    which conversation a request belongs to
"""
