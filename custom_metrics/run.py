"""``lm-eval-rubrics run``: the harness's own ``run``, with what its parser has no place for.

It takes every flag of ``lm_eval run`` and ``--judge``, needs no ``--include_path``, checks the
judge before the model is loaded, knows ``--model prefilled``, and masks secrets in what is
written.
"""

from __future__ import annotations

import argparse
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import lm_eval.tasks
from lm_eval._cli.harness import HarnessCLI
from lm_eval._cli.utils import MergeDictAction, split_top_level, try_parse_json
from lm_eval.api.model import LM
from lm_eval.api.registry import get_model
from lm_eval.config.evaluate_config import DICT_KEYS, EvaluatorConfig
from lm_eval.models.api_models import TemplateAPI
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from lm_eval.utils import setup_logging, simple_parse_args_string

import lm_eval_tasks
from custom_metrics import (  # prefilled registers itself
    arguments,
    masking,
    prefilled,  # noqa: F401
    prompts,
    ranks,
)
from custom_metrics.arguments import read_json, read_pairs
from custom_metrics.errors import ConfigError
from custom_metrics.judge import JudgeConfig, resolve_config, shared_judge
from custom_metrics.masking import mask_named, shown
from custom_metrics.session import Session
from custom_metrics.task import MOST_ANSWERS

logger = logging.getLogger("lm_eval.rubrics")

_CHAT_APIS = ("chat-completions", "-chat", "litellm")
_OFF = ("false", "none", "no", "off", "0")


class MaskedArgs(dict[str, Any]):
    """Model arguments whose secrets reach the model's constructor and nothing that is written.

    ``cls(**args)`` reads the dict itself; ``repr`` (logs), ``items`` (JSON) and single values (the
    output folder's name) are masked.
    """

    def items(self) -> Any:
        return {k: mask_named(k, v) for k, v in super().items()}.items()

    def values(self) -> Any:
        return dict(self.items()).values()

    def __getitem__(self, key: str) -> Any:
        return mask_named(key, super().__getitem__(key))

    def get(self, key: str, default: Any = None) -> Any:
        return mask_named(key, super().get(key, default))

    def __repr__(self) -> str:
        return repr(dict(self.items()))


class JudgeSettings(argparse.Action):
    """``--judge``, as :func:`read_pairs` reads it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        settings = dict(getattr(namespace, self.dest) or {})
        settings.update(read_pairs(option_string or "--judge", values))
        setattr(namespace, self.dest, settings)


class QuietDict(MergeDictAction):  # type: ignore[misc]
    """The harness's JSON or ``key=value`` arguments, without repeating a value in an error."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        option = option_string or f"--{self.dest}"
        try:
            is_json = isinstance(try_parse_json(values[0]) if values else {}, dict)
        except (ValueError, RecursionError):
            read_json(option, values[0])  # raises its own error
            raise
        if not is_json:
            pairs = [pair for value in values for pair in split_top_level(value)]
            read_pairs(option, pairs)
            names = [
                *(getattr(namespace, self.dest, None) or {}),
                *(p.split("=")[0] for p in pairs),
            ]
            if repeated := sorted({name for name in names if names.count(name) > 1}):
                logger.warning("%s: the last value counts for %s", option, ", ".join(repeated))
        harness = logging.getLogger(MergeDictAction.__module__)
        harness.disabled = True  # it shows both values of what is given twice
        try:
            super().__call__(parser, namespace, values, option_string)
        finally:
            harness.disabled = False


