"""What names mean in code with NumPy, torch, JAX, TensorFlow and ``random``.

Names decide nothing alone: rules ask for several of these facts about one value.
"""

import re
from typing import Literal

Family = Literal["gaussian", "laplace", ""]  # "": noise of an unknown law
LoopKind = Literal["recipients", "layers", "records", "rounds", "other"]

# The last part of a call's name: the law, and where its scale stands among the arguments.
DRAWS: dict[str, tuple[Family, int | None]] = {
    "normal": ("gaussian", 1),
    "normal_": ("gaussian", 1),
    "gauss": ("gaussian", 1),
    "gaussian": ("gaussian", 1),
    "normalvariate": ("gaussian", 1),
    "Normal": ("gaussian", 1),
    "stateless_normal": ("gaussian", 3),
    "randn": ("gaussian", None),
    "randn_like": ("gaussian", None),
    "standard_normal": ("gaussian", None),
    "then_gaussian": ("gaussian", 0),
    "laplace": ("laplace", 1),
    "Laplace": ("laplace", 1),
    "then_laplace": ("laplace", 0),
}
IN_PLACE = re.compile(r"[a-z]\w*(_|_?inplace)$")
SHIFTED = ("tf", "tensorflow")  # take the shape first: the scale comes one later
KEYED = ("jax", "jrandom", "jr")  # take a key first; the scale is a factor outside
SCALES = ("scale", "std", "stddev", "std_dev", "sigma", "b", "noise_scale")
NOISE_HELPER = re.compile(
    r"_*(add|apply|inject|draw|sample|generate|gen|make|get|create)?_*\w*"
    r"(laplac|gauss)\w*(noise|mechanism|perturb|privat)\w*$|"
    r"_*(add|apply|inject|draw|sample|generate|gen)_(dp_)?(laplac\w*_|gauss\w*_)?noise(_\w+)?$|"
    r"_*(randomi[sz]e|privati[sz]e|perturb)(_\w+)?$",
    re.IGNORECASE,
)
MASK = re.compile(r"mask|share|pairwise", re.IGNORECASE)  # noise that is meant to cancel

CLIP_GRADIENT = {"clip_grad_norm_", "clip_grad_norm", "clip_by_global_norm"}
CLIP_COORDINATES = {"clip", "clip_", "clamp", "clamp_", "clip_by_value", "clip_grad_value_"}
CLIP_HELPER = re.compile(r"_*(l[12]_?)?(\w+_)?clip(s|ped)?(_\w+)?$", re.IGNORECASE)
BOUND = re.compile(r"clip|bound|thr|max_?(grad_?)?norm|radius|(^|\.)[CS]$|^c$|l2|l1", re.IGNORECASE)

NORMS = {"norm", "vector_norm", "matrix_norm", "global_norm", "norms"}
NORM_HELPER = re.compile(r"_*(\w+_)?norms?(_\w+)?$", re.IGNORECASE)
NO_NORM = re.compile(r"(layer|batch|group|instance|weight|spectral|rms)_?norm", re.IGNORECASE)
LOWEST = {"max", "min", "maximum", "minimum", "clamp", "clip", "clamp_", "clip_", "where"}
FACTORS = {"einsum", "mul", "multiply", "mul_", "div", "div_", "divide", "true_divide", "scale"}
ADDING = {"add", "add_", "sub", "sub_", "subtract"}

# What gives its argument back, or its receiver, in another shape, place or precision.
_SAME = """
to cpu cuda numpy item float astype reshape view view_as expand expand_as type type_as clone
detach copy deepcopy flatten ravel squeeze unsqueeze contiguous tolist sum stack concatenate
cat hstack vstack array asarray tensor as_tensor Tensor sqrt square pow abs transpose
permute double half int long bfloat16 sample rsample rvs mul_ add_ div_ sub_ requires_grad_
list tuple dict set zip enumerate reversed sorted iter next values items keys get pop copy_
float32 float64 float16 mean
"""
SAME = set(_SAME.split())
EMPTY = re.compile(r"(zeros|ones|empty|full|arange|eye)(_like)?$")
_ABOUT = """
dtype device requires_grad size shape out generator key rng seed
"""
ABOUT = set(_ABOUT.split())
_REDUCTIONS = """
max min mean median sum std var percentile quantile item norm nanmax
"""
REDUCTIONS = set(_REDUCTIONS.split())

INTEGERS = {"int", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "long", "short"}
HALVES = {"half", "float16", "bfloat16"}

SENDS = re.compile(
    r"_*(i?send(to|all|_\w+)?|Send|publish|send_message|send_multipart|post|put|push|transmit|"
    r"unicast|deliver)$"
)
LOGS = {"print", "info", "debug", "warning", "log", "log_info", "log_debug", "add_scalar"}
LOGS |= {"log_metric", "log_metrics", "log_warning", "error", "write", "record"}

