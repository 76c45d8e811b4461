"""What the real model is asked when its answers are gathered to train a draft: made by templates, texts of the
standard library, and the model itself.

The model writes a user's turn when it is given no more than that turn's beginning (Magpie: Xu et al. 2024,
arXiv:2406.08464); a system prompt (STEER) says what about. What it has asked is asked again in conversations
of their own, and what it has told there is given to be summarised, looked up in, or said otherwise.

Nothing here comes from Spec-Bench, nor from Paceline's own suites: what is measured on is never trained on.
"""

from __future__ import annotations

import json
import pydoc
import pydoc_data.topics
import random
import sys
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

TOPICS = """
rivers, volcanoes, bread, bicycles, the Roman empire, jazz, penguins, chess, solar panels, the moon landing, tea,
earthquakes, bees, railways, the human heart, origami, coral reefs, sleep, cheese, the printing press, vaccines,
wolves, football, glaciers, the Silk Road, photography, dinosaurs, electric cars, pottery, the stock market, opera,
honey, deserts, whales, lighthouses, the brain, gardening, comets, rice, castles, the internet, swimming, owls,
steam engines, Mars, chocolate, democracy, violins, hurricanes, elephants, libraries, wind power, the Olympics,
coffee, submarines, mushrooms, ancient Egypt, robots, marathon running, butterflies, tunnels, the Renaissance, salt,
telescopes, cats, bridges, inflation, the Amazon rainforest, clocks, batteries, sharks, theatre, potatoes, spiders,
the Cold War, planes, yoga, snow, gold, horses, the immune system, poetry, radio, forests, maps, plastic, camels,
budgeting, job interviews, public speaking, remote work, moving house, learning a language, saving water, recycling,
first aid, healthy breakfasts, time management, stress, exercise at home, birthday parties, camping, dogs, museums
""".replace("\n", " ").split(",")  # fmt: skip
NAMES = "Anna Ben Carla Diego Emma Farid Grace Hiro Ines Jonas Kofi Lena Mei Noah Olga Priya Rosa Sam Tom Yara".split()
THINGS = "apples pencils books stickers marbles cookies tickets shells stamps eggs cards plants bottles coins".split()
CITIES = (
    "Paris Berlin Tokyo Cairo Lima Oslo Rome Delhi Boston Sydney Nairobi Toronto Madrid Seoul Dublin".split()
)
PEOPLE = "teacher, nurse, farmer, pilot, chef, child of ten, manager, traveller, student, grandmother".split(
    ", "
)
GERMAN_WHO = (
    "Der Zug", "Die Lehrerin", "Mein Bruder", "Das Kind", "Die Stadt", "Ein alter Mann", "Die Firma", "Unser Nachbar",
    "Der Minister", "Die Polizei", "Das Unternehmen", "Ein Sprecher der Regierung", "Die junge Ärztin", "Mein Chef",
    "Der Verein", "Die Europäische Union", "Eine Gruppe von Schülern", "Der Autor des Buches", "Ihre Schwester",
    "Das Museum", "Der Bürgermeister von Köln", "Die Mannschaft", "Ein Professor aus Wien", "Niemand", "Jeder Gast",
)  # fmt: skip
GERMAN_WHEN = (
    "hat gestern", "wird morgen", "möchte im Sommer", "konnte lange nicht", "soll bald", "will heute", "muss am Montag",
    "hatte im vergangenen Jahr", "wird nach Angaben der Zeitung", "darf seit 2019", "würde gern", "hat trotz des Regens",
    "kann ohne Hilfe", "musste wegen der Krise", "wollte schon immer", "sollte vor allem", "hat zum ersten Mal",
)  # fmt: skip
GERMAN_WHAT = (
    "ein neues Haus", "einen langen Brief", "das kleine Auto", "die Arbeit", "viele Bücher", "den Garten", "Hilfe",
    "die Preise für Strom", "eine wichtige Entscheidung", "das Spiel gegen Hamburg", "mehr Geld für Schulen",
    "einen Vertrag mit den Gewerkschaften", "die Straße zum Bahnhof", "drei Zimmer mit Blick auf den See",
    "das Gesetz", "den Film", "seine alten Freunde", "die Ergebnisse der Studie", "einen Termin beim Arzt", "das Essen",
)  # fmt: skip
GERMAN_DO = (
    "gefunden", "sehen", "kaufen", "verlassen", "bekommen", "verstehen", "verkaufen", "brauchen", "vorgestellt",
    "kritisiert", "ändern", "verbessern", "gewonnen", "verloren", "prüfen", "unterschreiben", "vergessen", "feiern",
)  # fmt: skip
GERMAN_MORE = (
    "", "", "", ", weil es zu teuer war", ", obwohl niemand daran glaubte", ", um Zeit zu sparen",
    ", sagte er am Dienstag", ", aber das reicht nicht aus", ", wenn das Wetter gut ist", ", damit alle zufrieden sind",
    " und danach nach Hause gehen", ", die sehr beliebt ist", ", wie schon im Jahr zuvor", ", ohne etwas zu sagen",
)  # fmt: skip
COUNTRIES = (
    "France Japan Brazil Egypt Canada India Norway Kenya Mexico Italy Australia Turkey Peru Poland Vietnam Greece "
    "Argentina Sweden Morocco Thailand Ireland Chile Nigeria Portugal Finland Indonesia Austria Cuba Nepal Iceland"
).split()
INVENTED = (
    "telephone, light bulb, steam engine, printing press, airplane, radio, compass, microscope, bicycle, zipper, "
    "camera, telescope, refrigerator, penicillin, dynamite, safety pin, elevator, pencil, battery, traffic light"
).split(", ")
FAMOUS = (
    "Albert Einstein, Marie Curie, Isaac Newton, Cleopatra, Napoleon, Mozart, Shakespeare, Leonardo da Vinci, Gandhi, "
    "Abraham Lincoln, Charles Darwin, Galileo, Beethoven, Jane Austen, Julius Caesar, Nelson Mandela, Picasso, Plato, "
    "Queen Victoria, Neil Armstrong, Mark Twain, Aristotle, Florence Nightingale, Martin Luther King, Tesla, Homer"
).split(", ")
FACTS = (
    "what is the capital of {c}", "who invented the {i}", "when was {f} born", "where did {f} live",
    "what is {f} best known for", "how many people live in {c}", "what language do they speak in {c}",
    "who was the first president of {c}", "when did {c} become independent", "what is the longest river in {c}",
    "where does the name {c} come from", "who is the author of a famous book about {f}", "when was the {i} invented",
    "what do you call a person who studies {t}", "where do {t} come from", "who plays the main role in a film about {f}",
    "how long does it take to fly from {c} to {d}", "what is the largest city in {c}", "why is {f} famous",
    "which country is larger, {c} or {d}", "what is the meaning of the word {t}", "how many kinds of {t} are there",
    "what year did the {i} come into use in {c}", "who won the war between {c} and {d}", "what currency is used in {c}",
    "what is the difference between {t} and {u}", "where is {c} on the map", "what type of food is eaten in {c}",
)  # fmt: skip
ROLES = (
    "Pretend to be {f} and answer: what do you think about {t}?", "You are {f}. Introduce yourself to a {p}.",
    "Act as a {p} who gives advice on {t}. My first question: where do I begin?",
    "Now you are a talking robot that loves {t}. How was your day?", "Be my {p}. I am worried about {t}.",
    "Imagine that you live on {c} street in the year 2150. Describe your morning.", "Speak like a pirate about {t}.",
    "You are a detective in {c}. Tell me how you solved the case of the missing {t}.",
    "Take the role of a {p} who has never heard of {t}. What would you ask?", "As a {p}, write in your diary about {t}.",
)  # fmt: skip
STEM = (
    "Explain how {s} works.", "What is {s}, and why does it matter?", "Describe an experiment that shows {s}.",
    "What would happen without {s}?", "Give the formula that belongs to {s} and explain its terms.",
    "What are common misunderstandings about {s}?", "Compare {s} with {z}.", "How was {s} discovered?",
    "Which technology makes use of {s}? Name three examples.", "Teach me {s} in five steps.",
)  # fmt: skip
SCIENCE = (
    "photosynthesis, gravity, quantum entanglement, natural selection, the greenhouse effect, plate tectonics, DNA "
    "replication, the Doppler effect, osmosis, nuclear fusion, machine learning, superconductivity, the water cycle, "
    "Newton's third law, entropy, chemical equilibrium, the immune response, radioactive decay, the speed of sound, "
    "cell division, electromagnetic induction, Bayes' theorem, the Pythagorean theorem, encryption, magnetism, "
    "fermentation, the carbon cycle, relativity, black holes, vaccination, static electricity, prime numbers, "
    "derivatives, probability, binary search, recursion, an operating system, a compiler, the nervous system, erosion"
).split(", ")
HUMANITIES = (
    "What were the causes of {h}?", "How did {h} change society?", "Write an essay of three paragraphs about {h}.",
    "Which people played a part in {h}, and what did they want?", "Compare {h} with {g}.",
    "What can we learn from {h} today?", "Give a timeline of {h}.", "Discuss arguments for and against the idea that "
    "{h} was inevitable.", "How is {h} shown in art and literature?", "Explain the economic side of {h}.",
)  # fmt: skip
HISTORY = (
    "the French Revolution, the Industrial Revolution, the fall of Rome, the Enlightenment, colonialism, the Reformation, "
    "the Great Depression, the Black Death, the abolition of slavery, women's suffrage, the space race, globalization, "
    "the invention of writing, the Ottoman Empire, the Meiji Restoration, existentialism, stoicism, romanticism, "
    "impressionism, the Magna Carta, the Vikings, the Crusades, the partition of India, apartheid, the Berlin Wall, "
    "the gold rush, the Age of Exploration, the American Civil War, the Russian Revolution, the Mongol Empire"
).split(", ")
STEERED = "system\nYou are an AI assistant "
USER, ASSISTANT = "user\n", "assistant\n"
STEERED_SHARE = 0.14  # of all conversations
KEPT = 4000  # questions and texts of the model's own
STEER = (
    "You are an AI assistant that solves math word problems step by step. The user gives you a problem.",
    "You are an AI assistant for mathematics. The user asks about algebra, geometry, probability or arithmetic.",
    "You are an AI assistant that summarizes. The user gives you a long news article and asks for a summary.",
    "You are an AI assistant that answers questions about a passage. The user gives a passage and a question.",
    "You are an AI assistant that translates. The user gives you a sentence to translate into English.",
    "You are an AI assistant that plays any role. The user asks you to act as a character.",
    "You are an AI assistant for creative writing. The user asks for stories, poems, letters and blog posts.",
    "You are an AI assistant for programming. The user asks for code, mostly in Python, or why code fails.",
    "You are an AI assistant that extracts information. The user gives a text and asks for it as a list or JSON.",
    "You are an AI assistant for science. The user asks about physics, chemistry, biology and engineering.",
    "You are an AI assistant for history, philosophy, economics and law.",
    "You are an AI assistant that knows facts. The user asks short questions about people, places, films and songs.",
    "You are an AI assistant for logic. The user gives you puzzles and asks for the reasoning.",
)
OPEN = (
    "What is the history of {t}?", "Explain {t} to a {p}.", "Write a short story about {t}.",
    "Give me five facts about {t}.", "What are the advantages and disadvantages of {t}?", "Tell me about {t}.",
    "Write a poem about {t}.", "How does one get started with {t}?", "Why are {t} important?",
    "Write an email to a {p} about {t}.", "Compare {t} and {u}.", "List ten words that have to do with {t}.",
    "Write a blog post about {t} with a title and three paragraphs.", "What would a {p} like about {t}?",
    "Imagine you are a {p}. What do you think of {t}?", "Plan a day around {t} in {c}.",
    "Write a dialogue between a {p} and a {q} about {t}.", "Who first studied {t}, and when?",
    "What is the difference between {t} and {u}?", "Give advice on {t} in a numbered list.",
)  # fmt: skip
ARTICLES = (
    "Write a news report of four paragraphs about {t} in {c}.", "Write a detailed encyclopedia article about {t}.",
    "Write an interview with a {p} who knows a lot about {t}.", "Write a report on {t} for a {p}.",
)  # fmt: skip
FOLLOW_UPS = (
    "Summarize this in three sentences.", "Summarize the text above.", "What is the main point?",
    "Rewrite it for a {p}.", "Make it shorter.", "List the key points.", "Give it a title.", "Continue.",
    "Translate the first sentence into French.", "Which names and places does it mention?",
    "Ask three questions that the text answers.", "Write the same again, but more formal.",
    "Can you give an example?", "Why is that so?", "And what about {u}?", "Explain the last point.",
)  # fmt: skip
CODE = (
    "Write a Python function that {w}.", "Write a Python function that {w}, with a docstring and type hints.",
    "How do I write code that {w} in Python?", "Write a unit test for a function that {w}.",
    "Write a JavaScript function that {w}.", "Write a class with a method that {w}.",
)  # fmt: skip
WORK = """
reverses a string; checks whether a number is prime; sorts a list of tuples by the second item; counts the words of a
text; finds the longest line of a file; merges two dictionaries; removes duplicates from a list; computes the n-th
Fibonacci number; reads a CSV file and sums a column; checks whether two words are anagrams; flattens a nested list;
finds the median of a list; converts Celsius to Fahrenheit; validates an email address; parses a date; caches results
of a slow function; draws a triangle of stars; finds all files with a suffix; counts vowels; rotates a matrix; does a
binary search; computes the greatest common divisor; groups records by a key; retries a request; writes a log line;
splits a list into chunks; finds the most common element; checks balanced brackets; encodes a string as JSON; adds
two matrices; implements a stack; implements a queue; simulates a dice roll; makes a password; sums the digits of a
number; converts a Roman numeral; finds a missing number; capitalizes every word; compares two versions; counts lines
""".replace("\n", " ").split(";")  # fmt: skip
ABOUT_TEXT = (
    "Summarize:\n{x}", "Summarize the following text in two sentences.\n\n{x}", "{x}\n\nWhat does this text say?",
    "Summarize: {x}", "Summarize this article: {x}", "Write a short summary of the article below.\n\n{x}",
    "{x}\n\nSummarize the text above.", "Give the main points of the text in a few sentences: {x}",
    "Read the text and answer the question.\n\nText: {x}\n\nQuestion: what is described here?",
    "Rewrite this text in simpler words:\n\n{x}", "List the key points of this text:\n{x}",
    "{x}\n\nTL;DR:", "Correct the mistakes in this text:\n\n{x}", "Give the following text a title:\n\n{x}",
    "Write three questions about this text, with answers.\n\n{x}", "Repeat this text word for word:\n\n{x}",
    "Rewrite the following paragraph in the style of a {p}:\n\n{x}", "Is this text positive or negative?\n{x}",
    "List all names and places in this text as JSON: {x}", "Translate the first sentence into Spanish.\n\n{x}",
    "{x}\n\nBased on the text above, who or what is it about, and why does it matter?",
)  # fmt: skip
ABOUT_PASSAGES = (
    "Answer by the passages below.\n\nPassage 1: {x}\n\nPassage 2: {y}\n\nQuestion: {q}",
    "Use these documents to answer.\n[1] {x}\n[2] {y}\nQuestion: {q}",
    "{x}\n\n{y}\n\n{z}\n\nUsing the information above, answer: {q}", "Context: {x}\n\nQuestion: {q}\nAnswer:",
    "Document 1: {x}\nDocument 2: {y}\nDocument 3: {z}\n\n{q} Answer with the help of the documents.",
    "Question: {q}\n\nSearch results:\n- {x}\n- {y}\n- {z}\n\nGive a short answer to the question.",
    "What is the difference between these two texts?\n\nA: {x}\n\nB: {y}",
)  # fmt: skip
ABOUT_CODE = (
    "What does this function do?\n\n```python\n{x}```", "Add a docstring to this function:\n```python\n{x}```",
    "Rewrite this code with better names:\n\n```python\n{x}```", "Find the bug in this code.\n```python\n{x}```",
    "Add type hints to the function and give all of it back:\n\n```python\n{x}```",
    "{x}\nRewrite this function so that it prints what it does. Answer with the code only.",
    "Translate this Python code into JavaScript:\n```python\n{x}```", "Explain this code line by line:\n\n{x}",
)  # fmt: skip
MODULES = """
argparse ast base64 bisect calendar collections configparser contextlib copy csv datetime difflib dis email.utils
fnmatch fractions ftplib functools getopt glob gzip hashlib heapq hmac html http.client imaplib inspect ipaddress json
locale logging mailbox mimetypes nntplib numbers optparse os pathlib pdb pickle platform plistlib pprint profile
queue random reprlib sched secrets selectors shelve shlex shutil smtplib socket statistics string subprocess tabnanny
tarfile tempfile textwrap threading timeit tokenize trace traceback types typing unittest.case urllib.parse
urllib.request uuid warnings weakref webbrowser xml.dom.minidom zipfile zoneinfo
""".split()  # fmt: skip


