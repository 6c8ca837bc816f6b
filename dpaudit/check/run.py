"""dpaudit check: every audit of a claims file, from the cache or anew, then judged together."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from dpaudit.errors import ConfigError, Problem, RunError, nearest
from dpaudit.files.artifact_file import artifact_file
from dpaudit.files.captured_file import CapturedConfig, audit_kind
from dpaudit.files.check_report import Checked, CheckReport, KeyFigure, Statement
from dpaudit.files.claims_file import ClaimsFile
from dpaudit.files.config import AuditConfig, read_toml
from dpaudit.files.finding import Name, Role
from dpaudit.files.kinds import refuse_other_kind
from dpaudit.files.result import AuditResult
from dpaudit.pipeline.content import content_key
from dpaudit.pipeline.processes import Waiting, share_of_memory
from dpaudit.source import hash_of, own_source
from dpaudit.version import __version__

from .baseline import Baseline, Ledger, check_baseline, config_hash, key_metrics
from .cache import AuditCache
from .evidence import History, Stake, as_notes, merged, of_notes, settled, stakes_of
from .one_audit import AuditJob
from .processes import run_all
from .seal import Seal, machine_key
from .statements import beside_baseline, by_evidence, statements

SEED_DIGITS = 8  # of a content's hash, of which a fresh seed is made


@dataclass(frozen=True)
class Auditor:
    """The program that makes an audit: how it is started, and the files that it is made of.

    It imports nothing from the folder that it is started in (``-P``).
    """

    command: tuple[str, ...] = (sys.executable, "-P", "-m", "dpaudit.check.one_audit")
    source: tuple[Path, ...] = field(default_factory=own_source)


@dataclass(frozen=True)
class Options:
    """How a claims file is checked; nothing here changes what an audit finds."""

    cache: Path
    baseline: Path | None = None  # None: none is compared with
    update_baseline: bool = False
    fresh: bool = False  # run again what is in the cache
    device: str = "cpu"
    data_root: Path | None = None
    cores: int = os.cpu_count() or 1
    max_memory: int | None = None  # bytes of all audits together; None: what is free
    auditor: Auditor = field(default_factory=Auditor)


@dataclass(frozen=True)
class Source:
    """One check's audit as it is written, and what its content hashes to."""

    index: int
    name: str
    key: str
    content: dict[str, Any]
    path: Path  # of the file that holds it
    text: str
    at: tuple[str | int, ...]  # where in that file

    def config(self) -> AuditConfig | CapturedConfig:
        """Checked and completed, which imports its plug-ins. Raises ConfigError."""
        return audit_kind(self.content).from_table(self.content, self.path, self.text, self.at)


def run_check(file: ClaimsFile, options: Options, waiting: Waiting) -> CheckReport:
    """Run what is not in the cache, judge all claims, limits and the baseline.

    Raises:
        DpauditError: it could not be run; one line for each problem.
    """
    baseline = _baseline(file, options)
    code = None if file.claims.import_from is None else file.folder / file.claims.import_from
    with _importing_from(code):
        own = hash_of(options.auditor.source)
        sources = [_source(file, i, code, options, own) for i in range(len(file.claims.check))]
        if baseline is not None and not options.update_baseline:
            _refuse_another_config(baseline, options, sources)
        cache = AuditCache(options.cache, Seal(machine_key()), file.folder.resolve())
        for source in sources if options.fresh else ():
            cache.forget(source.key)
        missing = [source for source in sources if cache.find(source.key) is None]
        notes = [_not_taken(source, cache) for source in missing if cache.holds(source.key)]
        configs = _configs(missing)
    audits = _of_each_content(file, missing)
    share = share_of_memory(options.max_memory, min(options.cores, len(audits)), options.device)
    jobs = {
        source.name: AuditJob(
            config=configs[source.name],
            cache=options.cache.resolve(),
            key=source.key,
            seal=cache.seal.key,
            device=options.device,
            data_root=options.data_root,
            cores=1,
            max_memory=share,
            import_from=None if code is None else code.resolve(),
            root=cache.root,
        )
        for source in audits.values()
    }
    took = run_all(options.auditor.command, file, jobs, options.cores, waiting)
    seconds = {source.name: took[audits[source.key].name] for source in missing}
    results = {source.name: _result(cache, source) for source in sources}
    found = _report(file, options, cache, sources, results, seconds, baseline)
    notes += _not_for_the_next(cache, sources)
    return found.model_copy(update={"notes": (*notes, *found.notes)})


