"""The arguments of llama.cpp's programs, as of build 11549 (common/arg.cpp) and of builds since 5000."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.integrations.export import engine_request as export
from paceline.integrations.export.engine_request import COPIES, DRAFT_MODEL, MTP, EngineRequest
from paceline.speculative.errors import UsageError

SERVER, SIMPLE, TREE, LOOKUP = "llama-server", "llama-speculative-simple", "llama-speculative", "llama-lookup"
CACHE, SELF = "ngram-cache", "ngram-simple"
TYPES = {COPIES: SELF, DRAFT_MODEL: "draft-simple", MTP: "draft-mtp"}
TYPES |= {kind: f"draft-{kind}" for kind in ("eagle3", "dflash", "dspark")}
# Builds. 7864: --spec-type (llama.cpp #18471). 8955: --spec-draft-* for --draft-* (#22397). 9219 has
# draft-simple and draft-mtp (#22964, #22673), and before 9464 -md alone drafts. 10819 has the heads.
RENAMED, DRAFT_TYPES = "8955", "9219"
SINCE = {SELF: "7864", CACHE: "7864", "draft-mtp": DRAFT_TYPES}
SINCE |= dict.fromkeys(("draft-eagle3", "draft-dflash", "draft-dspark"), "10819")
ADVICE = {TREE: "give a draft model (-md)", LOOKUP: "use --draft ngram, without -md"}
OTHERWISE = "use --draft lookup, ngram or mtp, or a draft model (-md)"
RESERVED_FLAGS = ("--spec", "--draft", "--model-draft", "-md", "-hf", "--hf-", "-m", "-c")
RUN_FLAGS = {"threads": "-t", "gpu_layers": "-ngl", "cache_type": "-ctk -ctv", "flash_attention": "-fa"}
ON_OFF = {"True": "on", "False": "off"}


def arguments(request: EngineRequest, program: str = SERVER) -> list[str]:
    """Return the command. Raises UsageError if the program cannot do it losslessly."""
    out = [program, *model_flags(request.model, "-m", "-hf", "-hff")]
    if method := export.method_for(program, request):
        out += speculation(request, program, method)
    elif program != SERVER:
        raise UsageError(f"{program} only decodes with drafts: use --to {SERVER}")
    for name, value in request.engine_options.items():
        text = ON_OFF.get(str(value), str(value))
        out += [word for flag in RUN_FLAGS.get(name, "").split() for word in (flag, text)]
    return [*out, *request.server_args("--ctx-size", RESERVED_FLAGS, name="--alias")]


def speculation(request: EngineRequest, program: str, method: str) -> list[str]:
    """Return the words about drafting. Raises UsageError."""
    names, given, drafting = ",".join(request.drafters), request.drafting_settings, request.drafting
    copies, typed, old = method == COPIES, program in (SERVER, SIMPLE), request.older_than(RENAMED)
    kind = CACHE if program == LOOKUP or (copies and names == "ngram") else TYPES.get(method, "")
    possible = {TREE: method == DRAFT_MODEL, LOOKUP: copies}.get(program, bool(kind))
    if not possible or (copies and names not in ("auto", "ngram" if kind == CACHE else "lookup")):
        what = names if copies else method
        raise UsageError(f"{program} has no counterpart of {what}: {ADVICE.get(program, OTHERWISE)}")
    if typed:
        request.require_version(program, kind, {kind: DRAFT_TYPES} if program == SIMPLE and copies else SINCE)
    out = model_flags(request.draft, "-md", "-hfd", "-md") if request.draft else []
    if typed and not (method == DRAFT_MODEL and request.older_than(DRAFT_TYPES)):
        out += ["--spec-type", kind]
    flags: dict[str, Any] = {}
    translated = {"corpora"} if kind == CACHE and program != SIMPLE else set[str]()
    if request.n_draft and kind == CACHE and typed:
        raise UsageError(f"{program} drafts 8 tokens by {kind}, not {request.n_draft}: leave the length out")
    if request.n_draft:
        simple = "--spec-ngram-size-m" if old else "--spec-ngram-simple-size-m"
        flags[simple if kind == SELF else "--draft-max" if old else "--spec-draft-n-max"] = request.n_draft
    if kind == SELF and "ngram_max" in given and drafting.ngram_min == drafting.ngram_max:
        translated |= {"ngram_min", "ngram_max"}  # it looks for one length
        flags["--spec-ngram-size-n" if old else "--spec-ngram-simple-size-n"] = drafting.ngram_max
    if program == TREE:
        translated |= {"width", "p_split"}
        flags |= {"-np": drafting.width} if "width" in given else {}
        flags |= {"--draft-p-split": f"{drafting.p_split:g}"} if "p_split" in given else {}
    elif not copies and ("p_min" in given or given.get("policy") == "fixed"):
        translated.add("p_min")
        flags["--draft-p-min" if old else "--spec-draft-p-min"] = f"{drafting.budget.p_min:g}"
    if "corpora" in translated and request.corpora:
        if len(request.corpora) > 1 or not Path(request.corpora[0]).is_file():
            raise UsageError(f"{program} reads one n-gram cache of llama.cpp: give its file (--corpus)")
        flags["-lcs"] = request.corpora[0]
    request.require_supported_settings(program, translated)
    return [*out, *(word for flag, value in flags.items() for word in (flag, str(value)))]


def model_flags(name: str, path: str, repository: str, file: str) -> list[str]:
    """Return the flags of a file, or of a repository of the hub and its file. Raises UsageError."""
    name = export.strip_prefix(name)
    if not export.is_gguf(name):
        raise UsageError(f"{name}: llama.cpp reads GGUF files only")
    if Path(name).exists():
        return [path, name]
    user, base, *rest = name.split("/", 2)
    return [repository, f"{user}/{base}", *(word for part in rest for word in (file, part))]
