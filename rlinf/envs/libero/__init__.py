"""LIBERO: language-described tasks of a Panda arm on robosuite."""
