"""Pipeline parallelism that you can run: plans as data, predicted and measured.

    schedules   what runs where, in which order      build, Schedule, validate, check
    analysis    how long, how much                   simulate, Timeline, critical_path, gaps, formulas,
                                                     in_flight, ledger, partition, choose
    runtime     doing it, on real ranks              run, train, evaluate, profile, reference_step
    lab         what a learner sees                  gantt, grade, on_ranks, doctor, explore, draw_schedule

    plan = build("1f1b", p=4, m=8) ──► simulate(plan, costs) ──► Timeline (predicted) ──┐
              └──────────────────────► run(plan, model, data) ─► Timeline (measured) ───┴─► gantt

Importing this loads neither torch nor matplotlib: names of runtime and lab are loaded when first used.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from ppcourse.analysis import formulas as formulas
from ppcourse.analysis.activations import layer_activations as layer_activations
from ppcourse.analysis.critical_path import critical_links as critical_links
from ppcourse.analysis.critical_path import critical_path as critical_path
from ppcourse.analysis.gaps import gaps as gaps
from ppcourse.analysis.hardware import GPU as GPU
from ppcourse.analysis.hardware import Link as Link
from ppcourse.analysis.in_flight import in_flight as in_flight
from ppcourse.analysis.in_flight import in_flight_bytes as in_flight_bytes
from ppcourse.analysis.ledger import Ledger as Ledger
from ppcourse.analysis.ledger import side_by_side as side_by_side
from ppcourse.analysis.megatron_split import megatron_split as megatron_split
from ppcourse.analysis.memory import Sizes as Sizes
from ppcourse.analysis.memory import ledger as ledger
from ppcourse.analysis.partition import partition as partition
from ppcourse.analysis.planner import choose as choose
from ppcourse.analysis.shape import Shape as Shape
from ppcourse.analysis.simulate import simulate as simulate
from ppcourse.analysis.timeline import Span as Span
from ppcourse.analysis.timeline import Timeline as Timeline
from ppcourse.analysis.trace import chrome_trace as chrome_trace
from ppcourse.schedules import SCHEDULES as SCHEDULES
from ppcourse.schedules import build as build
from ppcourse.schedules.action import Action as Action
from ppcourse.schedules.action import Op as Op
from ppcourse.schedules.blocking import blocking as blocking
from ppcourse.schedules.costs import Costs as Costs
from ppcourse.schedules.forward_only import forward_only as forward_only
from ppcourse.schedules.schedule import Schedule as Schedule
from ppcourse.schedules.schedule import ScheduleError as ScheduleError
from ppcourse.schedules.validate import Violation as Violation
from ppcourse.schedules.validate import check as check
from ppcourse.schedules.validate import validate as validate

if TYPE_CHECKING:
    from ppcourse.lab.doctor import doctor as doctor
    from ppcourse.lab.draw import draw_schedule as draw_schedule
    from ppcourse.lab.exercises import grade as grade
    from ppcourse.lab.explorer import explore as explore
    from ppcourse.lab.gantt import gantt as gantt
    from ppcourse.lab.gantt_text import gantt_text as gantt_text
    from ppcourse.lab.on_ranks import on_ranks as on_ranks
    from ppcourse.lab.over_m import explore_m as explore_m
    from ppcourse.lab.pairs import explore_overlap as explore_overlap
    from ppcourse.lab.progress import predict as predict
    from ppcourse.lab.progress import prediction as prediction
    from ppcourse.runtime.errors import RankError as RankError
    from ppcourse.runtime.launch import evaluate as evaluate
    from ppcourse.runtime.launch import run as run
    from ppcourse.runtime.profile import profile as profile
    from ppcourse.runtime.reference import reference_step as reference_step
    from ppcourse.runtime.train import train as train
    from ppcourse.runtime.values.extras import Whole as Whole

LATER = {
    "RankError": "ppcourse.runtime.errors",
    "Whole": "ppcourse.runtime.values.extras",
    "run": "ppcourse.runtime.launch",
    "evaluate": "ppcourse.runtime.launch",
    "train": "ppcourse.runtime.train",
    "profile": "ppcourse.runtime.profile",
    "reference_step": "ppcourse.runtime.reference",
    "gantt": "ppcourse.lab.gantt",
    "gantt_text": "ppcourse.lab.gantt_text",
    "grade": "ppcourse.lab.exercises",
    "on_ranks": "ppcourse.lab.on_ranks",
    "predict": "ppcourse.lab.progress",
    "prediction": "ppcourse.lab.progress",
    "doctor": "ppcourse.lab.doctor",
    "explore": "ppcourse.lab.explorer",
    "explore_m": "ppcourse.lab.over_m",
    "explore_overlap": "ppcourse.lab.pairs",
    "draw_schedule": "ppcourse.lab.draw",
}


if not TYPE_CHECKING:  # mypy would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in LATER:
            raise AttributeError(f"module 'ppcourse' has no name {name!r}")
        value = getattr(importlib.import_module(LATER[name]), name)
        globals()[name] = value
        return value


if "ipykernel" in sys.modules:  # in a notebook; elsewhere ranks start when they are needed
    from ppcourse.runtime.processes.server import warm_up

    warm_up()


def __dir__() -> list[str]:
    return sorted({*globals(), *LATER})
