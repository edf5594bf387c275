"""Where PLawBench's prompts come from: the authors' at a pinned commit, or built in.

The authors' task prompts stand in ``prompt_generate.py``, an instruction and a template for the
question, which are joined; the judge's in ``prompt_zh.py``, a system and a user message.
"""

from __future__ import annotations

from custom_metrics.prompts import Builtin, Official, Specs

_REPOSITORIES = ("skylenage/PLawbench", "SKYLENAGE-AI/PLawbench")
_COMMIT = "f6ee07b36c1f4c0bfc2af8ca27183d3dd3175c56"

# The official case template is malformed JSON and pins the conclusion to 0 of 0 points.
_CASE_REPAIRS = (
    (r'"total_points": 0,(\s*)"max_points": 0,', r'"total_points": ...,\1"max_points": ...,'),
    (r'\}\s*"others"', '},\n    "others"'),
)


def _task(instruction: tuple[str, str], question: tuple[str, str], builtin: str) -> Specs:
    """``instruction`` and ``question``: a key of the authors' dict, and its text's SHA-256."""

    def part(constant: str, key: str, file_name: str, sha256: str) -> Official:
        return Official(
            repositories=_REPOSITORIES,
            commit=_COMMIT,
            path="prompt_generate.py",
            constant=constant,
            key=key,
            file_name=f"plawbench_task_{file_name}.txt",
            sha256=sha256,
            style="brace",
        )

    parts = (
        part("prompt_template_dict", instruction[0], instruction[0], instruction[1]),
        part("user_prompt_dict", question[0], f"user_{question[0]}", question[1]),
    )
    return {"official": {"user": parts}, "builtin": {"user": (Builtin(builtin),)}}


def _judge(
    key: str,
    system: str,
    user: str,
    builtin: str,
    repairs: tuple[tuple[str, str], ...] = (),
) -> Specs:
    """``system`` and ``user``: the SHA-256 of the texts under ``key`` of the authors' dicts."""

    def part(role: str, constant: str, sha256: str) -> tuple[Official]:
        return (
            Official(
                repositories=_REPOSITORIES,
                commit=_COMMIT,
                path="prompt_zh.py",
                constant=constant,
                key=key,
                file_name=f"plawbench_judge_{role}_{key}.txt",
                sha256=sha256,
                repairs=repairs,
            ),
        )

    return {
        "official": {
            "system": part("system", "SYS_PROMPT", system),
            "user": part("user", "JUDGE_PROMPT", user),
        },
        "builtin": {
            "system": (Builtin("plawbench_judge_system.jinja"),),
            "user": (Builtin(builtin),),
        },
    }


TASK_CASE_ANALYSIS = _task(
    (
        "case_analysis",
        "188739cf965a215f208de1f2fc04b7d708ad2da0aa6d286a7c733fab569bbabe",
    ),
    (
        "case_analysis",
        "aa27cf3bb5be45143b4d3cefc5abe0c76a0c77e9a2a03d17bb43cdcdf42811e2",
    ),
    "plawbench_task_case_analysis.jinja",
)
TASK_LEGAL_CONSULTATION = _task(
    (
        "legal_consultation_mid",
        "79291017852ce61a99d68ffb2f42351a8c432286c7bf0ed228095a365f539fcc",
    ),
    (
        "legal_consultation",
        "c736791fe0e3ac650aeccea9dc0141e984b276b4d216a7be8198de37eabf7dc2",
    ),
    "plawbench_task_legal_consultation.jinja",
)
TASK_DRAFTING = _task(
    (
        "document_generation",
        "b048976d0462bb644050f5a35f83b5693e22212bdfc1b8f50c0f3ec32e46ae28",
    ),
    (
        "document_generation",
        "c736791fe0e3ac650aeccea9dc0141e984b276b4d216a7be8198de37eabf7dc2",
    ),
    "plawbench_task_drafting.jinja",
)

JUDGE_CASE_ANALYSIS = _judge(
    "case_analysis_merge",
    "a9b49e5d7f7b18d00bb2a6e836646a1968b5cfa741ca0e80e4a07574997435b4",
    "369b7f1a7f05c259c8b7d07dc14db1f22795be9a8e55b7725a12fa2fde9e45fd",
    "plawbench_judge_case_analysis.jinja",
    _CASE_REPAIRS,
)
JUDGE_LEGAL_CONSULTATION = _judge(
    "legal_qa",
    "c8deff7a43b9d3babff936946eb36980d87d74572f7feac94ae8dc3bd3314e77",
    "2921e12d132f28115a807269b25cacdaf2f137b22e6879d14aa9489f6db96f09",
    "plawbench_judge_points.jinja",
)
JUDGE_DRAFTING = _judge(
    "document_generation",
    "6e48881a8900d0d2403d572971270aa9cc7ba453f3962f5b3894f6a16a4ab5fb",
    "2921e12d132f28115a807269b25cacdaf2f137b22e6879d14aa9489f6db96f09",
    "plawbench_judge_points.jinja",
)
