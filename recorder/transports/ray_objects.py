"""Objects of Ray: arguments of calls, results, and what ``ray.put`` stores.

The agent that an actor is, is the number of actors that its program made before it. Whoever makes
one writes that down beside the logs, under the name that the actor has in Ray.
"""

from __future__ import annotations

import functools
import inspect
import os
import pickle
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .. import ranks
from ..log import Content
from .decoding import numbers_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from ..log import Log
    from .channels import Channels

WORKER = "default_worker.py"  # the program of a process in which actors live
SECONDS, PAUSE = 10.0, 0.005  # an actor waits for its number so long


class RayObjects:
    """The hooks of one process.

    Args:
        settled: called once it is known which agent this process is.
    """

    def __init__(self, log: Log, channels: Channels, settled: Callable[[], None]) -> None:
        self._log, self._channels, self._settled = log, channels, settled
        self._actors = 0  # actors that this process has made
        self._ray: Any = None
        if os.path.basename(sys.argv[0] if sys.argv else "") == WORKER:
            ranks.forget_place()  # it is the same for all of them

    def hook_ray(self, ray: Any) -> None:
        """Hook ``ray``: objects that are stored and read, and who executes what."""
        self._ray, put, get = ray, ray.put, ray.get

        @functools.wraps(put)
        def stored(value: Any, *given: Any, **named: Any) -> Any:
            begun = self._channels.begun("ray.put")
            reference = put(value, *given, **named)
            self._post(f"ray:{reference.hex()}", value, begun)
            return reference

        @functools.wraps(get)
        def read(references: Any, *given: Any, **named: Any) -> Any:
            for reference in self._references(references):
                self._channels.took(f"ray:{reference.hex()}")
            return get(references, *given, **named)

        ray.put, ray.get = stored, read
        actor, function, manager = (
            import_module(f"ray.{name}")
            for name in ("actor", "remote_function", "_private.function_manager")
        )
        self._hook_calls(actor.ActorMethod)
        self._hook_calls(function.RemoteFunction)
        self._hook_making(actor.ActorClass)
        self._hook_executing(manager.FunctionActorManager)

    def _hook_calls(self, kind: Any) -> None:
        own = kind._remote

        @functools.wraps(own)
        def call(of: Any, args: Any = None, kwargs: Any = None, **named: Any) -> Any:
            begun = self._channels.begun("ray.call")
            result = own(of, args, kwargs, **named)
            for reference in self._references(result):
                self._passed(args, kwargs, reference.task_id().hex(), begun)
                break
            return result

        kind._remote = call

    def _hook_making(self, kind: Any) -> None:
        own = kind._remote

        @functools.wraps(own)
        def made(of: Any, args: Any = None, kwargs: Any = None, **named: Any) -> Any:
            begun = self._channels.begun("ray.call")
            actor = own(of, args=args, kwargs=kwargs, **named)
            name = actor._actor_id
            path = self._number_of(name.hex())
            with open(f"{path}.new", "w") as file:
                file.write(str(self._actors))
            os.replace(f"{path}.new", path)
            self._actors += 1
            task = self._ray.TaskID.for_actor_creation_task(name).hex()
            self._passed(args, kwargs, task, begun)
            return actor

        kind._remote = made

    def _hook_executing(self, kind: Any) -> None:
        own, make = kind.get_execution_info, kind._make_actor_method_executor

        @functools.wraps(make)
        def made(manager: Any, name: str, method: Any) -> Any:
            return self._executing(make(manager, name, method), method)

        @functools.wraps(own)
        def information(manager: Any, job: Any, descriptor: Any) -> Any:
            found = own(manager, job, descriptor)
            if descriptor.is_actor_method() or hasattr(found.function, "_dpaudit"):
                return found
            seen = self._executing(found.function, found.function)
            seen._dpaudit = True
            found = found._replace(function=seen)
            manager._function_execution_info[descriptor.function_id] = found
            return found

        kind.get_execution_info, kind._make_actor_method_executor = information, made

    def _executing(self, own: Any, method: Any) -> Any:
        """A function that a worker calls for another process."""
        operator, site = "ray.return", self._channels.site_of(method)

        @functools.wraps(own)
        def execute(*given: Any, **named: Any) -> Any:
            self._be_the_actor()
            task = str(self._ray.get_runtime_context().get_task_id())
            self._channels.took(f"ray:call:{task}")
            result = own(*given, **named)
            if inspect.iscoroutine(result):
                return finish(result, task)
            if inspect.isgenerator(result):
                return yielding(result, task)
            if inspect.isasyncgen(result):
                return yielding_later(result, task)
            returned(result, task)
            return result

        async def finish(running: Any, task: str) -> Any:
            result = await running
            returned(result, task)
            return result

        def yielding(results: Any, task: str) -> Iterator[Any]:
            for i, part in enumerate(results, 2):  # the first one is the generator itself
                post(part, task, i)
                yield part

        async def yielding_later(results: Any, task: str) -> AsyncIterator[Any]:
            i = 1
            async for part in results:
                i += 1
                post(part, task, i)
                yield part

        def returned(result: Any, task: str) -> None:
            several = getattr(method, "__ray_num_returns__", 1)
            parts = result if isinstance(several, int) and several > 1 else [result]
            for i, part in enumerate(parts, 1):
                post(part, task, i)

        def post(part: Any, task: str, i: int) -> None:
            channel = f"ray:{task}{i.to_bytes(4, 'little').hex()}"
            self._post(channel, part, self._channels.begun(operator, site))

        return execute

    def _be_the_actor(self) -> None:
        if ranks.is_given():
            return
        name = self._ray.get_runtime_context().get_actor_id()
        path = "" if name is None else self._number_of(name)
        deadline = time.monotonic() + SECONDS
        while path and time.monotonic() < deadline:
            if os.path.exists(path):
                with open(path) as file:
                    ranks.be(int(file.read()))
                self._settled()
                return
            time.sleep(PAUSE)

    def _number_of(self, name: str) -> str:
        """The file that holds the number of an actor."""
        return os.path.join(self._log.folder, f"actor-{name}")

    def _passed(self, args: Any, kwargs: Any, task: str, begun: dict[str, Any]) -> None:
        """The arguments of a call; objects of which it has the names come from who has them."""
        channel, values = f"ray:call:{task}", {}
        named = {**{str(i): one for i, one in enumerate(args or ())}, **(kwargs or {})}
        for name, value in named.items():
            if isinstance(value, self._ray.ObjectRef):
                self._channels.passed(f"ray:{value.hex()}", channel)
            elif value is not None and not isinstance(value, str):
                values[name] = value
        if values:
            self._post(channel, values, begun)

    def _post(self, channel: str, value: Any, begun: dict[str, Any]) -> None:
        if value is None or isinstance(value, str):
            return
        found = numbers_in(value)
        if not found:
            try:
                data = pickle.dumps(value)
            except Exception:
                said = f"{begun['site']}: {type(value).__name__} of Ray holds no numbers"
                self._log.unseen(f"{said}, and is not recorded")
                return
            found = [Content("0", (len(data),), "uint8", data)]
        self._channels.posted("", channel, found, begun=begun)

    def _references(self, value: Any) -> Iterator[Any]:
        for one in value if isinstance(value, (list, tuple)) else [value]:
            one = getattr(one, "_generator_ref", one)
            if isinstance(one, self._ray.ObjectRef):
                yield one
