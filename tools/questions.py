"""The suite `chat`: eight short questions for a tiny model, eight with more to say for a real one."""

QUESTIONS = (
    "What is a dictionary in Python?",
    "How do I open a file and read its lines?",
    "What does the yield statement do?",
    "How is a list sorted?",
    "What is the difference between a list and a tuple?",
    "How do I catch an exception?",
    "What does the csv module do?",
    "How do I join two strings?",
    "Explain how a hash table works, and when looking something up in it becomes slow.",
    "My program reads a CSV file of two gigabytes and runs out of memory. What can I change?",
    "Write a polite e-mail that moves a meeting from Tuesday to Thursday, and suggest two times.",
    "Compare SQLite and PostgreSQL for a small web shop, with pros and cons, and recommend one.",
    "Write a Python function that merges overlapping intervals, with a docstring and three test cases.",
    "What should I look at first when a Linux server suddenly becomes slow? Give the commands.",
    "Plan three days in Lisbon for someone who likes architecture and walks a lot.",
    "Explain compound interest to a twelve-year-old, with numbers for a hundred euros over ten years.",
)
