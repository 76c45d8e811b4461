"""Default prompts of a certificate: typical texts, and repetitive ones whose drafts are long."""

PROMPTS = (
    '''class Stack:
    """A last-in, first-out collection."""

    def __init__(self):
        self.items = []

    def push(self, item):
        """Put an item on top."""
        self.items.append(item)

    def pop(self):
        """Take the item on top."""
''',
    '[{"id": 1, "name": "bolt", "price": 0.25}, {"id": 2, "name": "nut", "price": 0.1}, {"id": 3, "name":',
    "CREATE TABLE orders (\n    id INTEGER PRIMARY KEY,\n    customer TEXT NOT NULL,\n    total REAL\n);\n\n"
    "INSERT INTO orders (id, customer, total) VALUES\n    (1, 'Ada', 12.5),\n    (2,",
    "The function returns a new list. If the argument is not a sequence, it raises",
    "Quelques mots d'été à Zürich: naïve, façade, Ærø, ½ · „Straße“ · 日本語のテスト。\n",
    'def test_parse_empty():\n    assert parse("") == []\n\n\ndef test_parse_one():\n    '
    'assert parse("1") == [1]\n\n\ndef test_parse_two():\n',
    "one two three four five six seven eight nine ten one two three four five six seven eight nine ten one",
    "2024-03-01T10:00:00Z INFO [api] request done ms=12\n2024-03-01T10:00:01Z INFO [api] request done ms=9\n",
)
