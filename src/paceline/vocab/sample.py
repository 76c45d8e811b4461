"""A short sample of typical model output, on which tokenizers are compared."""

SAMPLE_TEXT = '''\
class Register:
    """Readings of one meter, in the order in which they came."""

    def __init__(self, name: str, limit: int = 100) -> None:
        self.name = name
        self._readings: list[float] = []
        self.limit = limit

    def add(self, value: float) -> None:
        if value < 0:
            raise ValueError(f"{self.name}: a reading cannot be negative (got {value!r})")
        self._readings.append(value)
        while len(self._readings) > self.limit:
            for listener in self._listeners:
                if listener.wants_old:
                    listener.dropped(self._readings[0])
            del self._readings[0]

    def average(self, default=None):
        return sum(self._readings) / len(self._readings) if self._readings else default


{"name": "read_file", "arguments": {"path": "src/main.rs", "limit": 200, "recursive": true}}
SELECT id, name, created_at FROM customers WHERE country = 'DE' ORDER BY created_at DESC LIMIT 20;

The committee met on Thursday to discuss whether the bridge should be repaired or replaced. Engineers had
warned that corrosion was spreading faster than expected, and that waiting another winter could triple the
cost. "We cannot keep postponing this," said the mayor, who promised a decision before the end of 2026.

1. **Install** the package and restart the server.
2. Open http://localhost:8080/status in your browser: it shows the number of active connections.
'''
