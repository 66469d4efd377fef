"""Pod templates: which containers hold a GPU, and how their programs are started. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.launch.verdict import FAULT_CODE
from gpufleet.quarantine.lint.finding import Change
from gpufleet.quarantine.lint.launcher import ENTRY_POINT, Command, Start, command, launched
from gpufleet.quarantine.lint.tree import Tree

_RESOURCES = ("nvidia.com/", "volcano.sh/vgpu")
"""How device plugins name GPUs, slices and shares of them."""
_ANNOTATIONS = ("gpu-fraction", "gpu-memory")
"""KAI's shares of a GPU, which no resource tells of."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container that holds a GPU."""

    name: str
    tree: Tree
    command: Command

    def launched(self, code: int = FAULT_CODE) -> Change:
        """Its command with the launcher before it."""
        words = self.tree.at("command").texts() or [ENTRY_POINT]
        return Change((*self.tree.path, "command"), launched(words, code))


def holders(template: Tree) -> tuple[Container, ...]:
    """The containers of a pod template that hold a GPU. Raises ShapeError."""
    notes = template.at("metadata", "annotations").mapping()
    everything = any(name in notes for name in _ANNOTATIONS)
    spec = template.at("spec")
    inits = [each for each in spec.at("initContainers").items() if _holds(each)]
    mains = [each for each in spec.at("containers").items() if everything or _holds(each)]
    return tuple(container(each) for each in (*inits, *mains))


def container(tree: Tree) -> Container:
    """One container, whatever it holds. Raises ShapeError."""
    words = tree.at("command").texts()
    return Container(tree.at("name").text(), tree, command([*words, *tree.at("args").texts()], whole=bool(words)))


def bare(containers: tuple[Container, ...]) -> tuple[Container, ...]:
    """Those that are not seen to be started by the launcher."""
    return tuple(each for each in containers if each.command.start is not Start.LAUNCHED)


def how_started(each: Container) -> str:
    """Why the launcher is not seen, as a sentence."""
    match each.command.start:
        case Start.SWALLOWED:
            return f"container {each.name} starts the launcher in a shell that ends with another exit status"
        case Start.UNSEEN:
            return f"what container {each.name} starts is in its image, which no manifest shows"
        case _:
            return f"container {each.name} is not started by the launcher"


def _holds(tree: Tree) -> bool:
    resources = tree.at("resources")
    if resources.at("claims").items():
        return True
    for part in ("limits", "requests"):
        for name, amount in resources.at(part).mapping().items():
            if str(name).startswith(_RESOURCES) and str(amount) not in {"0", "None"}:
                return True
    return False