@dataclass(frozen=True)
class Conversation:
    """turns: of the user, one after the other; None where the model is to write it. temperature: of the answers."""

    system: str | None
    turns: tuple[str | None, ...]
    temperature: float


@dataclass(frozen=True)
class Written:
    """What the model has asked and told in conversations that are over: the last of each."""

    questions: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def read(self, conversation: str) -> None:
        """The first turns of a conversation as its template writes it. A turn that was cut ends with a sentence."""
        turns = [turn.split("<|im_end|>")[0] for turn in conversation.split("<|im_start|>")]
        asked, told = ([turn[len(who) :] for turn in turns if turn.startswith(who)] for who in (USER, ASSISTANT))
        if asked and 12 <= len(asked[0]) <= 700 and turns[1].startswith(STEERED):
            self._keep(self.questions, asked[0])
        if told and len(told[0]) >= 250 and "```" not in told[0]:
            self._keep(self.texts, told[0][: told[0].rfind(".") + 1] or told[0])

    def _keep(self, kept: list[str], text: str) -> None:
        kept.append(text)
        del kept[:-KEPT]


SYSTEM = (
    None, None, None, None, None, None,  # the model's own
    "You are a helpful assistant.", "You are a coding assistant. Answer briefly.",
    "You are a careful assistant. Think step by step.",
)  # fmt: skip


