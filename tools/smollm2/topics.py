"""What prompts are made of: subjects, people and things, ways to ask, and modules of the standard library."""

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
SYSTEM = (
    None, None, None, None, None, None,  # the model's own
    "You are a helpful assistant.", "You are a coding assistant. Answer briefly.",
    "You are a careful assistant. Think step by step.",
)  # fmt: skip