def run(argv: Sequence[str]) -> None:
    """Run the harness with ``argv``, the arguments after ``run``.

    Raises the package's own errors, and what the harness raises.
    """
    setup_logging()
    if (launched := ranks.started()).size > 1:
        ranks.warn_once(launched.rank)
    harness = HarnessCLI()
    parser = harness._subparsers.choices["run"]
    parser.prog = "lm-eval-rubrics run"
    parser.usage = "lm-eval-rubrics run --model <model> --tasks <task> [--judge key=value …] …"
    parser.add_argument(
        "--judge",
        nargs="+",
        action=JudgeSettings,
        default=None,
        metavar="<arg>",
        help="Judge settings as key=value; they win over metadata and RUBRIC_JUDGE_* variables",
    )
    parser.add_argument(
        "--answers",
        type=int,
        default=None,
        metavar="<k>",
        help="How many answers to each document to generate and judge; needs sampling "
        "(--gen_kwargs do_sample=true,temperature=…)",
    )
    parser.add_argument(
        "--no_overlap",
        action="store_true",
        help="Judge after the last answer, not while others are generated",
    )
    parser.add_argument(
        "--no_answer_store",
        action="store_true",
        help="Neither keep answers as they come nor use those of an interrupted run",
    )
    parser.add_argument(
        "--reuse_answers",
        action="store_true",
        help="Use kept answers of finished runs too: the model must not have changed since",
    )
    for action in parser._actions:
        if type(action) is MergeDictAction:
            action.__class__ = QuietDict
    args = arguments.parse(harness._parser, ["run", *(argv or ["--help"])])
    written = _config_file(args.config) if args.config else {}
    masking.learn([written, vars(args)])
    masking.refuse_secrets("--gen_kwargs", args.gen_kwargs or written.get("gen_kwargs"))
    args.include_path = _include_path(args.include_path or written.get("include_path"))
    tasks = args.tasks or _names(written.get("tasks"))
    overrides = vars(args).pop("judge") or {}
    overlap = not vars(args).pop("no_overlap")
    keep_answers = not vars(args).pop("no_answer_store")
    reuse = vars(args).pop("reuse_answers")
    args.metadata = {**(written.get("metadata") or {}), **(args.metadata or {})}
    if (answers := vars(args).pop("answers")) is not None:
        if not 1 <= answers <= MOST_ANSWERS:
            raise ConfigError(f"--answers: a number from 1 to {MOST_ANSWERS}, not {answers}")
        args.metadata["answers"] = answers
    _chat_template(args, written)
    predict_only = getattr(args, "predict_only", False) or written.get("predict_only")
    config = None if predict_only else resolve_config(args.metadata.get("judge"), overrides)
    _check_documents(
        args.limit if args.limit is not None else written.get("limit"),
        args.samples or written.get("samples"),
        tasks,
        args.include_path,
    )
    model = str(args.model or written.get("model") or "hf")
    _check_processes(model, config)
    _check_before_the_model(config, tasks, args.include_path, args.metadata)
    if overrides:
        args.metadata["judge"] = {**(args.metadata.get("judge") or {}), **overrides}
    model_args = args.model_args if args.model_args is not None else written.get("model_args")
    args.metadata = masking.mask(args.metadata)
    if isinstance(model_args, Mapping):
        args.model_args = MaskedArgs(model_args)
        args.metadata = {**dict(args.model_args.items()), **args.metadata}
    if config is not None and config.in_process:
        overlap = False  # all of the judge's calls are to be one batch
    session = Session(
        model,
        dict(model_args or {}),
        list(argv),
        store=keep_answers and model != "prefilled",
        overlap=overlap,
        reuse=reuse,
    )
    with session, _task_manager(include_defaults=not _only_ours(tasks, args.include_path)):
        harness.execute(args)