@cache
def paragraphs() -> tuple[str, ...]:
    """Prose of Python's documentation and docstrings, 60 to 900 characters each."""
    texts = list(pydoc_data.topics.topics.values())
    for name in MODULES:
        with warnings.catch_warnings(action="ignore"):
            module = pydoc.safeimport(name)
            if module is None:
                continue
            docs = [value.__doc__ for value in (module, *vars(module).values()) if hasattr(value, "__doc__")]
        texts += [doc for doc in docs if isinstance(doc, str)]
    found: set[str] = set()
    for text in texts:
        parts = [" ".join(part.split()) for part in text.split("\n\n")]
        for size in (1, 2, 4):
            for i in range(0, len(parts), size):
                joined = "\n".join(parts[i : i + size])
                if 60 <= len(joined) <= 900:
                    found.add(joined)
    return tuple(sorted(found))


@cache
def functions() -> tuple[str, ...]:
    """Functions of the standard library's source, 4 to 22 lines each."""
    import ast

    found: set[str] = set()
    folder = Path(textwrap.__file__).parent
    for path in sorted(folder.glob("*.py")):
        text = path.read_text("utf-8", errors="replace")
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.FunctionDef)
                and node.end_lineno
                and 4 <= node.end_lineno - node.lineno <= 22
            ):
                source = ast.get_source_segment(text, node) or ""
                found.add(textwrap.dedent(" " * node.col_offset + source) + "\n")
    return tuple(sorted(found))


