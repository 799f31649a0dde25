"""*Jobs*: what the visitor has run unattended, what it prints, and schedules; a new one is submitted here too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.forms.job import JobForm
from forebay_dashboards.http.handler import PageHandler, unavailable
from forebay_dashboards.rows.job_costs import Costs
from forebay_dashboards.rows.pool import Job, JobOutput
from forebay_dashboards.upstream.sections import Section, attempt

JOBS_SHOWN = 50


class JobsView(PageHandler):
    """What all pages of jobs share."""

    view: View = "usage"
    here = "jobs"

    async def costs(self, jobs: Sequence[Job]) -> Section[Costs]:
        """What they have cost so far."""
        found = await attempt(self.services.billing.job_costs(self.token, jobs), Text("Costs"))
        return Section(None if found.content is None else Costs(found.content), found.problem)


class JobsPage(JobsView):
    """``GET jobs?file=&environment=``, its fragment ``jobs/list``; ``POST jobs`` submits a job, sets a schedule or removes one."""

    page = "jobs"

    async def get(self, part: str | None = None) -> None:
        if part == "list":
            self.show("fragments/jobs.html", **await self._jobs())
            return
        form = JobForm({name: self.get_query_argument(name, "") for name in ("file", "environment")})
        await self._show_all(form, None, None)

    async def post(self, _part: str | None = None) -> None:
        form, saved = JobForm({name: self.get_body_argument(name, "") for name in self.request.body_arguments}), None
        try:
            if "remove" in self.request.body_arguments:
                await self.services.pool.remove_schedule(self.token, form.schedule)
                saved = Text("The schedule is removed.")
            elif form.cron:
                await self.services.pool.set_schedule(self.token, form.body(self.zone_name))
                saved = Text("The schedule is set.")
            else:
                job = await self.services.pool.submit_job(self.token, form.body(None))
                self.redirect(f"{self.services.settings.prefix}jobs/{job.id}", status=HTTPStatus.SEE_OTHER)
                return
        except (FormError, UpstreamRefused, UpstreamUnavailable) as error:
            refused = isinstance(error, (FormError, UpstreamRefused))
            self.set_status(HTTPStatus.BAD_REQUEST if refused else HTTPStatus.SERVICE_UNAVAILABLE)
            await self._show_all(form, error.text, None)
            return
        await self._show_all(JobForm({}), None, saved)

    async def _show_all(self, form: JobForm, problem: Text | None, saved: Text | None) -> None:
        shown, schedules, flavors = await asyncio.gather(
            self._jobs(),
            attempt(self.services.pool.schedules(self.token), Text("Your schedules")),
            attempt(self.services.pool.flavors(self.token), Text("Flavors")),
        )
        values = {**shown, "schedules": schedules, "flavors": flavors, "zone": self.zone_name}
        self.show("jobs.html", form=form, problem=problem, saved=saved, **values)

    async def _jobs(self) -> dict[str, object]:
        jobs = await attempt(self.services.pool.jobs(self.token, JOBS_SHOWN), Text("Your jobs"))
        return {"jobs": jobs, "costs": await self.costs(jobs.content or ())}


class JobPage(JobsView):
    """``GET jobs/{number}`` and its fragments ``state``, ``cost`` and ``output?attempt=&after=`` below it; ``POST`` cancels it."""

    page = "job"

    async def get(self, number: str, part: str | None = None) -> None:
        if part == "state":
            self.show("fragments/job_state.html", job=await self._job(number))
        elif part == "cost":
            self.show("fragments/job_cost.html", **await self._cost(await self._job(number)))
        elif part == "output":
            self.show("fragments/job_output.html", **await self._output(int(number)))
        else:
            await self._show_all(number, None)

    async def post(self, number: str, _part: str | None = None) -> None:
        problem = None
        try:
            await self.services.pool.cancel_job(self.token, int(number))
        except (UpstreamRefused, UpstreamUnavailable) as error:
            refused = isinstance(error, UpstreamRefused)
            self.set_status(HTTPStatus.CONFLICT if refused else HTTPStatus.SERVICE_UNAVAILABLE)
            problem = error.text
        await self._show_all(number, problem)

    async def _show_all(self, number: str, problem: Text | None) -> None:
        job, output = await asyncio.gather(self._job(number), self._output(int(number)))
        self.show("job.html", problem=problem, **await self._cost(job), **output)

    async def _cost(self, job: Job) -> dict[str, object]:
        return {"job": job, "costs": await self.costs([job])}

    async def _job(self, number: str) -> Job:
        """Raises Problem."""
        try:
            return await self.services.pool.job(self.token, int(number))
        except (UpstreamRefused, UpstreamUnavailable) as error:
            raise unavailable(Text("No job"), error) from None

    async def _output(self, number: int) -> dict[str, object]:
        """Of the run that is asked for, else the newest, what comes after what the page has."""
        attempt_asked, after = self._number("attempt"), self._number("after") or 0
        asked = self.services.pool.job_output(self.token, number, attempt_asked, after)
        output = await attempt(asked, Text("What it printed"))
        found: JobOutput | None = output.content
        cut = found is not None and bool(found.pieces) and found.pieces[0].number > after + 1
        followed = found is not None and found.over and found.attempt < (await self._job(str(number))).attempt
        return {"number": number, "output": output, "after": after, "cut": cut, "followed": followed}

    def _number(self, name: str) -> int | None:
        text = self.get_query_argument(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
