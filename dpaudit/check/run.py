"""dpaudit check: every audit of a claims file, from the cache or anew, then judged together."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from dpaudit.errors import ConfigError, Problem, RunError, nearest
from dpaudit.files.claims_file import Checked, CheckReport, ClaimsFile, KeyFigure, Statement
from dpaudit.files.config import read_toml, refuse_other_kind
from dpaudit.files.finding import Metric, Name, Role
from dpaudit.files.kinds import audit_kind
from dpaudit.files.result import AuditResult
from dpaudit.files.whole import artifact_file
from dpaudit.pipeline.content import content_key
from dpaudit.pipeline.processes import Order, Waiting, share_of_memory, side_by_side
from dpaudit.source import hash_of, own_source
from dpaudit.version import __version__

from .baseline import Baseline, Ledger, check_baseline, config_hash, key_metrics, labelled
from .cache import AuditCache, Seal, machine_key
from .evidence import History, Stake, as_notes, merged, of_notes, settled, stakes_of
from .ledgers import DeclaredLedger, declared
from .one_audit import AuditJob
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
class CheckOptions:
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


def run_check(file: ClaimsFile, options: CheckOptions, waiting: Waiting) -> CheckReport:
    """Run what is not in the cache, judge all claims, limits and the baseline.

    Raises:
        DpauditError: it could not be run; one line for each problem.
    """
    baseline, ledgers = _baseline(file, options), declared(file)
    code = None if file.claims.import_from is None else file.folder / file.claims.import_from
    with _importing_from(code):
        own = hash_of(options.auditor.source)
        sources = [_source(file, i, code, options, own) for i in range(len(file.claims.check))]
        written = {source.name: source.content for source in sources}
        written |= {one.name: one.content for one in ledgers}
        if baseline is not None and not options.update_baseline:
            _refuse_other_configs(options.baseline, baseline, written)
        cache = AuditCache(options.cache, Seal(machine_key()), file.folder.resolve())
        for source in sources if options.fresh else ():
            cache.forget(source.key)
        missing = [source for source in sources if cache.find(source.key) is None]
        notes = [_not_taken(s, cache) for s in missing if os.path.lexists(cache.entry(s.key))]
        configs = _configs(missing)
    audits: dict[str, Source] = {}  # by key, of the check with the longest time budget
    for source in missing:
        other = audits.setdefault(source.key, source)
        if file.claims.check[source.index].seconds > file.claims.check[other.index].seconds:
            audits[source.key] = source
    memory = share_of_memory(options.max_memory, min(options.cores, len(audits)), options.device)
    orders = dict[str, Order]()
    for source in audits.values():
        job = AuditJob(
            config=configs[source.name],
            cache=options.cache.resolve(),
            key=source.key,
            seal=cache.seal.key,
            device=options.device,
            data_root=options.data_root,
            cores=max(1, options.cores // max(1, len(audits))),
            max_memory=memory,
            import_from=None if code is None else code.resolve(),
            root=cache.root,
        )
        progress = cache.partial(source.key) / "progress.json"
        orders[source.name] = Order(job.model_dump_json(), progress)
    took = _run_all(file, options, orders, waiting)
    seconds = {source.name: took[audits[source.key].name] for source in missing}
    results = {}
    for source in sources:
        result = cache.made(source.key)
        if result is None:
            problem = f'"{source.name}": its audit ended without a result in {cache.path}'
            raise RunError("DPA070", problem)
        results[source.name] = result
        if unknown := cache.inputs(source.key).unknown:  # whatever is unchanged then
            notes.append(f'note: "{source.name}": its audit runs again in each check: {unknown[0]}')
    done = _Finished(file, options, cache, sources, ledgers, results, seconds)
    return done.report(baseline, notes)


def _run_all(
    file: ClaimsFile, options: CheckOptions, orders: Mapping[str, Order], waiting: Waiting
) -> dict[str, float]:
    """Run audits by the name of their check, as many at once as there are cores; seconds of each.

    Raises:
        DpauditError: one could not be run, or not in its time; all others are finished, and a line
            says what is wrong with each.
    """
    index = {check.name: i for i, check in enumerate(file.claims.check)}

    def budget(name: str) -> float:
        return file.claims.check[index[name]].seconds

    took: dict[str, float] = {}
    problems: list[Problem] = []
    places: list[dict[str, str]] = [{}] * options.cores
    running = side_by_side(options.auditor.command, orders, places, waiting, budget)
    with closing(running) as over:
        for ended in over:
            i, took[ended.name] = index[ended.name], ended.seconds
            if ended.out_of_time:
                late = Problem(
                    "DPA070",
                    f'"{ended.name}": not finished after {budget(ended.name):g} s, so there is no '
                    "verdict; what was done is kept, and the next check goes on",
                    "give it more seconds, or the audit fewer rounds, trials or attacks",
                )
                problems.append(file.located(("check", i, "seconds"), late))
            for one in ended.problems:
                named = one._replace(text=f'"{ended.name}": {one.text}')
                problems.append(file.located(("check", i), named))
    if problems:
        raise RunError.of(problems)
    return took


@dataclass(frozen=True)
class _Finished:
    """The audits of a claims file with their results."""

    file: ClaimsFile
    options: CheckOptions
    cache: AuditCache
    sources: list[Source]
    ledgers: list[DeclaredLedger]
    results: Mapping[str, AuditResult]
    seconds: Mapping[str, float]  # of those that ran

    def report(self, baseline: Baseline | None, notes: list[str]) -> CheckReport:
        """What is said of all, beside the baseline or as the new one."""
        cache, found = self.cache, statements(self.file, self.results)
        found += [ledger.statement for ledger in self.ledgers]
        keys = [source.key for source in self.sources]
        parts = [part for key in keys for part in (key, cache.inputs(key).digest(cache.root))]
        content = sha256(" ".join(parts).encode()).hexdigest()[:16]
        if self.options.update_baseline:
            assert self.options.baseline is not None
            ledger = self._ledger(Ledger() if baseline is None else baseline.ledger, content)
            stakes, _, refuted = self._evidence(baseline)
            configs = self._configs()
            kept = tuple(s for s in settled(stakes, refuted) if configs.get(s.check) == s.config)
            checks = {s.name: check_baseline(s.content, self.results[s.name]) for s in self.sources}
            checks |= {one.name: one.baseline for one in self.ledgers}
            Baseline(checks=checks, ledger=ledger, evidence=kept).write(self.options.baseline)
            notes = [*notes, f"baseline written: {self.options.baseline}"]
            notes += [
                f'note: "{h.check}": several audits together refute {h.claim}; evidence begins anew'
                for h in refuted
            ]
        elif baseline is not None:
            ledger = self._ledger(baseline.ledger, content)
            baseline = baseline.model_copy(update={"ledger": ledger})
            found += self._evidence(baseline)[1]
            found += beside_baseline(self.file, self.results, baseline, content)
            found += [one.beside(baseline.checks[one.name]) for one in self.ledgers]
        return CheckReport(
            claims_file=str(self.file.path),
            version=__version__,
            checks=(
                *(self._checked(source, baseline) for source in self.sources),
                *(one.checked(baseline) for one in self.ledgers),
            ),
            statements=tuple(found),
            notes=tuple(notes),
        )

    def _configs(self) -> dict[str, str]:
        return {source.name: config_hash(source.content) for source in self.sources}

    def _evidence(
        self, baseline: Baseline | None
    ) -> tuple[tuple[Stake, ...], list[Statement], list[History]]:
        """All evidence, what is said of it, and which claims it refutes.

        It is the baseline's, then what came since and is noted in the cache, then that of these
        audits.
        """
        configs = self._configs()
        new = [s for name, r in self.results.items() for s in stakes_of(name, configs[name], r)]
        before = () if baseline is None else baseline.evidence

        def add(noted: tuple[str, ...]) -> tuple[str, ...]:
            return as_notes(merged([*before, *of_notes(noted), *new]))

        stakes = tuple(of_notes(self.cache.noted_with(f"evidence-{self.file.path.name}.json", add)))
        return stakes, *by_evidence(self.file, self.results, configs, stakes)

    def _ledger(self, ledger: Ledger, content: str) -> Ledger:
        """With what was compared since, which is kept in the cache, and this content."""
        noted = self.cache.noted_with(
            f"ledger-{self.file.path.name}.json",
            lambda noted: ledger.with_([*noted, content]).contents,
        )
        return ledger.with_(noted)

    def _checked(self, source: Source, baseline: Baseline | None) -> Checked:
        old = baseline.checks.get(source.name) if baseline is not None else None
        before = {} if old is None else old.metrics
        ranges = {} if old is None else old.ranges
        result, entry = self.results[source.name], self.cache.entry(source.key)
        picture = _picture(result)
        return Checked(
            name=source.name,
            line=self.file.line(("check", source.index)),
            seconds=self.seconds.get(source.name, 0.0),
            cached=source.name not in self.seconds,
            figures=tuple(
                KeyFigure(label=key.label, now=key.metric, before=before.get(key.label))
                for key in key_metrics(result)
            )
            + tuple(
                KeyFigure(
                    label=f"{label} | epsilon measured at most",
                    now=Metric(value=claim.range.measured),
                    before=Metric(value=ranges[label].measured) if label in ranges else None,
                )
                for label, claim in labelled(result)
                if claim.range is not None
            ),
            picture=None if picture is None else str(artifact_file(entry, picture)),
            report=str(entry / "report.html"),
        )


def _baseline(file: ClaimsFile, options: CheckOptions) -> Baseline | None:
    """The baseline as it is. One that is about to be replaced only lends its ledger."""
    if options.baseline is None:
        return None
    if options.update_baseline:
        try:
            return Baseline.read(options.baseline)
        except ConfigError:
            return None
    baseline = Baseline.read(options.baseline)
    known = [one.name for one in file.claims.check] + [one.name for one in file.claims.ledger]
    problems = [
        f'{options.baseline}: no check "{name}" in it{nearest(name, baseline.checks)}; '
        "write it anew with --update-baseline"
        for name in known
        if name not in baseline.checks
    ]
    problems += [
        f'{options.baseline}: check "{name}" is in it and not in {file.path}'
        f"{nearest(name, known)}; if that is meant, write it anew with --update-baseline"
        for name in baseline.checks
        if name not in known
    ]
    if problems:
        raise ConfigError("DPA067", "\n".join(problems))
    return baseline


def _refuse_other_configs(
    path: Path | None, baseline: Baseline, written: Mapping[str, dict[str, Any]]
) -> None:
    """Raises ConfigError for each check of a baseline that was made from other content."""
    changed = [
        f'{path}: check "{name}" was made from another config; if that change is meant, write it '
        "anew with --update-baseline"
        for name, content in written.items()
        if baseline.checks[name].config != config_hash(content)
    ]
    if changed:
        raise ConfigError("DPA067", "\n".join(changed))


def _source(file: ClaimsFile, i: int, code: Path | None, options: CheckOptions, own: str) -> Source:
    check = file.claims.check[i]
    at: tuple[str | int, ...] = ()
    if isinstance(check.audit, str):
        path = file.folder / check.audit
        content, text = read_toml(path)
        refuse_other_kind(path, content, "audit", "program", "mechanism")
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
    """The complete config of each audit, which imports its plug-ins.

    Raises:
        ConfigError: the problems of all of them.
    """
    configs, problems = {}, list[Problem]()
    for source in sources:
        try:
            written = source.content, source.path, source.text, source.at
            config = audit_kind(source.content).from_table(*written)
            configs[source.name] = config.model_dump(mode="json")
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
        return f'note: "{source.name}": {cache.inputs(source.key).doubt()}, so the audit ran again'
    return (
        f'note: "{source.name}": its entry in the cache was not made with the key of this machine, '
        "or was changed since, so the audit ran again"
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