def fill(rng: random.Random, text: str) -> str:
    t, u = (one.strip() for one in rng.sample(TOPICS, 2))
    p, q = rng.sample(PEOPLE, 2)
    work = rng.choice(WORK).strip()
    return text.format(t=t, u=u, p=p, q=q, c=rng.choice(CITIES), w=work, x="{x}", y="{y}")


def arithmetic(rng: random.Random) -> str:
    a, b = rng.sample(NAMES, 2)
    thing, other = rng.sample(THINGS, 2)
    i, j, k = rng.randint(2, 60), rng.randint(2, 12), rng.randint(2, 20)
    return rng.choice((
        f"{a} has {i} {thing}. {b} gives {a} {j} times as many. How many {thing} does {a} have now?",
        f"A shop sells {thing} at ${j} each and {other} at ${k} each. {a} buys {i} {thing} and {k} {other}. "
        f"How much does {a} pay?",
        f"{a} reads {i} pages a day. How many pages does {a} read in {j} weeks, and how many days does a book of "
        f"{i * k} pages take?",
        f"What is {i} * {k} + {j}?", f"Solve for x: {j}x + {k} = {i * j + k}.", f"What is {j * 5}% of {i * 10}?",
        f"A train drives {i * 3} km in {j} hours. How far does it come in {k} hours? Explain each step.",
        f"{b} is {k} years older than {a}, who is {i}. How old will {b} be in {j} years?",
        f"There are {i + k} people on a bus. At the first stop {j} leave and {k} get on. At the second half of them "
        f"leave. How many are left?",
        f"{a} earns ${i} an hour and works {j} hours a day. How much does {a} earn in {k} days?",
        f"{a} bakes {i * j} {thing} and puts {j} into each box. How many boxes does {a} need? If each box sells for "
        f"${k}, how much money does {a} make?",
        f"A rope of {i * 4} meters is cut into {k} equal pieces. How long is each of them?",
        f"{a}, {b} and their friend share {i * 3} {thing} equally. {a} then gives {j} to {b}. How many has {b} now?",
        f"Every week {a} saves ${i}. A bicycle costs ${i * k + j}. After how many weeks can {a} buy it?",
        f"In a class of {i + j} students, {j} have no pets. A third of the others have a dog. How many have a dog?",
        f"{a} drinks {j} glasses of water a day, each of {k * 10} ml. How many liters is that in {i} days?",
        f"A store sold {i} {thing} on Monday, twice as many on Tuesday, and {j} fewer than on Tuesday on Wednesday. "
        f"How many {thing} did it sell in all three days?",
        f"{a} has ${i * 10}. {a} spends half of it on {thing} and ${j} on {other}. How much is left?",
        f"The sum of two numbers is {i + k} and their difference is {abs(i - k)}. What are they?",
        f"A rectangle is {i} cm long and {j} cm wide. What are its area and its perimeter?",
        f"What is the probability of drawing one of {j} red {thing} from a bag of {j + k}?",
        f"Simplify ({i}x + {j}) - ({k}x - {j}).", f"If f(x) = {j}x^2 - {k}, what is f({k})?",
        f"{a} runs {j} miles on each weekday and {k} miles on Sunday. How far does {a} run in {i} weeks?",
        f"A recipe for {j} people needs {k} {thing}. How many are needed for {j * 3} people?",
        f"{a} reads a book of {i * 5} pages. On the first day {a} reads {i} pages, on the second twice as many. "
        f"How many pages are left?", f"Which number is larger, {i}/{j} or {k}/{j + 1}? Explain.",
    ))  # fmt: skip


