"""`lockkeeper serve` as a process that is asked without end, and what its answers must have led to."""

import http.client
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import yaml

from streaming.kafka.clients import log_ends
from streaming.kafka.topics import create_topics
from streaming.settings import ServeSettings
from streaming.verify.cluster import await_decided
from tests.brokers import free_port
from tests.chaos.processes import LOCKKEEPER, ROOT
from tests.chaos.run import DECIDED_SECONDS, Failed, Run, retry
from tests.waiting import wait_until

PAUSE_SECONDS = 0.02
MAX_STALENESS_SECONDS = 3.0


class Answering:
    """A server with a topic of its own for what it answers; it is started again whenever it ends."""

    def __init__(self, run: Run) -> None:
        world = run.world
        self._run, self._port = run, free_port()
        self.topic = world.names.requests[0].replace("requests", "answered")
        world.names = msgspec.structs.replace(world.names, answered=(self.topic,))
        serve = ServeSettings(
            port=self._port, default_system="lenses6", record="durable", max_staleness_seconds=MAX_STALENESS_SECONDS
        )
        run.settings = world.settings = msgspec.structs.replace(world.settings, topics=world.names, serve=serve)
        create_topics(world.admin, world.names, partitions=2)
        self._config = Path(run.cluster.folder) / "serve.yaml"
        self._config.write_text(yaml.safe_dump(msgspec.to_builtins(run.settings)))
        self.answered: dict[str, bool] = {}  # what callers got, by the request's id
        self._stopping, self._process = threading.Event(), self._start()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._keep, self._ask)]
        for thread in self._threads:
            thread.start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with (self._config.with_suffix(".log")).open("ab") as log:
            command = [*LOCKKEEPER, "serve", "--config", str(self._config)]
            return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def _keep(self) -> None:
        while not self._stopping.is_set():
            self._process.wait()
            if not self._stopping.wait(1.0):
                self._process = self._start()

    def _ask(self) -> None:
        number = 0
        while not self._stopping.is_set():
            number += 1
            asked, id_ = self._run.traffic.request(number), f"http-{number}"
            body = {name: value for name, value in asked.items() if name not in ("id", "system", "deadline")}
            path = "/access/v1/evaluations" if "evaluations" in body else "/access/v1/evaluation"
            try:
                status, said = self._post(path, body, id_)
                if status == 200:
                    self.answered[id_] = bool(said.get("decision"))
                elif said.get("decision") is True:
                    self._run.remarks.append(f"allowed with status {status}")
            except (OSError, http.client.HTTPException, ValueError):
                pass  # it is killed or starting: there is no answer
            time.sleep(PAUSE_SECONDS)

    def _post(self, path: str, body: dict[str, Any], id_: str) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            headers = {"content-type": "application/json", "x-request-id": id_}
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def await_answers(self, count: int) -> None:
        """Return when so many more requests are answered."""
        wanted = len(self.answered) + count
        wait_until(lambda: len(self.answered) >= wanted, f"{count} requests are answered", DECIDED_SECONDS)

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self._process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Ask no more, and end the server."""
        self._stopping.set()
        self._process.terminate()
        for thread in self._threads:
            thread.join(60)

    def check(self) -> None:
        """Raise Failed unless each answer that was given is decided, once, and no decision contradicts one."""
        world = self._run.world
        partitions = [(self.topic, number) for number in (0, 1)]
        ends = {at: retry(lambda at=at: self._end(at)) for at in partitions}
        if not await_decided(self._run.settings, {at: end - 1 for at, end in ends.items() if end}, DECIDED_SECONDS):
            raise Failed("the records of answers are not all decided")
        messages = (message.value() for message in world.reader(world.names.decisions).to_the_end())
        decided = [one for value in messages if b'"answered"' in value and "answered" in (one := json.loads(value))]
        ids = [one["request_id"] for one in decided]
        if lost := self.answered.keys() - set(ids):
            raise Failed(f"{len(lost)} of {len(self.answered)} answers have no decision")
        if doubled := len(ids) - len({one["id"] for one in decided}):
            raise Failed(f"{doubled} records are decided twice")
        wrong = [one for one in decided if one["answered"]["verified"] and not one["answered"]["agrees"]]
        stale = [one for one in decided if one["answered"].get("stale")]
        if wrong or stale:
            raise Failed(f"{len(wrong)} answers are contradicted and {len(stale)} stale: {(wrong + stale)[:1]}")
        verified = sum(one["answered"]["verified"] for one in decided)
        self._run.method = f"{len(self.answered)} answers, {len(decided)} records, {verified} verified"

    def _end(self, partition: tuple[str, int]) -> int:
        return log_ends(self._run.world.admin, [partition])[partition]