def _of_each_content(file: ClaimsFile, sources: list[Source]) -> dict[str, Source]:
    """Of the checks that share an audit the one with the longest time budget, by key."""
    chosen: dict[str, Source] = {}
    for source in sources:
        other = chosen.setdefault(source.key, source)
        if file.claims.check[source.index].seconds > file.claims.check[other.index].seconds:
            chosen[source.key] = source
    return chosen


def _report(
    file: ClaimsFile,
    options: Options,
    cache: AuditCache,
    sources: list[Source],
    results: Mapping[str, AuditResult],
    seconds: Mapping[str, float],
    baseline: Baseline | None,
) -> CheckReport:
    said, notes = statements(file, results), []
    parts = [part for s in sources for part in (s.key, cache.inputs(s.key).digest(cache.root))]
    content = sha256(" ".join(parts).encode()).hexdigest()[:16]
    if baseline is not None and not options.update_baseline:
        baseline = baseline.model_copy(
            update={"ledger": _noted(cache, file, baseline.ledger, content)}
        )
        said += _evidence(file, cache, sources, results, baseline)[1]
        said += beside_baseline(file, results, baseline, content)
    if options.update_baseline:
        assert options.baseline is not None
        old = baseline.ledger if baseline is not None else Ledger()
        ledger = _noted(cache, file, old, content)
        checks = {s.name: check_baseline(s.content, results[s.name]) for s in sources}
        stakes, _, refuted = _evidence(file, cache, sources, results, baseline)
        evidence = _kept_on(settled(stakes, refuted), sources)
        Baseline(checks=checks, ledger=ledger, evidence=evidence).write(options.baseline)
        notes.append(f"baseline written: {options.baseline}")
        notes += [
            f'note: "{h.check}": several audits together refute {h.claim}; evidence begins anew'
            for h in refuted
        ]
    return CheckReport(
        claims_file=str(file.path),
        version=__version__,
        checks=tuple(
            _checked(file, cache, source, results[source.name], seconds, baseline)
            for source in sources
        ),
        statements=tuple(said),
        notes=tuple(notes),
    )


def _evidence(
    file: ClaimsFile,
    cache: AuditCache,
    sources: list[Source],
    results: Mapping[str, AuditResult],
    baseline: Baseline | None,
) -> tuple[tuple[Stake, ...], list[Statement], list[History]]:
    """All evidence, what is said of it, and which claims it refutes.

    It is the baseline's, then what came since and is noted in the cache, then that of these audits.
    """
    configs = {source.name: config_hash(source.content) for source in sources}
    new = [s for name, result in results.items() for s in stakes_of(name, configs[name], result)]
    name = f"evidence-{file.path.name}.json"
    with cache.locked(name):
        before = () if baseline is None else baseline.evidence
        stakes = merged([*before, *of_notes(cache.noted(name) or ()), *new])
        cache.note(name, as_notes(stakes))
    return stakes, *by_evidence(file, results, configs, stakes)


def _kept_on(stakes: tuple[Stake, ...], sources: list[Source]) -> tuple[Stake, ...]:
    """Without those of checks that are gone or have another config, which count no more."""
    there = {(source.name, config_hash(source.content)) for source in sources}
    return tuple(stake for stake in stakes if (stake.check, stake.config) in there)


def _baseline(file: ClaimsFile, options: Options) -> Baseline | None:
    """The baseline as it is. One that is about to be replaced only lends its ledger."""
    if options.baseline is None:
        return None
    if options.update_baseline:
        try:
            return Baseline.read(options.baseline)
        except ConfigError:
            return None
    baseline = Baseline.read(options.baseline)
    problems = [
        f'{options.baseline}: no check "{check.name}" in it{nearest(check.name, baseline.checks)}; '
        "write it anew with --update-baseline"
        for check in file.claims.check
        if check.name not in baseline.checks
    ]
    known = {check.name for check in file.claims.check}
    problems += [
        f'{options.baseline}: check "{name}" is in it and not in {file.path}'
        f"{nearest(name, known)}; if that is meant, write it anew with --update-baseline"
        for name in baseline.checks
        if name not in known
    ]
    if problems:
        raise ConfigError("DPA067", "\n".join(problems))
    return baseline


