"""The engines that count for a job: of its pipeline's kind, with every label of the job (SS-JOB-ENGINES, SS-Q3).

An engine that might be one of them but does not say its kind or labels, or whose document was refused,
makes the collection unknown: it could be the one that stands in the way.
"""

import operator
from collections.abc import Callable, Hashable

from policy.core.model import Condition
from policy.systems.streamsets.access import Access, unknown
from policy.systems.streamsets.moments import first_version
from policy.systems.streamsets.records import OBJECT, Version

RULE = "SS-JOB-ENGINES"


def engines_of(access: Access, job: str, until: int | None) -> tuple[str, ...] | Condition:
    """Names of the job's engines, sorted; or why they are not known.

    ``until``: of an active job's present run its start (ms), for the pipeline and the labels with which it was started.
    """
    wanted = _wanted(access, job, until)
    if isinstance(wanted, Condition):
        return wanted
    refused = [name for name in access.facts.broken(OBJECT) if name.startswith("engine:")]
    if refused:
        return Condition(
            None, f"whether {refused[0]} is an engine of {job} is not known: its document was refused", RULE
        )
    if pending := _candidates(access, wanted, access.facts.find(OBJECT, "engine", "incomplete")):
        return Condition(
            None, f"whether {pending[0]} is an engine of {job} is not known: give engine_kind and labels", RULE
        )
    return tuple(_candidates(access, wanted, _labelled(access, wanted)))


Wanted = tuple[str, frozenset[str], str]  # kind, labels, organization


def _wanted(access: Access, job: str, until: int | None) -> Wanted | Condition:
    """What the job's engines are, from the documents of job and pipeline, as they were at ``until``."""
    version = _at(access, job, until, _of_job)
    if isinstance(version, Condition):
        return version
    pipeline, organization = version.links.get("pipeline"), access.organization_of(version)
    if isinstance(organization, Condition):
        return organization
    if pipeline is None or version.labels is None:
        return Condition(None, f"the document of {job} does not give its pipeline and labels", RULE)
    design = _at(access, pipeline[0], until, operator.attrgetter("kind"))
    if isinstance(design, Condition):
        return design
    if design.kind is None:
        return Condition(None, f"the document of {pipeline[0]} does not give its pipeline_kind", RULE)
    return design.kind, version.labels, organization


def current(access: Access, name: str) -> Version | Condition:
    """The newest version of an object; not a deletion."""
    thing = access.thing(name)
    return unknown(name) if thing is None or thing.current.deleted else thing.current


def _at(access: Access, name: str, until: int | None, of: Callable[[Version], Hashable]) -> Version | Condition:
    """An object as it was at ``until`` (ms; None: now); of several that it may have been, if all say the same."""
    thing = access.thing(name)
    if thing is None or thing.current.deleted:
        return unknown(name)
    versions = access.at_moment(name, until) or first_version(thing)  # of what is younger than the run
    if len({of(version) for version in versions}) > 1:
        return Condition(None, f"what {name} was when the run started is not known any more", RULE)
    return versions[-1]


def _of_job(job: Version) -> Hashable:
    return job.links.get("pipeline"), job.labels, job.organization


def _labelled(access: Access, wanted: Wanted) -> frozenset[str]:
    """Engines with every label; for a job without labels all of the kind."""
    kind, labels, _ = wanted
    if not labels:
        return access.facts.find(OBJECT, "engine-kind", kind)
    return frozenset.intersection(*(access.facts.find(OBJECT, "engine-label", label) for label in labels))


def _candidates(access: Access, wanted: Wanted, names: frozenset[str]) -> list[str]:
    """Those of ``names`` that are engines of the job, as far as their documents say; sorted."""
    kind, labels, organization = wanted
    candidates = []
    for name in sorted(names):
        engine = current(access, name)
        if isinstance(engine, Condition):
            continue
        home = access.organization_of(engine)
        fits = engine.kind in (None, kind) and (engine.labels is None or engine.labels >= labels)
        if fits and (isinstance(home, Condition) or home == organization):
            candidates.append(name)
    return candidates