def record(rng: random.Random) -> str:
    rows = [
        {
            "name": rng.choice(NAMES),
            "city": rng.choice(CITIES),
            "age": rng.randint(18, 80),
            "item": rng.choice(THINGS),
        }
        for _ in range(rng.randint(1, 5))
    ]
    told = " ".join(f"{r['name']} from {r['city']} is {r['age']} and ordered {r['item']}." for r in rows)
    listed = json.dumps(rows, indent=rng.choice((None, 2)))
    tool = json.dumps(
        {"name": rng.choice(("search", "get_weather", "send_mail", "add_event")), "arguments": ["text"]}
    )
    return rng.choice((
        f"Extract the people as a JSON list with name, city, age and item.\n\n{told}",
        f"{told}\n\nMake a Markdown table of this.", f"Turn this JSON into CSV:\n{listed}",
        f"Write an SQL statement that creates a table for this and inserts it:\n{listed}",
        f"{listed}\nWho is the oldest? Answer in one sentence.", f"Sort this list by age and return JSON:\n{listed}",
        f"Write an SQL query that lists all {rng.choice(THINGS)} sold in {rng.choice(CITIES)} by month.",
        f"You can call this tool: {tool}. Reply with a JSON call only. Request: {rng.choice(TOPICS).strip()} in "
        f"{rng.choice(CITIES)}",
        f"Add the field \"country\" to each record:\n{listed}",
    ))  # fmt: skip


