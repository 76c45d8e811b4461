"""Names, nouns and typed fields that the generated records are made of."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

FIRST = """
Ada Amara Anders Bao Beatriz Carlos Chen Clara Daniel Deepa Elena Emil Fatima Felix Grace Hana Hugo
Ines Ivan Jonas Julia Kenji Lars Leila Lin Lucas Maria Mei Miguel Nadia Nina Omar Oscar Paula Pavel
Priya Rosa Samir Sara Tariq Tomas Uma Victor Wei Yara Yuki Zoe Noah Ruth Peter
""".split()  # noqa: SIM905  # a list of words, read as words
LAST = """
Adeyemi Andersen Berg Castro Chandra Costa Diaz Dubois Eriksen Fischer Garcia Haddad Hansen Ito
Ivanova Jansen Kim Kowalski Kumar Larsen Lopez Meyer Moreau Nakamura Novak Okafor Olsen Park Patel
Petrov Quinn Reyes Rossi Sato Schmidt Silva Singh Tanaka Torres Ueda Vargas Wagner Wang Weber Yilmaz
Zhang Zhou Brown Taylor Evans
""".split()  # noqa: SIM905  # a list of words, read as words
CITIES = """
Amsterdam Athens Bangkok Bergen Berlin Bogota Boston Cairo Chicago Delhi Denver Dublin Geneva Hanoi
Helsinki Istanbul Jakarta Kyoto Lagos Lima Lisbon London Lyon Madrid Manila Melbourne Milan Montreal
Munich Nairobi Oslo Paris Porto Prague Quito Riga Rome Santiago Seattle Seoul Sydney Tallinn Tokyo
Toronto Vienna Warsaw
""".split()  # noqa: SIM905  # a list of words, read as words
COUNTRIES = """
AR AU BR CA CL CN CO DE EG ES FI FR GB GR ID IE IN IT JP KE KR MX NG NL NO PE PL PT SE US
""".split()  # noqa: SIM905  # a list of words, read as words
NOUNS = """
account address alert article asset booking branch budget build campaign carrier cart category
channel client comment contact container contract course customer delivery department deployment
device document employee event expense feature file flight folder form group incident inventory
invoice issue item job label lead lesson listing location machine meeting member message metric
milestone model node note notification offer order package page partner patient payment permission
plan player policy post price product profile project property purchase query question queue rating
recipe refund region release report repository request reservation resource review role room route
rule sample schedule segment sensor server service session setting shipment shop site snapshot stock
store student subscription supplier survey tag task team template test ticket token topic
transaction trip user vehicle vendor version visit volume warehouse webhook wallet workflow
""".split()  # noqa: SIM905  # a list of words, read as words
STATUS = """
active pending closed open failed completed cancelled archived draft queued running paused shipped
delivered refunded approved rejected expired blocked new verified inactive scheduled
""".split()  # noqa: SIM905  # a list of words, read as words
LEVELS = ["DEBUG", "INFO", "INFO", "INFO", "WARNING", "ERROR"]
VERBS = """
get list search create update delete find fetch count send cancel assign export check lookup add
""".split()  # noqa: SIM905  # a list of words, read as words
PLACES = """
production staging europe-west us-east-1 eu-central-1 ap-south-1 local test default primary
""".split()  # noqa: SIM905  # a list of words, read as words

Value = Any
Make = Callable[[random.Random], Value]


def full_name(r: random.Random) -> str:
    return f"{r.choice(FIRST)} {r.choice(LAST)}"


def a_date(r: random.Random) -> str:
    return f"{r.randint(2015, 2026)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"


def a_time(r: random.Random) -> str:
    return f"{a_date(r)}T{r.randint(0, 23):02d}:{r.randint(0, 59):02d}:{r.randint(0, 59):02d}Z"


def hexadecimal(r: random.Random, digits: int = 8) -> str:
    return f"{r.getrandbits(4 * digits):0{digits}x}"


def an_email(r: random.Random) -> str:
    host = r.choice(["example.com", "example.org", "mail.example.net", "corp.example.com"])
    return f"{r.choice(FIRST).lower()}.{r.choice(LAST).lower()}@{host}"


# field name -> (SQL type, value); the words of each document add more fields to these
FIELDS: dict[str, tuple[str, Make]] = {
    "name": ("TEXT", full_name),
    "email": ("TEXT", an_email),
    "city": ("TEXT", lambda r: r.choice(CITIES)),
    "country": ("CHAR(2)", lambda r: r.choice(COUNTRIES)),
    "status": ("VARCHAR(20)", lambda r: r.choice(STATUS)),
    "created_at": ("TIMESTAMP", a_time),
    "updated_at": ("TIMESTAMP", a_time),
    "due_date": ("DATE", a_date),
    "start_date": ("DATE", a_date),
    "price": ("NUMERIC(10, 2)", lambda r: round(r.uniform(1, 500), 2)),
    "total": ("NUMERIC(12, 2)", lambda r: round(r.uniform(10, 9000), 2)),
    "amount": ("NUMERIC(12, 2)", lambda r: round(r.uniform(1, 2000), 2)),
    "quantity": ("INTEGER", lambda r: r.randint(1, 40)),
    "count": ("INTEGER", lambda r: r.randint(0, 900)),
    "score": ("REAL", lambda r: round(r.random(), 3)),
    "rating": ("REAL", lambda r: round(r.uniform(1, 5), 1)),
    "priority": ("INTEGER", lambda r: r.randint(1, 5)),
    "enabled": ("BOOLEAN", lambda r: r.random() < 0.5),
    "is_active": ("BOOLEAN", lambda r: r.random() < 0.7),
    "verified": ("BOOLEAN", lambda r: r.random() < 0.6),
    "currency": ("CHAR(3)", lambda r: r.choice(["EUR", "USD", "GBP", "JPY", "NOK", "INR"])),
    "phone": ("TEXT", lambda r: f"+{r.randint(1, 99)} {r.randint(100, 999)} {r.randint(1000, 9999)}"),
    "age": ("INTEGER", lambda r: r.randint(18, 90)),
    "weight": ("REAL", lambda r: round(r.uniform(0.1, 80), 1)),
    "latitude": ("REAL", lambda r: round(r.uniform(-90, 90), 4)),
    "longitude": ("REAL", lambda r: round(r.uniform(-180, 180), 4)),
    "duration_ms": ("INTEGER", lambda r: r.randint(1, 9000)),
    "version": ("TEXT", lambda r: f"{r.randint(0, 9)}.{r.randint(0, 20)}.{r.randint(0, 30)}"),
    "hash": ("CHAR(12)", lambda r: hexadecimal(r, 12)),
    "owner": ("TEXT", full_name),
    "region": ("TEXT", lambda r: r.choice(PLACES)),
    "category": ("TEXT", lambda r: r.choice(NOUNS)),
    "level": ("TEXT", lambda r: r.choice(LEVELS).lower()),
    "notes": (
        "TEXT",
        lambda r: r.choice([None, None, "see " + r.choice(NOUNS), "checked by " + r.choice(FIRST)]),
    ),
}
