"""Workflows: durable functions whose runs survive crashes, deploys, and years of waiting."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.kernel.source import InvalidDocument, Problem
    from duly.workflows.advance import WorkflowFailed
    from duly.workflows.context import WorkflowContext
    from duly.workflows.door import Branch, Workflows
    from duly.workflows.pending import NotAwaited, Pending
    from duly.workflows.step import (
        Approval,
        Changed,
        ChildFailed,
        Kind,
        Run,
        Signal,
        Status,
        Step,
        StepFailed,
        UnknownWorkflow,
        WaitTimedOut,
    )
    from duly.workflows.workflow import Workflow, WorkflowCall

#: The type of the job that is a run.
ENGINE_RUN = "ENGINE_RUN"

__all__ = [
    "Approval",
    "Branch",
    "Changed",
    "ChildFailed",
    "InvalidDocument",
    "Kind",
    "NotAwaited",
    "Pending",
    "Problem",
    "Run",
    "Signal",
    "Status",
    "Step",
    "StepFailed",
    "UnknownWorkflow",
    "WaitTimedOut",
    "Workflow",
    "WorkflowCall",
    "WorkflowContext",
    "WorkflowFailed",
    "Workflows",
]

#: Where these names live; each module is imported when a name of it is first asked for, since every application knows the room's
#: name for its runs and most have none.
_HOMES = {
    "duly.kernel.source": ("InvalidDocument", "Problem"),
    "duly.workflows.advance": ("WorkflowFailed",),
    "duly.workflows.context": ("WorkflowContext",),
    "duly.workflows.door": ("Branch", "Workflows"),
    "duly.workflows.pending": ("NotAwaited", "Pending"),
    "duly.workflows.step": (
        "Approval",
        "Changed",
        "ChildFailed",
        "Kind",
        "Run",
        "Signal",
        "Status",
        "Step",
        "StepFailed",
        "UnknownWorkflow",
        "WaitTimedOut",
    ),
    "duly.workflows.workflow": ("Workflow", "WorkflowCall"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            found = getattr(import_module(home), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module 'duly.workflows' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
