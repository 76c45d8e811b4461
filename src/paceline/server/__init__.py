"""An OpenAI-compatible server: an engine's thread, and HTTP in front of it.

service.py     the engine's thread, with limits, metrics and the page's figures
metrics.py     Prometheus metrics; live_stats.py: the page's figures
schemas.py     requests in OpenAI's form; convert.py: those to the engine's, chat_messages.py: their messages
apis/          the APIs: each from its own form to OpenAI's requests, and back
streams.py     outputs as they come; info.py: routes that describe the model
errors.py      HTTP errors
connection.py  one client's connection; a stalled connection is closed
security.py    checks before a request is read: keys, hosts, sizes, stalls
app.py         the routes
listen.py      the process: socket, signals, logs
replicas.py    the server as a Ray Serve deployment, and the Ray cluster; settings.py: a server's settings
affinity.py    session ids, for a router that sends a conversation to one replica"""
