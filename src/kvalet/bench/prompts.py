"""Chats for demonstrations and measurements: about 160 prompt tokens each, no page in common.

Each has a system message of its own, so the chats differ within their first page and nothing that
one computes helps another.
"""

from typing import Any

_CHATS = (
    (
        "harbour",
        "You are a novelist who writes calm, detailed prose.",
        "Write the opening chapter of a novel set in a small harbour town in the north. The main "
        "character is Ida, a retired lighthouse keeper who has just been told that the old tower "
        "will be sold. Describe the morning on which the letter arrives, the weather over the "
        "water, the people she meets on her way to the market, and the conversation she has with "
        "the young fisherman who wants to buy her boat. Let the reader feel how well she knows "
        "every stone of the quay. Do not end the story: stop at a moment where she has to decide "
        "whether to answer the letter or to throw it into the sea, and tell us what she is "
        "thinking.",
    ),
    (
        "garden",
        "As an experienced gardener, you give practical advice to beginners.",
        "I have just moved into a house with a neglected garden of about two hundred square "
        "metres. The soil is heavy clay, half of the ground lies in the shade of two old apple "
        "trees, and there is a slope towards the north where water collects after rain. I would "
        "like to grow vegetables for a family of four, keep the apple trees, and have a corner "
        "with flowers for bees. Please make a plan for the first year, month by month: what to do "
        "with the soil, what to sow and when, which plants like the shade, how to drain the wet "
        "corner, and which mistakes beginners make most often. I can spend ten hours a week on it.",
    ),
    (
        "history",
        "Answer as a patient history teacher who likes to explain causes.",
        "Explain to a class of sixteen-year-olds how the printing press changed Europe between "
        "1450 and 1600. Start with how books were made before, who owned them and what they cost. "
        "Then go through the invention itself, the spread of workshops from town to town, the "
        "price of paper, and the new trades that appeared. Show how printing touched religion, "
        "science, law and the languages people spoke at home, and give one concrete example for "
        "each. Finish with a discussion of what printing did not change, and with three "
        "questions that the pupils could argue about in pairs before the next lesson. Use plain "
        "words throughout.",
    ),
    (
        "kitchen",
        "Speak like a cook who has run a small restaurant for twenty years.",
        "A friend wants to open a place with only eight tables in a quiet street, and asks you for "
        "a complete plan. Talk about the menu for the first season, with a few starters, main "
        "courses and desserts that can be prepared by two people, about buying from farms nearby, "
        "and about how to keep waste low. Describe an ordinary day from the first delivery in the "
        "morning to cleaning the stove at night, who does what, and how long it takes. Then "
        "explain how to set prices, how to treat a guest who complains, and what you would do "
        "differently if you could begin again. Be honest about the hard parts.",
    ),
)

_NUM_LETTERS = 10


def pressing_chats(
    num_tokens: int, count: int = 4, *, first: int = 0
) -> list[tuple[str, dict[str, Any]]]:
    """Names and chat completion bodies; greedy, and exactly `num_tokens` long. Beyond four, the
    subjects come again with another opening; `first`: how many there were before."""
    return [_chat(index, num_tokens) for index in range(first, first + count)]


def small_request(number: int) -> dict[str, Any]:
    """A short question with a short answer."""
    question = {"role": "user", "content": f"{number} plus {number + 1} is?"}
    return {"messages": [question], "max_tokens": 12, "temperature": 0, "ignore_eos": True}


def mixed_request(number: int, num_words: int, num_tokens: int) -> dict[str, Any]:
    """About `num_words` words, other ones from the first on for each number."""
    words = " ".join(letter for _, _, letter in _CHATS).split()
    skipped = 37 * number % len(words)
    told = " ".join((words[skipped:] + words)[:num_words])
    message = {"role": "user", "content": f"{number}. Go on with this letter: {told}"}
    return {
        "messages": [message],
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


def long_messages(number: int) -> list[dict[str, str]]:
    """Of about 1,400 tokens; other ones from the first word on for each number."""
    letters = [_CHATS[(number + i) % len(_CHATS)][2] for i in range(_NUM_LETTERS)]
    user = "\n\n".join(f"Letter {i + 1}: {letter}" for i, letter in enumerate(letters))
    system = f"{number}. You answer letters, each in one paragraph."
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def _chat(index: int, num_tokens: int) -> tuple[str, dict[str, Any]]:
    name, system, user = _CHATS[index % len(_CHATS)]
    again = index // len(_CHATS)
    messages = [
        {"role": "system", "content": f"{again + 1}. {system}" if again else system},
        {"role": "user", "content": user},
    ]
    body = {
        "messages": messages,
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    return f"{name} {again + 1}" if again else name, body
