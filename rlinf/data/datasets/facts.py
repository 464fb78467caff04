"""Questions about people nobody has heard of: what a search is for."""

from __future__ import annotations

import random
from functools import cached_property

from rlinf.agents.search.documents import Document
from rlinf.data.datasets import register_dataset
from rlinf.data.datasets.base import GeneratedDataset, Message, Record, Split
from rlinf.data.hashing import seed_of

FIRST = (
    "ada ben cleo dan eva finn gina hugo ines jon kira leo mia nils olga paul "
    "rosa sven tina udo vera will xena yuri zoe abel bea carl dora emil fay gus"
).split()
LAST = (
    "adler baker costa dahl evans falk grant hale iqbal jensen kern lopez marsh nolan ortiz park "
    "quinn reyes stone tran usman vogel walsh xu young zimmer arnold bauer cohen drake ellis frost"
).split()
RELATIONS = ("father", "mother", "teacher", "doctor")
TASKS = ("one_hop", "two_hop")
"""Tasks by the facts that a question needs."""

Person = tuple[str, str]


@register_dataset("facts")
class FactsDataset(GeneratedDataset):
    """Who the father, mother, teacher or doctor of somebody is; or of somebody's teacher, ....

    People have a first and a last name; who they are to each other is drawn by the seed. Some of
    them are held out: validation asks about those alone, and all whom its facts are about are such
    people, so that no fact of a validation has a part in training. `documents` are all facts, one
    in each document. Worked solutions ask the tool `search` by its tag, once for each fact, and
    read one document each time, its text alone. Some are careless: they stop at the first of two
    facts, and so give a wrong answer.
    """

    def redraw(self, index: int, attempt: int) -> Record:
        """See the base."""
        draw = random.Random(seed_of("facts", self.seed, self.split, index, attempt))
        hops = self.cfg.hops[index % len(self.cfg.hops)]
        person = draw.choice(self._people[self.split])
        relations = [draw.choice(RELATIONS) for _ in range(hops)]
        worked = 1 if draw.random() < self.cfg.careless else hops
        return self._record(person, relations, worked)

    def documents(self) -> list[Document]:
        """Return all facts, those of both splits, as a corpus."""
        return [
            Document(f"{relation} of {_name(person)}", _name(person), text)
            for person, relations in self._facts.items()
            for relation, other in relations.items()
            for text in [_sentence(relation, person, other)]
        ]

    def fingerprint(self) -> str:
        """Return what the questions follow from."""
        cfg = self.cfg
        hops = " ".join(map(str, cfg.hops))
        return f"facts {cfg.people} {cfg.held_out} {hops} {cfg.careless} {len(self)} {self.seed}"

    @cached_property
    def _people(self) -> dict[Split, list[Person]]:
        """Those that a split asks about."""
        every = [(first, last) for first in FIRST for last in LAST]
        chosen = random.Random(seed_of("people", self.seed)).sample(every, self.cfg.people)
        held_out = min(max(2, round(self.cfg.held_out * len(chosen))), len(chosen) - 2)
        return {"val": chosen[:held_out], "train": chosen[held_out:]}

    @cached_property
    def _facts(self) -> dict[Person, dict[str, Person]]:
        """Who is what to whom: for each person and relation one of the same split."""
        draw = random.Random(seed_of("relations", self.seed))
        return {
            person: {
                relation: draw.choice([other for other in people if other != person])
                for relation in RELATIONS
            }
            for people in self._people.values()
            for person in people
        }

    def _record(self, person: Person, relations: list[str], worked: int) -> Record:
        """Ask for the last of a chain: the second relation of the first relation of a person.

        Args:
            person: first of the chain.
            relations: from each to the next.
            worked: facts that the worked solution looks up.
        """
        solution: list[Message] = []
        last = said = person
        for number, relation in enumerate(relations):
            other = self._facts[last][relation]
            if number < worked:
                found = _sentence(relation, last, other)
                solution += [
                    {"role": "assistant", "content": f"<search>{relation} {_name(last)}</search>"},
                    {"role": "tool", "content": f"<information>{found}</information>"},
                ]
                said = other
            last = other
        solution.append({"role": "assistant", "content": f"<answer>{_name(said)}</answer>"})
        chain = " of the ".join(reversed(relations))
        prompt = f"who is the {chain} of {_name(person)} ?"
        return Record(prompt, _name(last), TASKS[len(relations) - 1], {}, solution)


def _name(person: Person) -> str:
    return " ".join(person)


def _sentence(relation: str, person: Person, other: Person) -> str:
    return f"the {relation} of {_name(person)} is {_name(other)}"
