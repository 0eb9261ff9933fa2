"""Workflows: durable functions whose runs survive crashes, deploys, and years of waiting."""

from duly.kernel.source import InvalidDocument, Problem
from duly.workflows.advance import WorkflowFailed
from duly.workflows.context import Pending, WorkflowContext
from duly.workflows.door import Branch, Workflows
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

__all__ = [
    "Approval",
    "Branch",
    "Changed",
    "ChildFailed",
    "InvalidDocument",
    "Kind",
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