def _refuse_another_config(baseline: Baseline, options: Options, sources: list[Source]) -> None:
    problems = [
        f'{options.baseline}: check "{source.name}" was made from another config; if that change '
        "is meant, write it anew with --update-baseline"
        for source in sources
        if baseline.checks[source.name].config != config_hash(source.content)
    ]
    if problems:
        raise ConfigError("DPA067", "\n".join(problems))


def _noted(cache: AuditCache, file: ClaimsFile, ledger: Ledger, content: str) -> Ledger:
    """The baseline's ledger with what was compared since, kept in the cache, and this content."""
    name = f"ledger-{file.path.name}.json"
    with cache.locked(name):
        ledger = ledger.with_([*(cache.noted(name) or ()), content])
        cache.note(name, ledger.contents)
    return ledger


def _source(file: ClaimsFile, i: int, code: Path | None, options: Options, own: str) -> Source:
    check = file.claims.check[i]
    at: tuple[str | int, ...] = ()
    if isinstance(check.audit, str):
        path = file.folder / check.audit
        content, text = read_toml(path)
        refuse_other_kind(path, content, "audit", "program")
    else:
        path, content, text = file.path, check.audit, file.text
        at = ("check", i, "audit")
    if not content.get("claim") and not check.threshold and options.baseline is None:
        said = "nothing to check: no claim in the audit, no threshold, and no baseline"
        raise ConfigError.of([file.located(("check", i), Problem("DPA050", said))])

    def key_of(audit: dict[str, Any]) -> str:
        decides = path.parent, code, options.device, options.data_root, own
        return content_key(audit, *decides)

    if check.fresh_seed:
        content = {key: value for key, value in content.items() if key != "seed"}
        content["seed"] = int(key_of(content)[:SEED_DIGITS], 16)
    return Source(i, check.name, key_of(content), content, path, text, at)


def _configs(sources: list[Source]) -> dict[str, dict[str, Any]]:
    """The complete config of each audit. Raises ConfigError with the problems of all of them."""
    configs, problems = {}, list[Problem]()
    for source in sources:
        try:
            configs[source.name] = source.config().model_dump(mode="json")
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError.of(problems)
    return configs


@contextmanager
def _importing_from(code: Path | None) -> Iterator[None]:
    """Modules of the caller's folder can be imported meanwhile; the claims file asks for that."""
    if code is None:
        yield
        return
    sys.path.insert(0, str(code.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(code.resolve()))


def _not_taken(source: Source, cache: AuditCache) -> str:
    if cache.made(source.key) is not None:
        return f'note: "{source.name}": {cache.doubt(source.key)}, so the audit ran again'
    return (
        f'note: "{source.name}": its entry in the cache was not made with the key of this machine, '
        "or was changed since, so the audit ran again"
    )


def _not_for_the_next(cache: AuditCache, sources: list[Source]) -> list[str]:
    """Which audits the next check must make again, whatever is unchanged then."""
    return [
        f'note: "{source.name}": its audit runs again in each check: {unknown[0]}'
        for source in sources
        if (unknown := cache.inputs(source.key).unknown)
    ]


def _result(cache: AuditCache, source: Source) -> AuditResult:
    result = cache.made(source.key)
    if result is None:
        raise RunError(
            "DPA070", f'"{source.name}": its audit ended without a result in {cache.path}'
        )
    return result


def _checked(
    file: ClaimsFile,
    cache: AuditCache,
    source: Source,
    result: AuditResult,
    seconds: Mapping[str, float],
    baseline: Baseline | None,
) -> Checked:
    old = baseline.checks.get(source.name) if baseline is not None else None
    entry = cache.entry(source.key)
    picture = _picture(result)
    return Checked(
        name=source.name,
        line=file.line(("check", source.index)),
        seconds=seconds.get(source.name, 0.0),
        cached=source.name not in seconds,
        figures=tuple(
            KeyFigure(
                label=key.label,
                now=key.metric,
                before=None if old is None else old.metrics.get(key.label),
            )
            for key in key_metrics(result)
        ),
        picture=None if picture is None else str(artifact_file(entry, picture)),
        report=str(entry / "report.html"),
    )


def _picture(result: AuditResult) -> str | None:
    """The defended reconstruction that comes closest to the truth, if any was attempted."""
    best, chosen = float("-inf"), None
    for finding in result.findings:
        if finding.role is Role.RECONSTRUCTION and finding.world in (None, "defense"):
            ssim = finding.value(Name.SSIM)
            if ssim is not None and ssim > best and "images" in finding.artifacts:
                best, chosen = ssim, finding.artifacts["images"]
    return chosen
