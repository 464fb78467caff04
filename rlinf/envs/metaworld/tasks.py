"""The tasks of MetaWorld in words, and the sets of them."""

from __future__ import annotations

from rlinf.config.suggest import near

DESCRIPTIONS = {
    "assembly-v3": "pick up the wrench and put its ring over the peg",
    "basketball-v3": "pick up the ball and drop it into the basket",
    "bin-picking-v3": "take the object out of one bin and put it into the other",
    "box-close-v3": "pick up the lid and close the box with it",
    "button-press-topdown-v3": "press the button down from above",
    "button-press-topdown-wall-v3": "reach over the wall and press the button down from above",
    "button-press-v3": "press the button on the side of the box",
    "button-press-wall-v3": "reach around the wall and press the button",
    "coffee-button-v3": "press the button of the coffee machine",
    "coffee-pull-v3": "pull the mug away from the coffee machine",
    "coffee-push-v3": "push the mug under the coffee machine",
    "dial-turn-v3": "turn the dial half a turn",
    "disassemble-v3": "pick up the wrench and lift its ring off the peg",
    "door-close-v3": "close the door",
    "door-lock-v3": "turn the lock so that the door is locked",
    "door-open-v3": "open the door by its handle",
    "door-unlock-v3": "turn the lock so that the door is unlocked",
    "drawer-close-v3": "push the drawer shut",
    "drawer-open-v3": "pull the drawer open",
    "faucet-close-v3": "turn the faucet handle until it is closed",
    "faucet-open-v3": "turn the faucet handle until it is open",
    "hammer-v3": "pick up the hammer and drive the nail into the board",
    "hand-insert-v3": "put the gripper into the hole",
    "handle-press-side-v3": "press the handle down from the side",
    "handle-press-v3": "press the handle down",
    "handle-pull-side-v3": "pull the handle up from the side",
    "handle-pull-v3": "pull the handle up",
    "lever-pull-v3": "pull the lever up by a quarter of a turn",
    "peg-insert-side-v3": "pick up the peg and insert it into the hole in the side",
    "peg-unplug-side-v3": "pull the peg out of the hole in the side",
    "pick-out-of-hole-v3": "take the puck out of the hole and bring it to the goal",
    "pick-place-v3": "pick up the puck and place it at the goal",
    "pick-place-wall-v3": "pick up the puck, lift it over the wall and place it at the goal",
    "plate-slide-back-side-v3": "pull the plate out of the cabinet sideways",
    "plate-slide-back-v3": "pull the plate back out of the cabinet",
    "plate-slide-side-v3": "slide the plate sideways into the cabinet",
    "plate-slide-v3": "slide the plate into the cabinet",
    "push-back-v3": "pull the puck back to the goal",
    "push-v3": "push the puck to the goal",
    "push-wall-v3": "push the puck around the wall to the goal",
    "reach-v3": "move the gripper to the goal",
    "reach-wall-v3": "move the gripper around the wall to the goal",
    "shelf-place-v3": "pick up the puck and place it on the shelf",
    "soccer-v3": "push the ball into the net",
    "stick-pull-v3": "pick up the stick and pull the thermos with it",
    "stick-push-v3": "pick up the stick and push the thermos with it",
    "sweep-into-v3": "sweep the puck into the hole",
    "sweep-v3": "sweep the puck off the table",
    "window-close-v3": "slide the window shut",
    "window-open-v3": "slide the window open",
}
"""What is to be done, by task."""

STATE_DIM = 39
"""Two frames of hand, gripper and objects, and the goal."""
GOAL_DIM = 3
"""Entries of the goal, the last ones."""

SETS = ("MT10", "MT25", "MT50")
"""Names that stand for many tasks."""


def known_task(name: str) -> str:
    """Return the name of a task or of one of `SETS` as it is.

    Raises:
        ValueError: There is no such task; the message lists the near ones.
    """
    if name in DESCRIPTIONS or name.upper() in SETS:
        return name
    known = [*DESCRIPTIONS, *SETS]
    wanted = name if name.rpartition("-")[2] == "v3" else f"{name.removesuffix('-v2')}-v3"
    close = near(wanted, known, 5)
    hint = f"near ones: {', '.join(close)}" if close else f"known: {', '.join(known)}"
    raise ValueError(f"MetaWorld has no task '{name}'; {hint}")


def different_tasks(names: list[str]) -> list[str]:
    """Return names of tasks as they are.

    Raises:
        ValueError: One of them occurs twice.
    """
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"{', '.join(twice)} is named more than once; name each task once, and set "
            "start_sampler to play some more often than others"
        )
    return names


def tasks_of(*names: str) -> list[str]:
    """Return the tasks that names stand for.

    Args:
        names: Tasks, or of `SETS`.

    Returns:
        Names of tasks; those of a set are in MetaWorld's order.

    Raises:
        ValueError: There is no such task, and the message lists the near ones; or one of them
            occurs twice.
    """
    found: list[str] = []
    for name in names:
        if known_task(name) in DESCRIPTIONS:
            found.append(name)
            continue
        from metaworld import env_dict

        found += getattr(env_dict, f"{name.upper()}_V3")
    return different_tasks(found)
