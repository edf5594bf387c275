"""The one place that touches the harness's classes.

``RubricTask`` is a benchmark's subset, ``RubricGroup`` a set of them. What is special to a
benchmark comes from the functions that its YAML names; what is special to the harness is here.
The comments say which behaviour of lm-evaluation-harness 0.4.13 a line relies on.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from lm_eval.api.group import Group
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.models import api_models
from lm_eval.tasks import TaskManager
from tqdm import tqdm

import lm_eval_tasks
from custom_metrics import answers, data, fetch, generation, opinions, prompts, ranks, statistics
from custom_metrics.answer import Answer, clean_answer, opens_reasoning, writable
from custom_metrics.errors import ConfigError, JudgeError, show_plainly
from custom_metrics.judge import (
    Judge,
    JudgeCall,
    JudgeConfig,
    Outcome,
    Panel,
    resolve_config,
    shared_judge,
)
from custom_metrics.judge import ledger as ledgers
from custom_metrics.masking import hide_in_answer, mask, mask_named
from custom_metrics.rubric import Judgement, Message
from custom_metrics.session import NO_DOCUMENT, Session, is_sampled, prompt_text

logger = logging.getLogger("lm_eval.rubrics")  # the harness shows what its own loggers say

# Read now: an update beside a long run must not end it.
_VERSION = version("lm-eval-rubrics")
MOST_ANSWERS = 100  # to one document; more is a slip
_NAN = float("nan")
_LEXICAL_LABEL = "(lexical smoke test: scores mean nothing)"
# Keys of a task's YAML that the harness does not know.
_OWN_KEYS = (
    "row_to_doc",
    "doc_to_messages",
    "task_prompts",
    "doc_to_judge",
    "judge_prompts",
    "metric_names",
)


class RubricTask(ConfigurableTask):  # type: ignore[misc]
    """A subset of a rubric benchmark, judged by an LLM.

    Its YAML names, besides the harness's keys: ``row_to_doc`` (raw row → document with ``id``),
    ``doc_to_messages`` (document, task prompt → chat), ``doc_to_judge`` (document, chat, answer,
    judge prompt → judge calls), ``judge_prompts``, and where it has them ``task_prompts`` and
    ``metric_names`` (documents → what ``name_*`` in ``metric_list`` stands
    for), and a ``process_results`` that takes a document and the one :class:`Judgement` of an
    answer to it. An entry of ``metric_list`` may have a ``stderr`` function beside its
    ``aggregation``, and ``needs``, which leaves it out unless several ``opinions`` of the judge, or
    several ``answers`` of the model to each document, are asked for.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        show_plainly(sys.argv[0])
        if (launched := ranks.started()).size > 1:
            ranks.warn_once(launched.rank)
        config = dict(config)
        config.pop("class", None)
        functions = {key: config.pop(key, None) for key in _OWN_KEYS}
        if config.get("filter_list"):
            raise ConfigError(
                f"{config['task']}: filter_list is not supported; answers are cleaned"
            )
        self._answers = config["repeats"] = _answers_wanted(config)
        self._doc_to_messages: Callable[..., list[Message]] = functions["doc_to_messages"]
        self._doc_to_judge: Callable[..., list[Any]] = functions["doc_to_judge"]
        self._judge_prompts: prompts.Specs = functions["judge_prompts"]
        self._task_prompts: prompts.Specs | None = functions["task_prompts"]
        self._score: Callable[..., dict[str, Any]] = config["process_results"]
        self._source = _source(config)
        docs = data.read_docs(self._source, functions["row_to_doc"], config["test_split"])
        for doc in docs:
            if doc.get("note"):
                logger.warning("%s, %s: %s", config["task"], doc["id"], doc["note"])
        self._docs = datasets.Dataset.from_list(docs)
        wanted = {"answers"} if self._answers > 1 else set()
        wanted |= {"opinions"} if _several_opinions(config.get("metadata") or {}) else set()
        config["metric_list"] = _expanded(
            config["metric_list"], _metric_names(functions, docs), wanted
        )
        self.metrics = [entry["metric"] for entry in config["metric_list"]]
        self.values: dict[str, list[float]] = {}
        self._judge_config: JudgeConfig | None = None
        self._judge: Judge | Panel | None = None
        self._companions: list[RubricTask] = [self]
        self._ranks = ranks.Ranks()
        self._padded = False
        self._reused = 0
        self._started = self._judged = False
        self._judging: dict[str, Any] | None = None
        self._unscored: list[str] = []
        self._prompt: prompts.Prompt | None = None
        self._task_prompt: prompts.Prompt | None = None
        self._reasoning_removed = False
        self._cut_prompts: list[str] = []
        self._short_answers: list[str] = []
        self._pending: dict[tuple[str, str], _Pending] = {}
        super().__init__(config=config)

    # --- documents: loaded once, kept as a Dataset, whose rows are new objects each time ---

    def download(self, *_: Any, **__: Any) -> None:
        self.dataset = {self.config.test_split: self._docs}

    def test_docs(self) -> datasets.Dataset:
        return self._docs

    def fewshot_docs(self) -> None:
        """None: there are no examples, and the sampler's copy of the documents is saved."""

    # --- requests: the last moment before generation, so everything is checked here ---

    def build_all_requests(
        self,
        *,
        limit: int | None = None,
        samples: list[int] | None = None,
        rank: int = 0,
        world_size: int = 1,
        cache_requests: bool = False,
        system_instruction: str | None = None,
        apply_chat_template: bool = False,
        chat_template: Callable[..., Any] | None = None,
        **_: Any,
    ) -> None:
        """One chat request a document. Raises :class:`ConfigError` for what could fail later."""
        model, self._companions, chosen = _calling_run(chat_template, self)
        self._ranks = ranks.Ranks(model, rank, world_size)
        if world_size > 1:
            ranks.warn_once(rank)
        self._ranks.check(judged=not self.predict_only)
        with self._ranks.together():
            self._build_requests(
                model,
                chosen,
                limit=limit,
                samples=samples,
                cache_requests=cache_requests,
                system_instruction=system_instruction,
                chat_template=chat_template,
                apply_chat_template=apply_chat_template,
            )
        if world_size > 1:
            names = [task.task_name for task in self._companions]
            ranks.InDocumentOrder(self._ranks, names, self._notes, self._take_notes)
        fitted = self._ranks.objects((self._cut_prompts, self._short_answers))
        if fitted is not None:
            self._cut_prompts = self._in_order(cut for cut, _ in fitted)
            self._short_answers = self._in_order(short for _, short in fitted)
            self._warn_of_context()

    def _build_requests(
        self,
        model: Any,
        chosen: Mapping[str, Any],
        *,
        limit: int | None,
        samples: list[int] | None,
        cache_requests: bool,
        system_instruction: str | None,
        apply_chat_template: bool,
        chat_template: Callable[..., Any] | None,
    ) -> None:
        if self.config.num_fewshot:
            raise ConfigError(
                f"{self.task_name}: few-shot examples are not defined for this benchmark; leave "
                "out --num_fewshot"
            )
        if limit is not None and limit < 1:
            raise ConfigError(f"{self.task_name}: --limit takes a number above 0")
        if cache_requests:
            logger.warning("%s: --cache_requests is not used; building is fast", self.task_name)
        self._warn_of_secrets()
        if chosen and not samples:
            raise ConfigError(
                f"{self.task_name}: --samples has no indices for it, and all its documents would "
                f"run; it has {', '.join(map(str, chosen))}. Name the tasks themselves, not a group"
            )
        if self._task_prompts is not None:
            self._task_prompt = prompts.load_task_prompt(self._task_prompts, self.config.metadata)
        if not self.predict_only:
            self._prepare_judge()
        render = self._renderer(model, chat_template if apply_chat_template else None)
        kwargs = generation.generation_kwargs(self.config.generation_kwargs, model)
        wanted = kwargs.pop("max_gen_toks")
        if self._answers > 1 and not is_sampled(kwargs) and _generates(model):
            logger.warning(
                "%s: %d answers to each document are asked for, and without chance they will be "
                "equal; add --gen_kwargs do_sample=true,temperature=…",
                self.task_name,
                self._answers,
            )
        context = generation.context_of(model, render, self.config.metadata or {})
        system = [{"role": "system", "content": system_instruction}] if system_instruction else []
        session = Session.current
        if session is not None and model is not None:
            session.attach(model)
            session.listen(self._answer_arrived)
        self._by_prompt: dict[str, list[Instance]] = {}
        self._instances, self._cut_prompts, self._short_answers = [], [], []
        self.values, self._pending, self._unscored = {}, {}, []
        self._started = self._judged = False
        mine = list(
            self.doc_iterator(
                rank=self._ranks.rank,
                limit=limit,
                samples=samples,
                world_size=self._ranks.size,
            )
        )
        self._padded = not mine and not self._ranks.leads
        if self._padded:  # the harness needs a request on every rank; nothing comes of this one
            first = islice(self.doc_iterator(limit=limit, samples=samples), 1)
            mine = [(NO_DOCUMENT, doc) for _, doc in first]
        for doc_id, doc in mine:
            fitted = generation.fit(system + self._messages(doc), wanted, context)
            if fitted.cut and not self._padded:
                self._cut_prompts.append(doc["id"])
            if fitted.answer_tokens < wanted and not self._padded:
                self._short_answers.append(doc["id"])
            self._instances.append(
                Instance(
                    request_type="generate_until",
                    doc=doc,
                    arguments=(
                        render(fitted.messages),
                        {**kwargs, "max_gen_toks": fitted.answer_tokens},
                    ),
                    idx=0,
                    metadata=(self.task_name, doc_id, self.config.repeats),
                )
            )
        for instance in self._own_instances:
            self._by_prompt.setdefault(prompt_text(instance.args[0]), []).append(instance)
        if not self._instances:
            raise ConfigError(f"{self.task_name}: no documents left to run; mend --limit/--samples")
        self._wanted_tokens = wanted

    @property
    def _own_instances(self) -> list[Instance]:
        """The requests of this rank's documents: all but padding."""
        return [] if self._padded else self._instances or []

    def doc_to_text(self, doc: Mapping[str, Any], *_: Any) -> str:
        """The conversation as a transcript, as a model without a chat template gets it."""
        # The harness asks for a first text before it is known which task prompt is wanted.
        unknown = self._task_prompts is not None and self._task_prompt is None
        return "" if unknown else transcript(self._messages(doc))

    def _messages(self, doc: Mapping[str, Any]) -> list[Message]:
        return self._doc_to_messages(doc, self._task_prompt)

    def _renderer(
        self, model: Any, chat_template: Callable[..., Any] | None
    ) -> Callable[[Sequence[Message]], Any]:
        if chat_template is None and generation.is_chat_api(model):
            chat_template = model.apply_chat_template  # it takes nothing else
        if chat_template is not None:
            return partial(chat_template, add_generation_prompt=True)
        if self is self._companions[0]:  # once a run
            logger.warning(
                "no chat template is applied, so the model gets a plain transcript; scores are "
                "not comparable with the papers'. Add --apply_chat_template"
            )
        return transcript

    def _warn_of_secrets(self) -> None:
        for name, value in (self.config.metadata or {}).items():
            if mask_named(name, value) != value:  # not in this project's own run, which masks them
                logger.warning(
                    "The harness writes --model_args %s to its results; lm-eval-rubrics run "
                    "masks it",
                    name,
                )

    def _warn_of_context(self) -> None:
        for what, ids in (
            (
                f"leave less than {self._wanted_tokens} tokens for the answer",
                self._short_answers,
            ),
            ("do not fit the model's context and lose their oldest text", self._cut_prompts),
        ):
            if ids:
                shown = ", ".join(ids[:5]) + (" …" if len(ids) > 5 else "")
                logger.warning("%s: %d prompts %s: %s", self.task_name, len(ids), what, shown)

    def calls_for(
        self, answer: Answer, config: JudgeConfig, limit: int | None
    ) -> Iterator[list[JudgeCall[Any]]]:
        """The judge's calls of each document if its answer were ``answer``; nothing is sent."""
        prompt = prompts.load(self._judge_prompts, config.prompt)
        if self._task_prompts is not None:
            self._task_prompt = prompts.load_task_prompt(self._task_prompts, self.config.metadata)
        for _, doc in self.doc_iterator(limit=limit):
            yield self._doc_to_judge(doc, self._messages(doc), answer, prompt)

    # --- judging ---

    @property
    def predict_only(self) -> bool:
        # --predict_only replaces the metrics by one called bypass, after the task was built.
        return "bypass" in self._metric_fn_list

    def _prepare_judge(self, *, check: bool = True) -> None:
        metadata = self.config.metadata or {}
        self._judge_config = config = resolve_config(metadata.get("judge"))
        self._prompt = prompts.load(self._judge_prompts, config.prompt)
        names = [judge.name for judge in config.members if judge.backend != "lexical"]
        for name in names:
            if name in (metadata.get("model"), metadata.get("pretrained")):
                logger.warning("The judge %s is the model under test as well", name)
        if _is_lexical(config):
            logger.warning("The lexical judge is a smoke test: its scores mean nothing")
        part = ranks.share(config, self._ranks.rank, self._ranks.size)
        if check and self._ranks.leads:
            shared_judge(config).check()  # the same as before the model was loaded: once
        self._judge = shared_judge(part, needs_key=check)

    def apply_filters(self) -> None:
        """Start the judging of all answers, and wait for this task's.

        The harness calls this task by task once all answers of all tasks are there, and only
        afterwards ``process_results`` document by document.
        """
        try:
            for task in self._companions:  # all subsets fill the concurrency together
                if task.answered and not task._started:
                    task._start_judging()
            if self.predict_only:
                return
            with _rare_collections():
                self._wait()
        except JudgeError as error:  # on all ranks at once
            raise self._ranks.last_word(
                error, _answered(self._companions), _with_kept_answers
            ) from None
        except KeyboardInterrupt:
            kept = [_answered(self._companions)]
            print(_with_kept_answers(JudgeError("interrupted."), kept), file=sys.stderr)
            raise
        except Exception:  # a fault of ours: the answers were paid for all the same
            kept = [_answered(self._companions)]
            print(_with_kept_answers(JudgeError("the judging failed."), kept), file=sys.stderr)
            raise
        self._judged = True
        if all(task._judged for task in self._companions):
            self._settle()

    def _settle(self) -> None:
        """The run's one line of what the judging took, and its record, on the first rank."""
        assert self._judge is not None
        own = self._judge.ledger
        found = self._ranks.objects((own, own.spent))
        line = self._judge.settle()
        if found is None:
            return
        total = ledgers.total([ledger for ledger, _ in found])
        spent = next((why for _, why in found if why), None)
        counts = total.record()
        for task in self._companions:
            task._judging = counts
        if Session.current is not None and (counts["failed"] or spent):
            Session.current.leave_open()
        logger.info("Judge: %s", line if self._ranks.size == 1 else total.line())
        if spent:
            logger.warning(
                "%s, so the calls that were left were not sent. All replies are kept: the "
                "same command again, with a larger budget, asks only for the rest",
                spent if self._ranks.size == 1 else f"a rank's share is spent ({spent})",
            )

    def _wait(self) -> None:
        """Until all of this task's calls are done, on all ranks.

        Raises :class:`JudgeError` if it is hopeless.
        """
        outcomes = self._outcomes_of([self], f"Judging {self.task_name}")
        if not self._all_failed(outcomes):
            return
        last = next((o.failure for o in reversed(outcomes) if o.failed), "on another rank")
        if self._all_failed(self._outcomes_of(self._companions, "Judging the other tasks")):
            raise JudgeError(f"no call of {self.task_name} got a verdict; the last one: {last}")
        logger.error("%s: no call got a verdict; the last one: %s", self.task_name, last)

    def _all_failed(self, outcomes: Sequence[Outcome[Any]]) -> bool:
        """Whether calls were made, on whatever rank, and all of them failed."""
        asked = sum(self._ranks.numbers(len(outcomes)))
        read = sum(self._ranks.numbers(sum(not outcome.failed for outcome in outcomes)))
        return asked > 0 and not read

    def _outcomes_of(self, tasks: Sequence[RubricTask], label: str) -> list[Outcome[Any]]:
        """Every outcome of ``tasks``, once all are there. Raises what stopped the judge."""
        pending = [pending for task in tasks for pending in task._pending.values()]
        futures = [future for one in pending for future in one.futures]
        if self._ranks.size > 1:
            self._ranks.wait(futures, label)
        _wait_for(futures, label)
        return [outcome for one in pending for outcome in one.outcomes()]

    # --- what the other ranks know ---

    def _notes(self) -> dict[str, tuple[list[str], int]]:
        """Of each task of the run, what this rank left without a score and did not generate."""
        reused = Session.current.reused if Session.current is not None else {}
        return {t.task_name: (t._unscored, reused.get(t.task_name, 0)) for t in self._companions}

    def _take_notes(self, notes: Sequence[Mapping[str, tuple[list[str], int]]]) -> None:
        for task in self._companions:
            of_task = [by_task[task.task_name] for by_task in notes]
            task._unscored = task._in_order(unscored for unscored, _ in of_task)
            task._reused = sum(reused for _, reused in of_task)

    def _in_order(self, lists: Iterable[Iterable[str]]) -> list[str]:
        """Ids of documents, from all ranks, in the order of the documents."""
        place = {identifier: number for number, identifier in enumerate(self._docs["id"])}
        return sorted((i for ids in lists for i in ids), key=place.__getitem__)

    @property
    def answered(self) -> bool:
        """Whether every request has its response."""
        return all(instance.resps for instance in self._instances or [])

    def _start_judging(self) -> None:
        self._started = True
        for instance in self._instances:
            # With ranks of unequal length the harness repeats the last request.
            own = instance.resps[: instance.repeats]
            # The samples are written as UTF-8: one lone surrogate would cost all later lines.
            instance.resps = [_text(response) for response in own]
        super().apply_filters()
        if self._answers > 1:  # the filter takes the first
            for instance in self._instances:
                for name in instance.filtered_resps:
                    instance.filtered_resps[name] = instance.resps[: self._answers]
        if self.predict_only:
            return
        self._submit(
            (instance.doc, response, self._reasoning_opened(instance))
            for instance in self._own_instances
            for response in instance.resps[: self._answers]
        )

    def _kept(self, instance: Instance) -> str | list[str]:
        texts = [_text(response) for response in instance.resps[: self._answers]]
        return texts if self._answers > 1 else texts[0]

    def _answer_arrived(self, prompt: str, answer: str) -> None:
        """Judge an answer while others are still generated; see :mod:`custom_metrics.session`."""
        if self.predict_only:
            return
        self._submit(
            (instance.doc, _text(answer), self._reasoning_opened(instance))
            for instance in self._by_prompt.pop(prompt, [])  # not its repetitions
        )

    def _reasoning_opened(self, instance: Instance) -> bool:
        # With think_end_token the model class has removed the reasoning, closing tag and all.
        prompt = instance.args[0]
        known = "think_end_token" not in (self.config.metadata or {})
        return known and isinstance(prompt, str) and opens_reasoning(prompt)

    def _submit(self, answered: Iterable[tuple[Mapping[str, Any], str, bool]]) -> None:
        """Start the judging of answers that are not being judged yet.

        Each is a document, a response, and whether its prompt had opened a reasoning block.

        All calls go in one piece: making prompts while others are under way would take the
        interpreter from the judge's thread.
        """
        assert self._judge is not None
        waiting: dict[tuple[str, str], tuple[Answer, list[JudgeCall[Any]]]] = {}
        for doc, response, opened in answered:
            key = (doc["id"], response)
            if key not in self._pending and key not in waiting:
                answer = self._answer_in(response, opened)
                waiting[key] = answer, self._calls(doc, answer)
        futures = iter(self._judge.submit([c for _, calls in waiting.values() for c in calls]))
        for key, (answer, calls) in waiting.items():
            self._pending[key] = _Pending(answer, [next(futures) for _ in calls])

    def _answer_in(self, response: str, opened: bool) -> Answer:
        if response and response == api_models.LMEVAL_MODEL_NONE_ANSWER_PLACEHOLDER:
            return Answer("", "empty")  # stands for a null answer, and is nobody's answer
        return clean_answer(response, reasoning_opened=opened)

    def _calls(self, doc: Mapping[str, Any], answer: Answer) -> list[JudgeCall[Any]]:
        if answer.empty:
            return []
        return self._doc_to_judge(doc, self._messages(doc), answer, self._prompt)

    # --- answers that were saved before (custom_metrics.score) ---

    @property
    def answers(self) -> int:
        """How many answers of the model each document has."""
        return self._answers

    @property
    def source(self) -> data.Source:
        """Where the documents come from."""
        return self._source

    @property
    def judge(self) -> Judge | Panel:
        """The judge, once :meth:`begin_scoring` has been called."""
        assert self._judge is not None
        return self._judge

    def begin_scoring(self, configs: Sequence[Mapping[str, Any]]) -> None:
        """Get ready to judge saved answers. ``configs`` are this task's in the runs that gave them.

        Nothing is asked yet, and no key is needed.
        """
        if self._task_prompts is not None:
            self._task_prompt = prompts.load_task_prompt(self._task_prompts, self.config.metadata)
        self._prepare_judge(check=False)
        self.set_config(key="num_fewshot", value=0)  # as the harness does
        recorded = [config.get("metadata") or {} for config in configs]
        for name, ids in (
            ("prompts_cut", self._cut_prompts),
            ("answers_shortened", self._short_answers),
        ):
            ids.extend(i for m in recorded for i in (m.get(name) or {}).get("ids", []))
        self._reasoning_removed = any("think_end_token" in m for m in recorded)

    def judge_answer(self, doc: Mapping[str, Any], response: str, opened: bool) -> int:
        """Start the judging of one saved answer; the number of its calls."""
        self._submit([(doc, response, opened and not self._reasoning_removed)])
        return len(self._pending[doc["id"], response].futures)

    def calls_about(
        self, doc: Mapping[str, Any], response: str, opened: bool
    ) -> list[JudgeCall[Any]]:
        """The calls of :meth:`judge_answer`; nothing is sent."""
        answer = self._answer_in(response, opened and not self._reasoning_removed)
        return self._calls(doc, answer)

    def finish(self, doc: dict[str, Any], responses: Sequence[str]) -> dict[str, Any]:
        """Wait for the verdicts on a document's saved answers, and score them as
        :meth:`process_results`."""
        values = self.process_results(doc, [responses if self._answers > 1 else responses[0]])
        for response in set(responses):
            del self._pending[doc["id"], response]
        return values

    def end_scoring(self) -> None:
        """Note what the judging took, for the record; the first task of a judge says it."""
        self._judging = self.judge.ledger.record()
        if self._judging["calls"] or self._judging["from_store"]:
            logger.info("Judge: %s", self.judge.settle())

    def process_results(
        self, doc: dict[str, Any], results: Sequence[str | Sequence[str]]
    ) -> dict[str, Any]:
        """The document's metrics, the same keys for every document; NaN where one has no value.

        What the samples file keeps of the judging is added to ``doc``; where each document has
        several answers, which are one list, as ``answers``, an entry each.
        """
        if self.predict_only:
            return {"bypass": None}
        assert self._judge_config is not None
        assert self._prompt is not None
        several = not isinstance(results[0], str)
        responses = results[0] if several else results
        judged = [self._judged_answer(doc, str(response)) for response in responses]
        scores = self._over_answers([scores for scores, _, _ in judged])
        if scores.get("judge_coverage") == 0:
            self._unscored.append(doc["id"])
        (_, extra, graded), *_ = judged
        if several:
            extra, graded = {}, {"answers": [{**graded, **extra} for _, extra, graded in judged]}
        doc.update(extra)
        doc["messages"] = self._messages(doc)
        doc.update(graded)
        doc["judge"] = self._judge_record()
        doc["judge_prompt"] = self._prompt.record()
        if self._task_prompt is not None:
            doc["task_prompt"] = self._task_prompt.record()
        doc["task_version"] = self.VERSION
        # A metric named X_stderr that follows X lands in the harness's stderr column for X.
        return {name: scores.get(name.removesuffix("_stderr"), _NAN) for name in self.metrics}

    def _judged_answer(
        self, doc: Mapping[str, Any], response: str
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The scores of one answer, and what the samples file keeps of its judging and of it."""
        assert self._judge_config is not None
        pending = self._pending[doc["id"], response]
        answer = pending.answer
        judgement = Judgement(
            answer,
            pending.outcomes(),
            failed_is_unmet=self._judge_config.on_failure == "unmet",
            opinions=len(self._judge_config.opinions),
        )
        scores = self._score(doc, [judgement])
        extra = {k: v for k, v in scores.items() if k not in self.metrics and k != "opinions"}
        graded: dict[str, Any] = {"answer": answer.text, "answer_status": answer.status}
        if self._answers > 1:
            graded["scores"] = {k: v for k, v in scores.items() if k in self.metrics}
        # What a judge wrote may hold an escaped surrogate, which no file takes.
        return scores, dict(data.deep_writable(extra)), graded

    def _over_answers(self, each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """A document's scores from those of its answers."""
        scores = dict(each[0])
        if len(each) > 1:
            scores = {name: self._over(name, each) for name in self._aggregation_list}
        if "opinions" in each[0]:
            scores |= opinions.metrics(opinions.of_answers([one["opinions"] for one in each]))
        return scores

    def _over(self, name: str, each: Sequence[Mapping[str, Any]]) -> float:
        """One metric over several answers: the sum of what is counted, else the mean. A score that
        one answer lacks the document lacks too."""
        base = name.removesuffix("_worst").removesuffix("_spread")
        values = [one.get(base, _NAN) for one in each]
        if self._aggregation_list[name] is statistics.total:
            return float(sum(values))
        if name == "judge_coverage":  # a document has a score or has none
            return float(min(values))
        if any(value != value for value in values):
            return _NAN
        if name.endswith("_worst"):
            return float(min(values))
        return float(np.std(values, ddof=1) if name != base else np.mean(values))

    def aggregation(self) -> dict[str, Callable[[list[float]], Any]]:
        return {
            name: partial(self._aggregate, name, function)
            for name, function in super().aggregation().items()
        }

    def _aggregate(self, name: str, function: Callable[..., Any], values: list[float]) -> Any:
        # With several ranks this is where the first one sees all documents.
        self.values[name] = values
        if name == self.metrics[-1]:
            self._warn_of_exclusions()
        return function(values)

    def _warn_of_exclusions(self) -> None:
        coverage = self.values.get("judge_coverage", [])
        excluded = sum(value == 0 for value in coverage)
        uncertain = sum(
            any(self.values[n][i] != self.values[n.removesuffix("_low") + "_high"][i]
                for n in self.metrics if n.endswith("_low"))
            for i in range(len(coverage))
        )  # fmt: skip
        if not uncertain:
            return
        what = "are left out of the means" if excluded else "count it as unmet"
        bounds = [name.removesuffix("_low") for name in self.metrics if name.endswith("_low")]
        shown = ", ".join(
            f"{name} lies between {self._bound(name + '_low'):.4f} and "
            f"{self._bound(name + '_high'):.4f}"
            for name in bounds
        )
        logger.warning(
            "%s: %d of %d documents have a criterion without a verdict and %s; with every "
            "verdict, %s",
            self.task_name, uncertain, len(coverage), what, shown,
        )  # fmt: skip
        if self._unscored:
            names = ", ".join(self._unscored[:5]) + (" …" if len(self._unscored) > 5 else "")
            logger.warning("%s: without a score: %s", self.task_name, names)

    def _bound(self, name: str) -> float:
        return float(self._aggregation_list[name](self.values[name]))

    # --- the record ---

    def _judge_record(self) -> dict[str, Any]:
        assert self._judge_config is not None
        dropped = sorted(self._judge.dropped) if self._judge is not None else []
        return {**self._judge_config.record(), **({"dropped": dropped} if dropped else {})}

    def dump_config(self) -> dict[str, Any]:
        """The task's configuration for the results file, with what decided the numbers."""
        config: dict[str, Any] = mask(super().dump_config())
        if _is_lexical(self._judge_config):
            config["task_alias"] = f"{self.task_name} {_LEXICAL_LABEL}"
        metadata = dict(config.get("metadata") or {})
        metadata["lm_eval_rubrics"] = _VERSION
        metadata["dataset"] = self._source.record()
        if self._judging is not None:
            metadata["judging"] = self._judging  # of all tasks of the run together
        if self._ranks.size == 1 and Session.current is not None:
            self._reused = Session.current.reused[self.task_name]
        if self._reused:
            metadata["answers_of_earlier_runs"] = self._reused
        metadata["prompts_cut"] = {"count": len(self._cut_prompts), "ids": self._cut_prompts}
        metadata["answers_shortened"] = {
            "count": len(self._short_answers),
            "ids": self._short_answers,
        }
        if self._judge_config is not None and self._prompt is not None:
            metadata["judge"] = self._judge_record()
            metadata["judge_prompt"] = self._prompt.record()
            if "judge_sd" in self.values:
                metadata["judge_opinions"] = opinions.record(
                    self.values["judge_sd"],
                    self._judge_config.opinions,
                    self._aggregation_list[self.metrics[0]],
                )
        if self._task_prompt is not None:
            metadata["task_prompt"] = self._task_prompt.record()
        return {**config, "metadata": metadata}


class RubricGroup(Group):  # type: ignore[misc]
    """Several subsets, aggregated as one.

    The harness's own group knows the mean of its members' values only, and a mean of clipped
    means is not the clipped mean. Here every metric is aggregated over the pooled documents of all
    members. The YAML gives ``subtasks``, and may give ``pooled`` (the metrics to pool, else all)
    and a ``metric_list`` of the group's own, whose functions take the values by subset and metric
    and return None where there is nothing to say. (``class:`` beside ``group:`` is not found by
    the harness, so the YAML calls itself a task.)
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        show_plainly(sys.argv[0])
        metadata = dict(config.get("metadata") or {})
        super().__init__(name=config["task"], metadata=mask(metadata))
        self._pooled: list[str] | None = config.get("pooled")
        self._own: list[Mapping[str, Any]] = config.get("metric_list") or []
        # The members bring their own version; what the user gave on the command line they share.
        shared = {k: v for k, v in metadata.items() if k not in ("version", "config_source")}
        manager = TaskManager(
            include_path=lm_eval_tasks.path(), include_defaults=False, metadata=shared
        )
        for task in manager.load(list(config["subtasks"]))["tasks"].values():
            self.add(task)

    @property
    def has_aggregation(self) -> bool:
        return True

    def aggregate(self, task_metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The group's row in the harness's table and results."""
        tasks: list[RubricTask] = [t for t in self.get_all_tasks() if t.task_name in task_metrics]
        lexical = any(_is_lexical(task._judge_config) for task in tasks)
        row: dict[str, Any] = {
            "name": self.name,
            "alias": f"{self.name} {_LEXICAL_LABEL}" if lexical else self.name,
            "sample_len": sum(task_metrics[task.task_name]["sample_len"] for task in tasks),
        }
        by_subset = {task.config.test_split: task.values for task in tasks}
        for entry in self._own:
            _add(row, entry["metric"], entry["aggregation"](by_subset))
            _add(row, f"{entry['metric']}_stderr", entry["stderr"](by_subset))
        functions = {name: f for task in tasks for name, f in task._aggregation_list.items()}
        for name, function in functions.items():
            pooled = [value for task in tasks for value in task.values.get(name, [])]
            if pooled and (self._pooled is None or name in self._pooled):
                _add(row, name, function(pooled))
        return row


def _add(row: dict[str, Any], name: str, value: Any) -> None:
    """Put a metric into a row; every one of them has a standard error, if only ``N/A``."""
    if value is None:
        return
    row[f"{name},none"] = value
    if not name.endswith("_stderr"):
        row[f"{name}_stderr,none"] = "N/A"


# --- helpers -------------------------------------------------------------------------------


def transcript(messages: Sequence[Message]) -> str:
    """A conversation as plain text, to be continued by the assistant."""
    return "\n".join([*(f"{m['role']}: {m['content']}" for m in messages), "assistant:"])


def _answers_wanted(config: Mapping[str, Any]) -> int:
    """How many answers to each document are asked for: by metadata ``answers``, else by the YAML's
    ``repeats``."""
    metadata = config.get("metadata") or {}
    wanted = metadata.get("answers") or config.get("repeats") or 1
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= MOST_ANSWERS:
        raise ConfigError(f"{config['task']}: answers is a number from 1 to {MOST_ANSWERS}")
    return wanted


def _several_opinions(metadata: Mapping[str, Any]) -> bool:
    try:
        return len(resolve_config(metadata.get("judge")).opinions) > 1
    except ConfigError:  # said when the judge is needed, which with --predict_only it is not
        return False


def _metric_names(functions: Mapping[str, Any], docs: Sequence[dict[str, Any]]) -> list[str]:
    return functions["metric_names"](docs) if functions["metric_names"] else []


def _source(config: Mapping[str, Any]) -> data.Source:
    """The files of a task's split, as ``dataset_path`` and ``dataset_kwargs`` say."""
    options = dict(config["dataset_kwargs"])
    metadata = config.get("metadata") or {}
    if metadata.get("dataset_revision"):
        if "revision" not in options or os.environ.get("RUBRIC_DATA_DIR"):
            raise ConfigError(
                f"{config['task']}: dataset_revision chooses a commit on the Hub, and this data "
                "does not come from there; leave it out"
            )
        options["revision"] = str(metadata["dataset_revision"])
    if "bundled" in options:
        options["bundled"] = Path(lm_eval_tasks.path()) / options["bundled"]
    if "github" in options:
        pinned = options["github"]
        options["github"] = data.Pinned(
            tuple(pinned["repositories"]), pinned["commit"], pinned["sha256"]
        )
    return data.find_split(config["test_split"], repository=config["dataset_path"], **options)


def _expanded(
    entries: Iterable[Mapping[str, Any]], names: Sequence[str], wanted: set[str]
) -> list[dict[str, Any]]:
    """``metric_list`` as the harness takes it: ``name_*`` spelt out, ``stderr`` as a metric, and
    nothing that ``needs`` what is not wanted."""
    expanded: list[dict[str, Any]] = []
    for entry in entries:
        entry = dict(entry)
        stderr = entry.pop("stderr", None)
        if entry.pop("needs", None) not in {None, *wanted}:
            continue
        pattern = entry["metric"]
        prefix = pattern.removesuffix("*")
        matching = [n for n in names if n.startswith(prefix)] if prefix != pattern else [pattern]
        for name in matching:
            expanded.append({**entry, "metric": name})
            if stderr is not None:
                expanded.append({**entry, "metric": f"{name}_stderr", "aggregation": stderr})
    return expanded


def _calling_run(
    chat_template: Callable[..., Any] | None, task: RubricTask
) -> tuple[Any, list[RubricTask], Mapping[str, Any]]:
    """The model under test, the rubric tasks that run together with ``task``, itself included, and
    the documents chosen by ``--samples``.

    ``build_all_requests`` is given none of them; the chat template is a bound method of the model,
    and the caller, ``lm_eval.evaluator.evaluate``, has them as ``lm``, ``eval_tasks``, ``samples``.
    """
    model = getattr(chat_template, "__self__", None)
    together = [task]
    chosen: Mapping[str, Any] = {}
    frame = sys._getframe(2)
    if frame.f_globals.get("__name__") == "lm_eval.evaluator":
        model = frame.f_locals.get("lm") if model is None else model
        tasks = frame.f_locals.get("eval_tasks") or {}
        ours = [other for other in tasks.values() if isinstance(other, RubricTask)]
        together = ours if task in ours else together
        chosen = frame.f_locals.get("samples") or {}
    # With --use_cache it is wrapped.
    model = getattr(model, "lm", model) if type(model).__name__ == "CachingLM" else model
    return model, together, chosen


@dataclass
class _Pending:
    """An answer, and the calls about it."""

    answer: Answer
    futures: list[Future[Outcome[Any]]]
    _outcomes: tuple[Outcome[Any], ...] | None = None

    def outcomes(self) -> tuple[Outcome[Any], ...]:
        """What the calls came to, once all are done. Futures take ten times as much memory: they
        are let go. Raises what stopped the judge."""
        if self._outcomes is None:
            self._outcomes = tuple(future.result() for future in self.futures)
            self.futures = []
        return self._outcomes


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Keep the garbage collector from going through all that was made so far, again and again.

    Thousands of calls are waiting, beside torch and the harness, and none of it is garbage; the
    collector took a seventh of the judge's time.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _wait_for(futures: Sequence[Future[Outcome[Any]]], label: str) -> None:
    """Until all are there. Raises what stopped the judge as soon as it did."""
    quiet = not sys.stderr.isatty()
    with tqdm(total=len(futures), desc=label, unit="call", disable=quiet) as progress:
        for future in futures:
            future.add_done_callback(lambda _: progress.update())
        # One wait for all: waking up for each would take the interpreter from the judge's thread.
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()


def _answered(tasks: Sequence[RubricTask]) -> dict[str, dict[str, answers.Given]]:
    """The answers that are there, by task and document."""
    return {
        task.task_name: {i.doc["id"]: task._kept(i) for i in task._own_instances if i.resps}
        for task in tasks
    }


def _with_kept_answers(
    error: Exception, by_rank: Sequence[Mapping[str, Mapping[str, answers.Given]]]
) -> JudgeError:
    """``error``, saying where the answers are: the harness writes none when a run fails."""
    answered = {
        task: {id_: text for rank in by_rank for id_, text in rank[task].items()}
        for task in by_rank[0]
    }
    try:
        folder = answers.write_tasks(fetch.cache_folder() / "answers", answered)
    except OSError as fault:  # a full disk must not hide what happened
        return JudgeError(f"{error} The answers could not be kept ({fault})")
    path = folder if len(answered) > 1 else folder / f"{next(iter(answered))}.json"
    texts = [text for kept in answered.values() for text in kept.values()]
    counts = [1 if isinstance(text, str) else len(text) for text in texts]
    count, each = sum(counts), max(counts, default=1)
    return JudgeError(
        f"{str(error).rstrip('.')}. The {count} answers are kept in {path}; judge them with: "
        f"lm-eval-rubrics run --model prefilled --model_args path={path} "
        f"--tasks {' '.join(sorted(answered))}" + (f" --answers {each}" if each > 1 else "")
    )


def _generates(model: Any) -> bool:
    return getattr(model, "tokenizer_name", None) != "prefilled"


def _is_lexical(config: JudgeConfig | None) -> bool:
    return config is not None and config.lexical


def _text(response: Any) -> str:
    return hide_in_answer(writable(response)) if isinstance(response, str) else ""