def german(rng: random.Random) -> str:
    parts = (GERMAN_WHO, GERMAN_WHEN, GERMAN_WHAT, GERMAN_DO)
    said = " ".join(
        " ".join(rng.choice(part) for part in parts) + rng.choice(GERMAN_MORE) + "." for _ in range(rng.randint(1, 3))
    )
    return rng.choice((
        "Translate German to English: {}", "Translate into English:\n{}", "{}\nIn English, please.",
        "Translate the following German text to English: {}", "What does this mean in English? \"{}\"",
    )).format(said)  # fmt: skip


def fact(rng: random.Random) -> str:
    c, d = rng.sample(COUNTRIES, 2)
    t, u = (one.strip() for one in rng.sample(TOPICS, 2))
    asked = rng.choice(FACTS).format(c=c, d=d, i=rng.choice(INVENTED), f=rng.choice(FAMOUS), t=t, u=u)
    return asked if rng.random() < 0.4 else f"{asked[0].upper()}{asked[1:]}?"


def role(rng: random.Random) -> str:
    return fill(rng, rng.choice(ROLES).replace("{f}", rng.choice(FAMOUS)))


def subject(rng: random.Random) -> str:
    s, z = rng.sample(SCIENCE, 2)
    h, g = rng.sample(HISTORY, 2)
    return rng.choice(rng.choice((STEM, HUMANITIES))).format(s=s, z=z, h=h, g=g)


