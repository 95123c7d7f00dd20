from .local_training import LocalTraining as LocalTraining
from .quadratic import Quadratic as Quadratic
from .supervised import Supervised as Supervised
from .task import Evaluation as Evaluation
from .task import Gradients as Gradients
from .task import StackedTask as StackedTask
from .task import Task as Task
from .task import WithGradients as WithGradients
