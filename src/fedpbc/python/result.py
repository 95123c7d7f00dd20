"""The result of one simulation, and how it shows itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fedpbc.errors import InputError
from fedpbc.experiments.comparison_row import further_values
from fedpbc.experiments.run_record import RunRecord
from fedpbc.limits import check_path
from fedpbc.options import check_kind, nearest
from fedpbc.python.data_frame import data_frame, evaluation_rows
from fedpbc.python.html_table import html_table, paragraph
from fedpbc.report.byte_units import with_unit
from fedpbc.report.page import write_page
from fedpbc.report.plot import run_figure
from fedpbc.simulation.metrics import Metrics
from fedpbc.simulation.views import paper_view
from fedpbc.storage.scratch import scratch_folder
from fedpbc.tasks.parameter_layout import Layout

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

__all__ = ["Result"]


@dataclass(frozen=True, repr=False)
class Result:
    """The result of :func:`simulate`.

    Attributes:
        metrics: of every evaluation.
        models: the final model of each view, as flat vectors.
        layout: the names and shapes of the parameters in these vectors.
        engine: which engine ran, and why.
        cost: what was computed, sent and stored, as in a run's summary.
        folder: where the run is stored; None if it is not.

    Example:
        >>> from fedpbc import Quadratic, simulate
        >>> result = simulate(Quadratic([[8.0]]), "fedavg", "always", rounds=20)
        >>> [metrics.round for metrics in result.metrics]
        [10, 20]
        >>> result.cost["bytes_up"]  # 20 uploads of a number in double precision
        160
        >>> result
        <Result: fedavg over always, 20 rounds, 1 client: loss server 0.0164, averaged 6.58>
    """

    metrics: list[Metrics]
    models: dict[str, Tensor]
    layout: Layout
    engine: str
    cost: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    record: RunRecord | None = field(default=None, compare=False)

    def accuracy(self, view: str | None = None) -> float:
        """The last test accuracy; by default in the view that the paper shows."""
        views = self.metrics[-1].views
        chosen = paper_view(tuple(views)) if view is None else self._checked(view)
        accuracy = views[chosen].test_accuracy
        if accuracy is None:
            raise InputError("this task has no classes, so there is no accuracy: see metrics")
        return accuracy

    def load_into(self, module: nn.Module, view: str) -> None:
        """Copy a view's model into a module with the same parameters."""
        check_kind("module", module, nn.Module, "a torch.nn.Module")
        shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            if shapes.get(name) != shape:
                raise InputError(
                    f"module has no parameter {name} of shape {shape}: it is not the module that "
                    "was trained"
                )
        module.load_state_dict(self.layout.named(self.models[self._checked(view)]), strict=False)

    def _checked(self, view: str) -> str:
        if not isinstance(view, str) or view not in self.models:
            raise InputError("view", view, nearest(view, self.models))
        return view

    @property
    def title(self) -> str:
        """What was run, in a few words."""
        if self.record is None:
            return f"{self.metrics[-1].round} rounds"
        about = self.record.summary
        clients = f"{about['clients']} client{'' if about['clients'] == 1 else 's'}"
        return f"{about['algorithm']} over {about['links']}, {about['rounds']} rounds, {clients}"

    def __repr__(self) -> str:
        views = self.metrics[-1].views
        if any(evaluation.test_accuracy is None for evaluation in views.values()):
            values = [f"{name} {each.test_loss:.3g}" for name, each in views.items()]
            return f"<Result: {self.title}: loss {', '.join(values)}>"
        values = [f"{name} {100 * (e.test_accuracy or 0.0):.1f}" for name, e in views.items()]
        return f"<Result: {self.title}: test % {', '.join(values)}>"

    def _repr_html_(self) -> str:
        last = self.metrics[-1].as_dict()["views"]
        names = further_values(last.values())
        columns = [
            *(
                ("test %", "test_accuracy", 100.0, ".1f"),
                ("train %", "train_accuracy", 100.0, ".1f"),
            ),
            ("test loss", "test_loss", 1.0, ".4g"),
            *((name, name, 1.0, ".4g") for name in names),
        ]
        columns = [c for c in columns if any(view.get(c[1]) is not None for view in last.values())]
        stored = self.cost.get("models_on_server", {})
        rows = []
        for view, values in last.items():
            numbers = [(values.get(key), scale, form) for _, key, scale, form in columns]
            cells = ["–" if v is None else format(scale * v, form) for v, scale, form in numbers]
            count = stored.get(view)
            rows.append([view, *cells, "–" if count is None else f"{count:,}"])
        head = ["view", *(name for name, *_ in columns), "models on server"]
        return paragraph(self.title) + html_table(head, rows) + paragraph(self._costs())

    def _costs(self) -> str:
        cost = self.cost
        parts = [f"{cost[key]:,} {key.replace('_', ' ')}" for key in ("local_steps", "uploads")]
        parts += [
            f"{with_unit(cost[key])} {way}"
            for key, way in (("bytes_up", "up"), ("bytes_down", "down"))
            if cost.get(key) is not None
        ]
        return f"{', '.join(parts)}; {self.metrics[-1].seconds:.1f} s; engine {self.engine}"

    def _lines(self) -> list[dict[str, Any]]:
        return [metrics.as_dict() for metrics in self.metrics]

    def to_pandas(self) -> pandas.DataFrame:
        """Return every evaluation of every view as a data frame, one row each.

        Example:
            >>> from fedpbc import Quadratic, simulate
            >>> result = simulate(Quadratic([[8.0]]), "fedavg", "always", rounds=20)
            >>> result.to_pandas()[["round", "view"]].values.tolist()
            [[10, 'server'], [10, 'averaged'], [20, 'server'], [20, 'averaged']]
        """
        return data_frame(evaluation_rows(self._lines()))

    def plot(self, key: str | None = None, *, views: list[str] | None = None) -> Figure:
        """Return a figure of a value over rounds, one curve per view; a notebook shows it.

        Args:
            key: such as "test_accuracy", "test_loss" or one of the task's metrics; None: the test
                accuracy, or the loss where there are no classes.
            views: which views; None: all.

        Example:
            >>> from fedpbc import Quadratic, simulate
            >>> figure = simulate(Quadratic([[8.0]]), "fedavg", "always", rounds=20).plot()
            >>> figure.axes[0].get_ylabel()
            'test loss'
        """
        lines = self._lines()
        # A metric need not have a value at the end.
        evaluations = [view for line in lines for view in line["views"].values()]
        numbers = (k for view in evaluations for k, v in view.items() if isinstance(v, int | float))
        known = list(dict.fromkeys(numbers))
        if key is None:
            key = "test_accuracy" if "test_accuracy" in known else "test_loss"
        if not isinstance(key, str) or key not in known:
            raise InputError("key", key, nearest(str(key), known))
        check_kind("views", views, (list, tuple, type(None)), "a list of views")
        chosen = [self._checked(view) for view in views] if views else list(lines[-1]["views"])
        return run_figure(lines, self.title, key, chosen)

    def report(self, path: Path | str = "report.html") -> Path:
        """Write the HTML page about this run, and return its path."""
        check_path(path, "path")
        page = Path(path)
        if self.folder is not None:
            write_page(page, [self.folder], title=self.title)
        elif self.record is not None:
            with scratch_folder() as scratch:
                folder = scratch / str(self.record.summary["algorithm"])
                self.record.write(folder)
                write_page(page, [folder], title=self.title, stored=False)
        else:
            raise InputError("this result has no record of its run: simulate() makes one")
        return page