SEEDS = {"manual_seed", "manual_seed_all", "seed", "default_rng", "RandomState", "PRNGKey"}
SEEDS |= {"set_seed", "set_random_seed", "key", "Random"}

EPSILON = re.compile(r"(^|[._])(eps|epsilon)($|_(?!s$)|s$)", re.IGNORECASE)
SENSITIVITY = re.compile(r"sensitivity$|(^|[._])sens$|delta_f$", re.IGNORECASE)
PRIVACY = re.compile(
    r"privac|private|sensitiv|noise_mult|(^|_)dp(_|$)|max_grad_norm", re.IGNORECASE
)
MECHANISM = re.compile(r"mechanism|^(gaussian|laplace)", re.IGNORECASE)
NOISING = re.compile(r"mechanism|nois(e|ed|y)(_|$)|perturb|obfuscat", re.IGNORECASE)
COMPOSED = re.compile(r"account|compos|ledger|spent|(^|_)odometer|remaining|exhaust", re.IGNORECASE)
MANY = re.compile(
    r"round|step|iter|epoch|(^|[._])(num|n|max|total)_|count|quer|releases|(^|\.)[TK]$|split|share",
    re.IGNORECASE,
)
# The words of a name that stands for a number which the data did not make.
_SETTING_WORDS = """
eps epsilon sigma clip clipping config configs cfg args hparams seed multiplier sensitivity stddev
std lr rate dtype device rng generator key logger path fraction
"""
SETTING_WORDS = set(_SETTING_WORDS.split())
_LAST_SETTING_WORDS = """
delta norm bound threshold scale rank budget alpha beta gamma mu tau index idx i j k t n d
dim dims shape size sizes steps step round rounds epoch epochs name names type factor stdev
momentum c C b self cls constant
"""
LAST_SETTING_WORDS = set(_LAST_SETTING_WORDS.split())
FIRST_SETTING_WORDS = {"n", "num", "max", "min", "total", "is", "has", "use"}
LENGTH_OF_BATCH = re.compile(
    r"batch|(^|[._])[xX]s?(_\w+)?$|(^|[._])(inputs?|data|records?|examples?|samples?|images?)(_\w+)?$|"
    r"per_(sample|example)|targets?$|labels?$|(^|[._])grad(ient)?s$",
)
NOT_BATCH = re.compile(r"size|dataset|loader|client|worker|node|layer|param|shape", re.IGNORECASE)

_RECIPIENTS = (
    r"neighb|peers?$|recipient|receivers?$|destination|out_edges|clients?$|agents?$|workers?$|"
    r"(^|[._])nodes?$|successors"
)
_LAYERS = r"param|layer|state_dict|ndarrays?|weights|modules|tensors?$|leaves|arrays"
_ROUNDS = r"loader|batches$|round|epoch|steps?$|iter(ation)?s?$|n_iter|num_iter|(^|[._])[tTkK]$"
_RECORDS = (
    r"batch|record|example|sample|microbatch|per_|(^|[._])[xX]s?$|images|inputs|users?$|updates$|"
    r"grads?(ients)?$|data"
)
LOOPS: tuple[tuple[LoopKind, "re.Pattern[str]"], ...] = (
    ("recipients", re.compile(_RECIPIENTS, re.IGNORECASE)),
    ("layers", re.compile(_LAYERS, re.IGNORECASE)),
    ("rounds", re.compile(_ROUNDS, re.IGNORECASE)),
    ("records", re.compile(_RECORDS, re.IGNORECASE)),
)
SIZES = re.compile(r"dim|numel|size|shape|(^|[._])d$|n_param|num_param", re.IGNORECASE)
ACCOUNTANT = re.compile(
    r"compute_rdp\w*|get_noise_multiplier|find_noise_multiplier|PoissonSampledDpEvent|"
    r"compute_dp_sgd_privacy\w*|get_privacy_spent|step$|compute_eps\w*|compute_epsilon\w*"
)
RATE = re.compile(r"^(q|sample_rate|sampling_(rate|probability|prob)|sampling_ratio)$")
CLAIMED = re.compile(r"get_epsilon|target_epsilon|with_epsilon|get_privacy_spent")
POISSON = re.compile(r"poisson|make_private|DPDataLoader|UniformWithReplacement", re.IGNORECASE)

# Every rule is about noise, the formula for its scale, or an accountant.
WORTH_READING = re.compile(
    r"laplac|gauss|randn|noise|normal_?\(|standard_normal|1\.25|poisson_sampling|sample_rate",
    re.IGNORECASE,
)


def is_setting(path: str) -> bool:
    """Whether a dotted name stands for a number which the data did not make."""
    words = [word.lower() for word in re.split(r"_|(?<=[a-z])(?=[A-Z])", path.rpartition(".")[2])]
    return (
        any(word in SETTING_WORDS for word in words)
        or words[-1] in LAST_SETTING_WORDS
        or words[0] in FIRST_SETTING_WORDS
        or (path.isupper() and len(path) > 1)
    )
