"""An OpenAI-compatible server: one thread that decodes for everybody (service.py), and HTTP in front of it.

asking.py      what one answer is to be, and what comes back
line.py        the queue, fair to every client
service.py     the thread that owns the model
metrics.py     what Prometheus reads
lately.py      what the page shows
schemas.py     requests as HTTP has them; wishes.py: as the service has them
replies.py     answers as HTTP has them
refusals.py    errors as HTTP has them
connection.py  one client's connection, and what becomes of one that stalls
guard.py       what is refused before a request is read: keys, hosts, sizes, stalls
app.py         the routes
listen.py      the process: socket, signals, logs
keys.py        API keys as they are given
replicas.py    the same as a Ray Serve deployment; cluster.py: where it runs
affinity.py    which conversation a request belongs to
"""
