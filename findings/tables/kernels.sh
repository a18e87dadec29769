#!/usr/bin/env bash
# Version: torch 2.13.0, torchao 0.18.0, optimum-quanto 0.2.7, bitsandbytes 0.50.2, hqq 0.2.8.post1, on a CPU
# Source: https://docs.pytorch.org/docs/stable/func.ux_limitations.html, https://docs.pytorch.org/docs/stable/notes/extending.func.html and each
#   library's own pages (https://docs.pytorch.org/ao, https://huggingface.co/docs/bitsandbytes, https://github.com/huggingface/optimum-quanto)
# Output: the table "What a kernel takes" of docs/results/others.md; ends with another status than 0 if a row differs.
set -euo pipefail
page=$(realpath "$(dirname "$0")/../../docs/results/others.md")
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib torch==2.13.0 torchao==0.18.0 optimum-quanto==0.2.7 bitsandbytes==0.50.2 \
  hqq==0.2.8.post1
PYTHONPATH=lib "${PYTHON:-python3}" -W ignore - <<'PY' 2>err | tee rows.md
import bitsandbytes as bnb
import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
from optimum.quanto import freeze, qint4, qint8, quantize
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

torch.manual_seed(0)


def tried(call):
    try:
        return call()
    except Exception:
        return "refused"


def derivative(f, x):
    z = torch.randn_like(x)
    _, found = torch.func.jvp(f, (x,), (z,))
    difference = (f(x + 0.03 * z) - f(x - 0.03 * z)) / 0.06
    assert difference.norm() > 0.1
    if not found.any():
        return "**0, in silence**"
    return "yes" if (found - difference).norm() < 0.1 * difference.norm() else "another"


def stacked(f, x):
    points = torch.stack([x, 1.1 * x, -x])
    found = torch.func.vmap(f)(points)
    if not torch.allclose(found, torch.stack([f(point) for point in points]), atol=1e-3, rtol=1e-3):
        return "another"
    torch._C._functorch._set_vmap_fallback_enabled(False)
    try:
        torch.func.vmap(f)(points)
    except RuntimeError:
        return "by a loop"
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(True)
    return "yes"


def captured(f, x):
    torch._dynamo.reset()
    return "yes" if torch.allclose(torch.compile(f, fullgraph=True, backend="aot_eager")(x), f(x), atol=1e-2) else "another"


def apart(f, x):
    """How much the records' results change, of their size, if the first record is 100 times as large."""
    beside = x.clone()
    beside[0] *= 100
    change = (f(beside) - f(x))[1:].abs().max() / f(x)[1:].abs().max()
    return "yes" if change < 1e-5 else f"**no ({change:.0%})**"


def row(name, f, *shape, transforms=True):
    x = torch.randn(*shape)
    with torch.no_grad():
        answers = [tried(lambda check=check: check(f, x)) for check in (derivative, stacked)] if transforms else ["-", "-"]
        answers += [tried(lambda check=check: check(f, x)) for check in (captured, apart)]
    print(f"| {name} |", " | ".join(answers), "|")


def attention(backend):
    def f(q):
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, q.flip(2), q, is_causal=True)

    return f


def dense():
    return nn.Sequential(nn.Linear(128, 64))


def quanto(kind):
    model = dense()
    quantize(model, weights=kind)
    freeze(model)
    return model


def torchao(kind):
    model = dense()
    quantize_(model, kind())
    return model.requires_grad_(False)


def bits(kind, **settings):
    model = kind(128, 64, **settings)
    model.load_state_dict(dense()[0].state_dict(), strict=False)
    return model.to("cpu").requires_grad_(False).eval()


long, layer = nn.MultiheadAttention(32, 4, batch_first=True).eval(), nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
row("`scaled_dot_product_attention`, `MATH`", attention(SDPBackend.MATH), 3, 4, 16, 8)
row("the same, `FLASH_ATTENTION`, the default", attention(SDPBackend.FLASH_ATTENTION), 3, 4, 16, 8)
row("`flex_attention`, not compiled", lambda q: flex_attention(q, q, q), 3, 4, 16, 8)
row("`MultiheadAttention`", lambda x: long(x, x, x)[0], 3, 16, 32)
row("`TransformerEncoderLayer`", layer, 3, 16, 32)
row("`LayerNorm`", nn.LayerNorm(32), 3, 32)
row("`RMSNorm`", nn.RMSNorm(32), 3, 32)
row("`cross_entropy`", lambda x: cross_entropy(x, torch.arange(3), reduction="none"), 3, 32)
row("`GRU`", lambda x, net=nn.GRU(32, 8, batch_first=True): net(x)[0], 3, 5, 32)
row("torch `quantize_dynamic`, int8", torch.ao.quantization.quantize_dynamic(dense(), {nn.Linear}), 3, 128)
row("torchao, int8 weights", torchao(Int8WeightOnlyConfig), 3, 128)
row("torchao, int8 weights and inputs", torchao(Int8DynamicActivationInt8WeightConfig), 3, 128)
row("quanto, int8 weights", quanto(qint8), 3, 128)
row("quanto, int4 weights", quanto(qint4), 3, 128)
row("bitsandbytes `Linear8bitLt`", bits(bnb.nn.Linear8bitLt, has_fp16_weights=False), 3, 128)
# its kernel is given addresses, which a transform's tensors do not have: not asked
row("bitsandbytes `Linear4bit`, nf4", bits(bnb.nn.Linear4bit, quant_type="nf4"), 3, 128, transforms=False)
hqq = HQQLinear(nn.Linear(128, 64), BaseQuantizeConfig(nbits=4, group_size=64), compute_dtype=torch.float32, device="cpu")
row("hqq, 4 bits", hqq, 3, 128)
PY
! grep -vxFf "$page" rows.md
