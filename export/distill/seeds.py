"""The words that self-written text starts from: openings of questions, and tasks over passages."""

from __future__ import annotations

OPENINGS = (
    "What", "What is", "How", "How do", "How can I", "Why", "Why do", "When", "Where", "Who",
    "Which", "Is", "Are", "Can you", "Could you", "Write", "Write a short", "Explain", "Describe",
    "Give me", "List", "Tell me", "Compare", "Suggest", "Create", "I", "I want to", "My", "In",
    "The", "If", "A", "Name", "Please", "Let's", "Help me", "Imagine", "Pretend", "Draft an email",
    "Write a poem", "Write a Python function", "What are the", "Who was the first", "How many",
    "Who wrote", "Who played", "When did", "What does", "Act as", "You are", "Does", "Should I",
)  # fmt: skip

ARTICLE_OPENINGS = (
    "Write a long news article about", "Write a detailed report on", "Write a long story about",
    "Write a biography of", "Write an encyclopedia article about", "Write a detailed history of",
    "Write an essay on", "Write a news report in which the police",
    "Write a news article about a company that", "Write a long review of",
)  # fmt: skip

SUMS = (
    (
        "{name} has {a} {things} and buys {b} more. Then {name} gives {c} to a friend. "
        "How many {things} does {name} have now?"
    ),
    "A box holds {a} {things}. How many {things} are in {b} boxes, and in {c} boxes?",
    "{name} sells {a} {things} for ${b} each and spends ${c} on the way. How much is left?",
    (
        "A shop had {a} {things}. On Monday it sold {b} of them, on Tuesday twice as many as {c}. "
        "How many are left?"
    ),
    "What is {a} + {b} * {c}? Explain each step.",
    "{name} reads {b} pages a day. How many days does a book of {a} pages take?",
    "If {b} {things} cost ${a}, what do {c} {things} cost?",
    "{name} earns ${b} an hour and works {c} hours a week. How much is that in {a} weeks?",
    "Solve for x: {b}x + {c} = {a}.",
    "A train drives {a} miles in {b} hours. How far does it get in {c} hours?",
)
SUM_OPENINGS = (
    "{name} has {a}", "A farmer has {a}", "A train leaves", "There are {a} {things}",
    "{name} buys {b} {things} for ${a}", "If {name} works {b} hours", "A class of {a} students",
    "{name} is {b} years old", "In a box there are {a} {things}", "A recipe needs {b} cups",
)  # fmt: skip
NAMES = ("Anna", "Tom", "Maria", "James", "Wei", "Fatima", "Olga", "Sam", "Lucia", "Ken")
THINGS = ("apples", "books", "pencils", "tickets", "eggs", "chairs", "cards", "bottles", "cookies")

SUMMARIES = (
    "Summarize: {text}",
    "Summarize the following text in two sentences.\n\n{text}",
    "{text}\n\nWhat is the main point of this text?",
    "Give a short summary of this article:\n\n{text}",
    "List the key points of the text below.\n\n{text}",
)
COPIES = (
    "Repeat the following text word for word:\n\n{text}",
    "Quote the sentence of this text that matters most.\n\n{text}",
    "Write the sentences of this text as a numbered list.\n\n{text}",
    "Copy this text and correct its mistakes:\n\n{text}",
)
REWRITES = (
    "Rewrite this in simpler words:\n\n{text}",
    "Rewrite the following text in a formal tone.\n\n{text}",
    "Make this text shorter:\n\n{text}",
    "Turn this into an email:\n\n{text}",
    "Continue this text:\n\n{text}",
)
EXTRACTIONS = (
    "Which people and places does this text name?\n\n{text}",
    "Write three questions that this text answers.\n\n{text}",
    "{text}\n\nIs the tone of this text positive or negative? Give reasons.",
)
DOCUMENTS = (
    "Answer from these documents.\n\n{documents}\n\nQuestion: {question}",
    "{documents}\n\n{question}",
    "Here is what I found:\n\n{documents}\n\nUsing only that, {question}",
)
LANGUAGES = ("German", "French", "Spanish", "Italian")
TRANSLATE = "Translate {source} to {to}: {text}"