def _config_file(path: str) -> dict[str, Any]:
    """The harness's file of arguments; an error of it does not show the lines around the fault."""
    try:
        written = EvaluatorConfig.load_yaml_config(path)
    except ValueError as error:
        mark = getattr(error.__cause__, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ConfigError(f"--config {path}: not valid YAML{where}") from None
    return {
        name: simple_parse_args_string(value)
        if name in DICT_KEYS and isinstance(value, str)
        else value
        for name, value in written.items()
    }


def _names(tasks: Any) -> list[str]:
    listed = tasks.split(",") if isinstance(tasks, str) else (tasks or [])
    return [str(task) for task in listed]


def _include_path(given: Any) -> list[str]:
    own = lm_eval_tasks.path()
    return [own] if not given else [own, *([given] if isinstance(given, str) else given)]


def _chat_template(args: argparse.Namespace, written: Mapping[str, Any]) -> None:
    """The chat template is on unless it is switched off, and for chat APIs even then."""
    given = getattr(args, "apply_chat_template", written.get("apply_chat_template", True))
    if isinstance(given, str) and given.lower() in _OFF:
        given = False
    model = str(args.model or written.get("model") or "")
    if not given and any(name in model for name in _CHAT_APIS):
        logger.info("%s takes messages only; the chat template stays on", model)
        given = True
    args.apply_chat_template = given


def _only_ours(tasks: Sequence[str], include_path: Sequence[str]) -> bool:
    """Whether the harness's 14,000 files need not be indexed, which takes it some seconds."""
    known = TaskManager(include_path=list(include_path), include_defaults=False)
    return bool(tasks) and all(
        task.endswith(".yaml") or known.match_tasks([task]) for task in tasks
    )


def _check_documents(
    limit: Any, samples: Any, tasks: Sequence[str], include_path: Sequence[str]
) -> None:
    """Refuse what would run other documents than were meant, all of them in the end."""
    if isinstance(limit, int | float) and not limit > 0:
        raise ConfigError(f"--limit: a number above 0 is needed, not {limit:g}")
    if not isinstance(samples, Mapping) or not _only_ours(tasks, include_path):
        return  # a file's name, or none; or tasks that only the harness knows
    known = TaskManager(include_path=list(include_path), include_defaults=False)
    names = {n for task in tasks for n in _leaves(known.match_tasks([task]), known)}
    strangers = [name for name in samples if name not in names] if names else []
    if strangers:
        raise ConfigError(
            f"--samples: {', '.join(map(shown, strangers))} is none of the tasks that run; they "
            f"are {', '.join(sorted(names))}"
        )


def _check_processes(model: str, config: JudgeConfig | None) -> None:
    """Refuse, where a launcher started several processes, what they would do once each."""
    launched = ranks.started()
    if launched.size == 1:
        return
    try:
        kind = get_model(model)
    except Exception:  # the harness says what is wrong with it
        return
    # A model that gathers nothing has no ranks; one that does is asked when it is loaded.
    alone = kind.gather_object is LM.gather_object
    if alone and (config is not None or issubclass(kind, TemplateAPI)):
        ranks.refuse_copies(1)
    if config is not None:
        ranks.share(config, launched.rank, launched.size)


def _check_before_the_model(
    config: JudgeConfig | None,
    tasks: Sequence[str],
    include_path: Sequence[str],
    metadata: Mapping[str, Any],
) -> None:
    """What can be known to fail: the prompts of the tasks asked for, the key, the endpoint."""
    ours = [task for task in configurations(tasks, include_path) if "judge_prompts" in task]
    for task in ours:
        if "task_prompts" in task:
            prompts.load_task_prompt(task["task_prompts"], metadata)
        if config is not None:
            prompts.load(task["judge_prompts"], config.prompt)
    if ours and config is not None and ranks.started().rank == 0:
        shared_judge(config).check()


def configurations(tasks: Sequence[str], include_path: Sequence[str]) -> list[dict[str, Any]]:
    """The YAML of each task, those of groups included; a name that is not found is left out."""
    known = TaskManager(include_path=list(include_path), include_defaults=False)
    names = [name for task in tasks for name in known.match_tasks([task])]
    paths = [known.task_index[name].yaml_path for name in _leaves(names, known)]
    return [load_yaml(path, resolve_func=True) for path in paths if path]


def _leaves(names: Sequence[str], known: TaskManager) -> Iterator[str]:
    for name in names:
        subtasks = (known.task_index[name].cfg or {}).get("subtasks")
        yield from _leaves(subtasks, known) if subtasks else [name]


@contextmanager
def _task_manager(*, include_defaults: bool) -> Iterator[None]:
    # The harness's run builds its task manager itself and always indexes its own tasks.
    original = lm_eval.tasks.TaskManager
    lm_eval.tasks.TaskManager = functools.partial(original, include_defaults=include_defaults)
    try:
        yield
    finally:
        lm_eval.tasks.TaskManager = original


def known_failure(error: BaseException) -> str | None:
    """The one line for an error of the harness's that only says what the user mistyped."""
    text = str(error)
    if text.startswith("Tasks not found"):
        return f"{text}. This project's own: {', '.join(own_tasks())}"
    return text if text.startswith(_MISTYPED) else None


_MISTYPED = (
    "Config file not found",
    "Duplicate task",
    "Elements of --samples",
    "If --samples is not None",
    "Need to specify task",
    "Specify --output_path",
)


def own_tasks() -> list[str]:
    """The names of this package's tasks and groups."""
    return list(TaskManager(include_path=lm_eval_tasks.path(), include_defaults=False).all_tasks)
