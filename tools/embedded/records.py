"""Generated JSON records, SQL, logs and tool-call conversations, in the style of an agent's traffic.

Every document draws its own entities (names, fields, value ranges, layout), then reuses them, so that a
model must copy from its context instead of memorising the generator.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tools.embedded.words import FIELDS, LEVELS, NOUNS, VERBS, Make, Value, a_date, hexadecimal


@dataclass(frozen=True)
class Entity:
    """A kind of record: its noun, its table, its fields with an SQL type and a value maker each."""

    noun: str
    table: str
    fields: dict[str, tuple[str, Make]]

    def row(self, r: random.Random, number: int) -> dict[str, Value]:
        return {"id": number} | {name: make(r) for name, (_, make) in self.fields.items()}


def number_up_to(top: int) -> Make:
    return lambda r: r.randint(1, top)


def one_of(choices: list[str]) -> Make:
    return lambda r: r.choice(choices)


class Records:
    """A seeded generator of documents; `words` (identifiers of real code) widen its vocabulary."""

    def __init__(self, seed: int, words: Sequence[str]) -> None:
        self.r = random.Random(seed)
        self.words = list(words) or NOUNS

    def word(self) -> str:
        return self.r.choice(NOUNS if self.r.random() < 0.5 else self.words)

    def phrase(self, low: int = 1, high: int = 4) -> str:
        return " ".join(self.word() for _ in range(self.r.randint(low, high)))

    def entity(self) -> Entity:
        noun = self.word() if self.r.random() < 0.8 else f"{self.word()}_{self.word()}"
        plural = noun[:-1] + "ies" if noun.endswith("y") else noun if noun.endswith("s") else noun + "s"
        known = dict(self.r.sample(sorted(FIELDS.items()), self.r.randint(2, 6)))
        for _ in range(self.r.randint(0, 3)):
            name = f"{self.word()}_{self.r.choice(['id', 'name', 'code', 'type', 'count', 'key', 'size'])}"
            if name.endswith(("id", "count", "size")):
                top = self.r.choice([9, 99, 999, 99999])
                known[name] = ("INTEGER", number_up_to(top))
            else:
                choices = [self.phrase(1, 2) for _ in range(self.r.randint(3, 9))]
                known[name] = ("TEXT", one_of(choices))
        items = list(known.items())
        self.r.shuffle(items)
        return Entity(noun, plural, dict(items))

    def dump(self, value: Value) -> str:
        layout = self.r.random()
        if layout < 0.45:
            return json.dumps(value)
        if layout < 0.6:
            return json.dumps(value, separators=(",", ":"))
        return json.dumps(value, indent=2 if layout < 0.9 else 4)

    def rows(self, entity: Entity, low: int, high: int) -> list[dict[str, Value]]:
        first, step = self.r.randint(1, 9000), self.r.choice([1, 1, 1, 2, 7])
        return [entity.row(self.r, first + step * i) for i in range(self.r.randint(low, high))]

    def tree(self, depth: int) -> Value:
        """A nested object: settings, manifests, API answers."""
        out: dict[str, Value] = {}
        for _ in range(self.r.randint(2, 6)):
            pick = self.r.random()
            if pick < 0.3 and depth:
                out[self.word()] = self.tree(depth - 1)
            elif pick < 0.45:
                out[self.word() + "s"] = [self.word() for _ in range(self.r.randint(0, 5))]
            elif pick < 0.55:
                out[self.word()] = [self.tree(0) for _ in range(self.r.randint(1, 3))] if depth else None
            else:
                name, (_, make) = self.r.choice(list(FIELDS.items()))
                out[name if pick < 0.85 else f"{self.word()}_{name}"] = make(self.r)
        return out

    def json_document(self) -> str:
        """One JSON value, as `json.loads` reads it."""
        entity, pick = self.entity(), self.r.random()
        rows = self.rows(entity, 1, 12)
        if pick < 0.3:
            return self.dump(rows)
        if pick < 0.55:
            return self.dump({entity.table: rows, "total": len(rows), "page": self.r.randint(1, 9)})
        if pick < 0.65:
            return self.dump(rows[0] | {self.word(): self.tree(1)})
        if pick < 0.8:
            return self.dump(self.tool_schema(entity, self.r.choice(VERBS)))
        return self.dump(self.tree(3))

    def tool_schema(self, entity: Entity, verb: str) -> Value:
        kinds = {"INTEGER": "integer", "REAL": "number", "BOOLEAN": "boolean", "NUMERIC": "number"}
        chosen = self.r.sample(list(entity.fields.items()), self.r.randint(1, len(entity.fields)))
        properties = {
            name: {
                "type": kinds.get(sql.split("(")[0], "string"),
                "description": f"The {name} of the {entity.noun}",
            }
            for name, (sql, _) in chosen
        }
        parameters = {"type": "object", "properties": properties, "required": [chosen[0][0]]}
        name = f"{verb}_{entity.noun}"
        text = f"{verb.capitalize()} {entity.table} by {chosen[0][0]}"
        return {"type": "function", "function": {"name": name, "description": text, "parameters": parameters}}

    def turn(self, entity: Entity) -> tuple[str, str, dict[str, Value], list[dict[str, Value]], str, str]:
        """(question, function, arguments, result rows, answer, call id) of one tool call."""
        rows = self.rows(entity, 1, 5)
        row, key = self.r.choice(rows), self.r.choice(list(entity.fields))
        verb, call = self.r.choice(VERBS), f"call_{hexadecimal(self.r, self.r.choice([6, 8, 12]))}"
        name, arguments = f"{verb}_{entity.noun}", {key: row[key]}
        if self.r.random() < 0.5:
            arguments["limit"] = len(rows)
        if self.r.random() < 0.25:
            name, arguments = "run_sql", {"query": self.select(entity, row, key)}
        questions = [
            f"Please {verb} the {entity.noun} with {key} {row[key]}.",
            f"Which {entity.table} have {key} {row[key]}?",
            f"Show me {entity.table} where {key} is {row[key]}.",
        ]
        ask, other = self.r.choice(questions), self.r.choice(list(entity.fields))
        found = (
            f"I found {len(rows)} {entity.table}. The {other} of {entity.noun} {row['id']} is {row[other]}."
        )
        has = f"{entity.noun.capitalize()} {row['id']} has {other} {row[other]} and {key} {row[key]}."
        return ask, name, arguments, rows, self.r.choice([found, has]), call

    def conversation(self) -> str:
        """An agent's run: a question, calls with arguments, results that later turns quote."""
        entity = self.entity()
        tagged, lines = self.r.random() < 0.4, []
        for _ in range(self.r.randint(1, 4)):
            ask, name, arguments, rows, answer, call = self.turn(entity)
            if tagged:
                request = json.dumps({"name": name, "arguments": arguments})
                lines += [f"User: {ask}", "Assistant: <tool_call>", request, "</tool_call>"]
                lines += [f"Tool: {json.dumps(rows)}", f"Assistant: {answer}"]
                continue
            function = {"name": name, "arguments": json.dumps(arguments)}
            calls = [{"id": call, "type": "function", "function": function}]
            messages: list[dict[str, Value]] = [
                {"role": "user", "content": ask},
                {"role": "assistant", "content": None, "tool_calls": calls},
                {"role": "tool", "tool_call_id": call, "content": json.dumps(rows)},
                {"role": "assistant", "content": answer},
            ]
            lines += [json.dumps(message) for message in messages]
        return "\n".join(lines) + "\n"

    def literal(self, value: Value) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)

    def select(self, entity: Entity, row: dict[str, Value], key: str) -> str:
        names = list(entity.fields)
        chosen = ", ".join(self.r.sample(names, self.r.randint(1, min(4, len(names)))))
        where = f"WHERE {key} {self.r.choice(['=', '=', '=', '<>', '>', '<='])} {self.literal(row[key])}"
        if row[key] is None:
            where = f"WHERE {key} IS {self.r.choice(['', 'NOT '])}NULL"
        group = self.r.choice(names)
        return self.r.choice(
            [
                f"SELECT {chosen} FROM {entity.table} {where}",
                f"SELECT * FROM {entity.table} {where} ORDER BY {group} "
                f"LIMIT {self.r.choice([5, 10, 20, 100])}",
                f"SELECT {group}, COUNT(*) AS n FROM {entity.table} {where} GROUP BY {group} ORDER BY n DESC",
                f"SELECT id, {chosen} FROM {entity.table} {where} ORDER BY id DESC",
            ]
        )

    def create_table(self, entity: Entity, link: str = "") -> str:
        columns = ["id INTEGER PRIMARY KEY"]
        for name, (sql, _) in entity.fields.items():
            columns.append(f"{name} {sql}{self.r.choice(['', '', ' NOT NULL'])}")
        if link:
            columns.append(link)
        return f"CREATE TABLE {entity.table} (\n    " + ",\n    ".join(columns) + "\n);"

    def statement(self, one: Entity, two: Entity, row: dict[str, Value], key: str) -> str:
        """A question about table `one`, a join with `two`, an update or an index."""
        pick = self.r.random()
        if pick < 0.5:
            text = self.select(one, row, key).replace(" FROM", "\nFROM").replace(" WHERE", "\nWHERE")
            return f"-- {one.table} by {key}\n{text};" if pick < 0.25 else text + ";"
        if pick < 0.75:
            a, b = one.table[0], two.table[0] + "2"
            return (
                f"SELECT {a}.{key}, {b}.{self.r.choice(list(two.fields))}\nFROM {one.table} AS {a}\n"
                f"{self.r.choice(['JOIN', 'LEFT JOIN'])} {two.table} AS {b} ON {b}.{one.noun}_id = {a}.id\n"
                f"WHERE {a}.{key} = {self.literal(row[key])};"
            )
        if pick < 0.88:
            return f"UPDATE {one.table} SET {key} = {self.literal(row[key])} WHERE id = {row['id']};"
        return f"CREATE INDEX idx_{one.table}_{key} ON {one.table} ({key});"

    def sql(self) -> str:
        """A script over two related tables: schema, rows, questions."""
        one, two = self.entity(), self.entity()
        link = f"{one.noun}_id INTEGER REFERENCES {one.table}(id)"
        out = [self.create_table(one), self.create_table(two, link)]
        rows, names = self.rows(one, 2, 8), ["id", *one.fields]
        values = ["(" + ", ".join(self.literal(row[name]) for name in names) + ")" for row in rows]
        into = f"INSERT INTO {one.table} ({', '.join(names)}) VALUES\n    "
        out.append(into + ",\n    ".join(values) + ";")
        for _ in range(self.r.randint(2, 6)):
            row, key = self.r.choice(rows), self.r.choice(list(one.fields))
            out.append(self.statement(one, two, row, key))
        return "\n\n".join(out) + "\n"

    def log(self) -> str:
        """Log lines, as text or as one JSON object a line."""
        as_json, service = self.r.random() < 0.5, [self.word() for _ in range(self.r.randint(1, 4))]
        forms = [(self.phrase(2, 4), self.word()) for _ in range(self.r.randint(2, 5))]
        day, clock, out = a_date(self.r), self.r.randint(0, 80000), []
        for _ in range(self.r.randint(6, 24)):
            clock += self.r.randint(0, 30)
            stamp = f"{day}T{clock // 3600 % 24:02d}:{clock // 60 % 60:02d}:{clock % 60:02d}Z"
            text, key = self.r.choice(forms)
            level, name, number = self.r.choice(LEVELS), self.r.choice(service), self.r.randint(1, 999)
            out.append(
                json.dumps({"time": stamp, "level": level, "service": name, "message": text, key: number})
                if as_json
                else f"{stamp} {level} [{name}] {text} {key}={number}"
            )
        return "\n".join(out) + "\n"

    def document(self) -> str:
        """One document of any kind."""
        pick = self.r.random()
        if pick < 0.35:
            return self.json_document() + "\n"
        if pick < 0.65:
            return self.conversation()
        return self.sql() if pick < 0.9 else self.log()
