"""dpaudit check: every audit of a claims file, from the cache or anew, then judged together."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from dpaudit.errors import ConfigError, DpauditError, Problem, RunError, nearest
from dpaudit.files.atomic_files import artifact_file
from dpaudit.files.claims_file import Checked, CheckReport, ClaimsFile, KeyFigure, Statement
from dpaudit.files.config import read_toml, refuse_other_kind
from dpaudit.files.file_problems import FileKey, located
from dpaudit.files.finding import Metric, Name, Role
from dpaudit.files.kinds import audit_kind
from dpaudit.files.result import AuditResult
from dpaudit.pipeline.content import content_key
from dpaudit.pipeline.processes import Order, Waiting, share_of_memory, side_by_side
from dpaudit.source import hash_of, own_source
from dpaudit.version import __version__

from .baseline import Baseline, Contents, check_baseline, config_hash, key_metrics, labelled
from .cache import AuditCache, Seal, machine_key
from .changes import changes, kept
from .evidence import History, Stake, as_notes, merged, of_notes, settled, stakes_of
from .ledgers import DeclaredLedger, declared
from .one_audit import AuditJob
from .statements import beside_baseline, by_evidence, not_checked, statements

NAMED = 3  # keys of an audit that is another one
SEED_DIGITS = 8  # digits of a content's hash that make a fresh seed


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
class AuditText:
    """One check's audit as it is written, and what its content hashes to."""

    index: int
    name: str
    key: str
    content: dict[str, Any]
    path: Path  # file that holds it
    text: str
    at: tuple[str | int, ...]  # place in that file


@dataclass(frozen=True)
class _Problems:
    """Why checks of a claims file, by their names, are without an outcome."""

    file: ClaimsFile
    found: dict[str, list[Problem]] = field(default_factory=dict)

    def add(self, name: str, *problems: Problem) -> None:
        self.found.setdefault(name, []).extend(problems)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """What is raised is of one check; the others go on."""
        try:
            yield
        except DpauditError as error:
            self.add(name, *error.problems)

    @property
    def statements(self) -> list[Statement]:
        """Each, at its check's line; of one check at most as many as of one error."""
        claims = self.file.claims
        names = [*(one.name for one in claims.check), *(one.name for one in claims.ledger)]
        return [
            not_checked(self.file, name, problem)
            for name in names
            if name in self.found
            for problem in RunError.of(self.found[name]).problems
        ]


def run_check(file: ClaimsFile, options: CheckOptions, waiting: Waiting) -> CheckReport:
    """Run what is not in the cache, judge all claims, limits and the baseline.

    An audit that cannot be made is a statement of its own beside those of all others.

    Raises:
        DpauditError: the file as a whole cannot be checked; one line for each problem.
    """
    baseline, problems = _baseline(file, options), _Problems(file)
    ledgers = []
    for i, claim in enumerate(file.claims.ledger):
        with problems.of(claim.name):
            ledgers.append(declared(file, i))
    code = None if file.claims.import_from is None else file.folder / file.claims.import_from
    sources = list[AuditText]()
    with _importing_from(code):
        own = hash_of(options.auditor.source)
        for i, check in enumerate(file.claims.check):
            with problems.of(check.name):
                sources.append(_source(file, i, code, options, own))
        written = {s.name: _Written(s.content, s.path, s.text, s.at) for s in sources}
        places = {one.name: i for i, one in enumerate(file.claims.ledger)}
        for one in ledgers:
            at = "ledger", places[one.name]
            written[one.name] = _Written(one.content, file.path, file.text, at)
        if baseline is not None and not options.update_baseline:
            _refuse_other_configs(options.baseline, baseline, written)
        cache = AuditCache(options.cache, Seal(machine_key()), file.folder.resolve())
        for source in sources if options.fresh else ():
            cache.forget(source.key)
        missing = [source for source in sources if cache.find(source.key) is None]
        notes = [_not_taken(s, cache) for s in missing if os.path.lexists(cache.entry(s.key))]
        configs = {}
        for source in missing:
            with problems.of(source.name):
                configs[source.name] = _config(source)
    running = [source for source in missing if source.name in configs]
    seconds = _run_all(file, options, _Missing(running, configs, code, cache), problems, waiting)
    results = {}
    for source in sources:
        if source.name in problems.found:
            continue
        result = cache.made(source.key)
        if result is None:
            said = f'"{source.name}": its audit ended without a result in {cache.path}'
            problems.add(source.name, Problem("DPA070", said))
            continue
        results[source.name] = result
        if unknown := cache.inputs(source.key).unknown:  # whatever is unchanged then
            notes.append(f'note: "{source.name}": its audit runs again in each check: {unknown[0]}')
    return _Finished(file, options, cache, sources, ledgers, results, seconds, problems).report(
        baseline, notes
    )