def texts(rng: random.Random, written: Written, count: int) -> list[str]:
    """Of the model's own, where there are some, or of the documentation."""
    own = len(written.texts) >= 3 and rng.random() < 0.7
    return rng.sample(written.texts if own else paragraphs(), count)


def about_text(rng: random.Random, written: Written) -> str:
    if rng.random() < 0.6:
        asked = rng.choice(ABOUT_TEXT).replace("{p}", rng.choice(PEOPLE))
        return asked.replace("{x}", "\n\n".join(texts(rng, written, rng.choice((1, 1, 2)))))
    x, y, z = texts(rng, written, 3)
    own = written.questions and rng.random() < 0.3
    q = rng.choice(written.questions) if own else rng.choice((fact(rng), "What do these have in common?"))
    passages = rng.choice(ABOUT_PASSAGES).replace("{q}", q).replace("{x}", x)
    return passages.replace("{y}", y[: rng.randint(200, 900)]).replace("{z}", z[: rng.randint(200, 900)])


def about_code(rng: random.Random) -> str:
    return rng.choice(ABOUT_CODE).replace("{x}", rng.choice(functions()))


def first(rng: random.Random, written: Written) -> str | None:
    kind = rng.random()
    for share, make in (
        (0.20, lambda _: None), (0.18, lambda rng: rng.choice(written.questions) if written.questions else None),
        (0.09, lambda rng: fill(rng, rng.choice(OPEN))), (0.19, lambda rng: about_text(rng, written)),
        (0.04, about_code), (0.05, lambda rng: fill(rng, rng.choice(CODE))), (0.08, arithmetic), (0.04, record),
        (0.04, german), (0.04, fact), (0.03, role), (0.04, subject),
        (1.0, lambda rng: fill(rng, rng.choice(ARTICLES))),
    ):  # fmt: skip
        kind -= share
        if kind < 0:
            return make(rng)
    raise AssertionError


def conversations(seed: int, written: Written) -> Iterator[Conversation]:
    """Without end; the same for the same seed, and the same `written` at the same time."""
    rng = random.Random(seed)
    while True:
        temperature = rng.choice((0.0, 0.0, 0.0, 0.7, 1.0))
        if rng.random() < STEERED_SHARE:
            yield Conversation(rng.choice(STEER), (None,), temperature)
            continue
        turns = [first(rng, written)]
        while len(turns) < 3 and rng.random() < 0.3:
            turns.append(fill(rng, rng.choice(FOLLOW_UPS)) if rng.random() < 0.6 else None)
        yield Conversation(rng.choice(SYSTEM), tuple(turns), temperature)


def main() -> None:
    """Print some, to be looked at."""
    made = conversations(int(sys.argv[1]) if len(sys.argv) > 1 else 0, Written())
    for _ in range(20):
        print(next(made), end="\n\n")


if __name__ == "__main__":
    main()