class _Missing(NamedTuple):
    """The audits that are not in the cache, and what they need."""

    sources: list[AuditText]
    configs: Mapping[str, dict[str, Any]]  # name of the check -> config with all defaults
    code: Path | None
    cache: AuditCache

    def distinct(self, seconds: Callable[[str], float]) -> dict[str, AuditText]:
        """By key, of the check with the longest time budget."""
        audits: dict[str, AuditText] = {}
        for source in self.sources:
            other = audits.setdefault(source.key, source)
            if seconds(source.name) > seconds(other.name):
                audits[source.key] = source
        return audits

    def order(self, source: AuditText, options: CheckOptions, abreast: int) -> Order:
        """What the process of an audit, one of so many, is told."""
        job = AuditJob(
            config=self.configs[source.name],
            cache=options.cache.resolve(),
            key=source.key,
            seal=self.cache.seal.key,
            device=options.device,
            data_root=options.data_root,
            cores=max(1, options.cores // max(1, abreast)),
            max_memory=share_of_memory(
                options.max_memory, min(options.cores, abreast), options.device
            ),
            import_from=None if self.code is None else self.code.resolve(),
            root=self.cache.root,
        )
        return Order(job.model_dump_json(), self.cache.partial(source.key) / "progress.json")


def _run_all(
    file: ClaimsFile,
    options: CheckOptions,
    missing: _Missing,
    problems: _Problems,
    waiting: Waiting,
) -> dict[str, float]:
    """Run audits, as many at once as there are cores; by name of the check the seconds of each.

    Those that could not be run, or not in their time, are added to the problems.
    """
    index = {check.name: i for i, check in enumerate(file.claims.check)}

    def budget(name: str) -> float:
        return file.claims.check[index[name]].seconds

    audits = missing.distinct(budget)
    orders = {s.name: missing.order(s, options, len(audits)) for s in audits.values()}
    took: dict[str, float] = {}
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
                problems.add(ended.name, file.located(("check", i, "seconds"), late))
            for one in ended.problems:
                named = one._replace(text=f'"{ended.name}": {one.text}')
                problems.add(ended.name, file.located(("check", i), named))
    for source in missing.sources:
        other = audits[source.key].name
        if other in problems.found and source.name != other:
            said = f'"{source.name}": its audit is that of "{other}", which has no result'
            shared = problems.found[other][0]._replace(text=said, help="")
            problems.add(source.name, file.located(("check", source.index), shared))
    return {source.name: took[audits[source.key].name] for source in missing.sources}


@dataclass(frozen=True)
class _Finished:
    """The audits of a claims file with their results."""

    file: ClaimsFile
    options: CheckOptions
    cache: AuditCache
    sources: list[AuditText]
    ledgers: list[DeclaredLedger]
    results: Mapping[str, AuditResult]
    seconds: Mapping[str, float]  # times of audits that ran
    problems: _Problems  # checks without a result, and limits that fit none

    def report(self, baseline: Baseline | None, notes: list[str]) -> CheckReport:
        """What is said of all, beside the baseline or as the new one."""
        found = statements(self.file, self.results) + self.problems.statements
        found += [ledger.statement for ledger in self.ledgers]
        if self.options.update_baseline:
            notes = [*notes, *self._write_baseline(baseline, found)]
        elif baseline is not None:
            content = self._content()
            ledger = self._ledger(baseline.ledger, content)
            baseline = baseline.model_copy(update={"ledger": ledger})
            found += self._evidence(baseline)[1]
            found += beside_baseline(self.file, self.results, baseline, content)
            found += [one.beside(baseline.checks[one.name]) for one in self.ledgers]
        return CheckReport(
            claims_file=str(self.file.path),
            version=__version__,
            checks=(
                *(self._checked(check.name, baseline) for check in self.file.claims.check),
                *(one.checked(baseline) for one in self.ledgers),
            ),
            statements=tuple(found),
            notes=tuple(notes),
        )

    def _content(self) -> str:
        """A hash of what the results were made from."""
        keys = [source.key for source in self.sources if source.name in self.results]
        digests = [(key, self.cache.inputs(key).digest(self.cache.root)) for key in keys]
        return sha256(" ".join(part for one in digests for part in one).encode()).hexdigest()[:16]

    def _write_baseline(
        self, baseline: Baseline | None, found: Sequence[Statement]
    ) -> Iterator[str]:
        """Write the new one, if all that it holds is there; what is said of that."""
        assert self.options.baseline is not None
        if any(statement.outcome == "error" for statement in found):
            yield f"baseline not written: {self.options.baseline}: not all could be checked"
            return
        ledger = self._ledger(Contents() if baseline is None else baseline.ledger, self._content())
        stakes, _, refuted = self._evidence(baseline)
        configs = self._configs()
        kept = tuple(s for s in settled(stakes, refuted) if configs.get(s.check) == s.config)
        checks = {
            s.name: check_baseline(s.content, self.results[s.name], self.file.claims.check[s.index])
            for s in self.sources
        }
        checks |= {one.name: one.baseline for one in self.ledgers}
        Baseline(checks=checks, ledger=ledger, evidence=kept).write(self.options.baseline)
        yield f"baseline written: {self.options.baseline}"
        for h in refuted:
            said = f"several audits together refute {h.claim}; evidence begins anew"
            yield f'note: "{h.check}": {said}'

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

    def _ledger(self, ledger: Contents, content: str) -> Contents:
        """Add what was compared since, which the cache keeps, and this content."""
        noted = self.cache.noted_with(
            f"ledger-{self.file.path.name}.json",
            lambda noted: ledger.with_([*noted, content]).contents,
        )
        return ledger.with_(noted)

    def _checked(self, name: str, baseline: Baseline | None) -> Checked:
        index = [check.name for check in self.file.claims.check].index(name)
        line, seconds = self.file.line(("check", index)), self.seconds.get(name, 0.0)
        if name not in self.results:
            return Checked(name=name, line=line, seconds=seconds)
        old = baseline.checks.get(name) if baseline is not None else None
        before = {} if old is None else old.metrics
        ranges = {} if old is None else old.ranges
        [source] = [source for source in self.sources if source.name == name]
        result, entry = self.results[name], self.cache.entry(source.key)
        picture = _picture(result)
        return Checked(
            name=name,
            line=line,
            seconds=seconds,
            cached=name not in self.seconds,
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


class _Written(NamedTuple):
    """What a check's audit, or a ledger's claim, is, and where it is written."""

    content: Mapping[str, Any]
    path: Path
    text: str
    at: FileKey  # place in that file


def _refuse_other_configs(
    path: Path | None, baseline: Baseline, written: Mapping[str, _Written]
) -> None:
    """Raises ConfigError for each check of a baseline that was made from other content.

    It names the keys that differ, and their lines; an older baseline holds no keys.
    """
    lines = []
    for name, now in written.items():
        old = baseline.checks[name]
        if old.config == config_hash(now.content):
            continue
        found = [] if old.written is None else [*changes(old.written, kept(now.content))]
        said = [
            located(now.path, now.text, (*now.at, *one.key), Problem("DPA067", one.sentence)).text
            for one in found[:NAMED]
        ]
        said += [f"and {len(found) - NAMED} more"] if len(found) > NAMED else []
        which = f" ({'; '.join(said)})" if said else ""
        lines.append(
            f'{path}: check "{name}" was made from another config{which}; if that change is meant, '
            "write it anew with --update-baseline"
        )
    if lines:
        raise ConfigError("DPA067", "\n".join(lines))


def _source(
    file: ClaimsFile, i: int, code: Path | None, options: CheckOptions, own: str
) -> AuditText:
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
    return AuditText(i, check.name, key_of(content), content, path, text, at)


def _config(source: AuditText) -> dict[str, Any]:
    """The complete config of an audit, which imports its plug-ins. Raises ConfigError."""
    config = audit_kind(source.content).from_table(
        source.content, source.path, source.text, source.at
    )
    return config.model_dump(mode="json")


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


def _not_taken(source: AuditText, cache: AuditCache) -> str:
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
