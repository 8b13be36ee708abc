"""VFIformer (Lu et al., CVPR 2022): the picture half-way between two, by flow, warping and a windowed transformer.

Attributes have the names of the published state dict. Flows are ``s 2 h w`` in pixels, x before y; ``s`` runs over
both sides of all pairs: first the flows towards the pictures before, then those towards the pictures after. To
``warp`` a picture by its flow shows it as it would look half-way.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from procap.shapes import Bool, Float, Pictures, Tensor

CONTEXT = 24
"""Channels of the first level of context features; each further level doubles them and halves the sides."""

WIDTH = 160
HEADS = 2
WINDOW = 8
"""Pixels per side of a window of attention."""

SHIFT = WINDOW // 2
SLOPE = 0.2
"""Of the leaky rectifiers."""

HIDDEN = -100.0
"""Added to the logit of a place that must not be seen, as published; it weighs about 1e-43 then."""

Flows = Float[Tensor, "s 2 h w"]
Maps = Float[Tensor, "s c h w"]
Grid = Float[Tensor, "b h w d"]
Windows = Float[Tensor, "b windows places d"]


def warp(maps: Maps, flows: Flows) -> Maps:
    """Each pixel is fetched from where its flow points, linearly; what lies outside repeats the edge."""
    h, w = flows.shape[2:]
    across = torch.linspace(-1, 1, w, device=flows.device) + flows[:, 0] * (2 / (w - 1))
    down = torch.linspace(-1, 1, h, device=flows.device)[:, None] + flows[:, 1] * (2 / (h - 1))
    places = torch.stack([across, down], dim=-1)
    return F.grid_sample(maps, places, mode="bilinear", padding_mode="border", align_corners=True)


def resize(maps: Maps, factor: float | int) -> Float[Tensor, "s c h2 w2"]:
    """By a power of two, linearly."""
    return F.interpolate(maps, scale_factor=factor, mode="bilinear", align_corners=False)


def resize_flows(flows: Float[Tensor, "s two h w"], factor: float | int) -> Float[Tensor, "s two h2 w2"]:
    """As ``resize``; flows are in pixels and grow with the picture."""
    return resize(flows, factor) * factor


def by_side(flows: Float[Tensor, "b 4 h w"]) -> Flows:
    """Both flows of each pair, in the order that ``warp`` takes them in."""
    return rearrange(flows, "b (side xy) h w -> (side b) xy h w", side=2)


def beside(maps: Maps) -> Float[Tensor, "b c2 h w"]:
    """Both sides of each pair, as channels."""
    return torch.cat(maps.chunk(2), dim=1)


def conv(inputs: int, outputs: int, stride: int = 1, size: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2), nn.PReLU(outputs))


def named(**parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(parts))


def leaky(*convs: nn.Module) -> nn.Sequential:
    """A leaky rectifier after each."""
    return nn.Sequential(*(part for each in convs for part in (each, nn.LeakyReLU(SLOPE))))


class FlowScale(nn.Module):
    """Flows at half the sides, estimated from a picture made ``scale`` times smaller."""

    def __init__(self, inputs: int, width: int, scale: int) -> None:
        super().__init__()
        self.scale = scale
        self.conv0 = nn.Sequential(conv(inputs, width // 2, 2), conv(width // 2, width, 2))
        self.convblock = nn.Sequential(*(conv(width, width) for _ in range(8)))
        self.conv1 = nn.ConvTranspose2d(width, 4, 4, 2, 1)

    def forward(self, seen: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 4 h2 w2"]:
        x = self.conv0(resize(seen, 1 / self.scale))
        return resize(self.conv1(x + self.convblock(x)), self.scale)


class FlowNet(nn.Module):
    """Flows from coarse to fine: each scale sees the pictures warped by the sum so far and adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.block0 = FlowScale(6, 240, scale=4)
        self.block1 = FlowScale(10, 150, scale=2)
        self.block2 = FlowScale(10, 90, scale=1)

    def forward(self, ends: Float[Tensor, "s 3 h w"]) -> tuple[Float[Tensor, "b 4 h2 w2"], ...]:
        """The three sums, coarse to fine, at half the sides."""
        sums = [self.block0(beside(ends))]
        for block in (self.block1, self.block2):
            whole = resize_flows(sums[-1], 2)
            warped = warp(ends, by_side(whole))
            sums.append(sums[-1] + block(torch.cat([beside(warped), whole], dim=1)))
        return tuple(sums)


class ContextLevel(nn.Module):
    """Two convolutions, the first with the stride."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(inputs, outputs, stride)
        self.conv2 = conv(outputs, outputs)

    def forward(self, x: Float[Tensor, "s c h w"]) -> Float[Tensor, "s c2 h2 w2"]:
        return self.conv2(self.conv1(x))


class FlowUpdate(nn.Module):
    """One correction of the flows at one level, from how well the features fit that they fetch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.occl_convs = nn.Sequential(
            *conv(2 * width, width, size=1), *conv(width, width, size=1), nn.Conv2d(width, 1, 1), nn.Sigmoid()
        )
        self.corr_convs = nn.Sequential(*conv(9, width, size=1), *conv(width, width, size=1))
        self.flow_convs = nn.Sequential(*conv(2, width), *conv(width, width))
        self.motion_convs = conv(2 * width, width)
        self.gru = nn.Sequential(*conv(3 * width + 2, width), *conv(width, width))
        self.flow_head = nn.Sequential(*conv(width, width), nn.Conv2d(width, 2, 3, 1, 1))

    def forward(self, context: Maps, flows: Flows) -> Flows:
        around = F.unfold(context, 3, padding=1).unflatten(2, context.shape[2:])
        fetched = warp(around, flows).unflatten(1, (context.shape[1], 9))
        own = fetched[:, :, 4]
        first, second = own.chunk(2)
        share = self.occl_convs(beside(own))
        merged = (share * first + (1 - share) * second).repeat(2, 1, 1, 1)
        fit = (F.normalize(merged)[:, :, None] * F.normalize(fetched)).sum(dim=1)
        motion = self.motion_convs(torch.cat([self.corr_convs(fit), self.flow_convs(flows)], dim=1))
        return flows + self.flow_head(self.gru(torch.cat([merged, own, motion, flows], dim=1)))


class Refinement(nn.Module):
    """Flows corrected on four levels of context features, from an eighth of the sides to the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = ContextLevel(3, CONTEXT, 1)
        self.conv2 = ContextLevel(CONTEXT, 2 * CONTEXT, 2)
        self.conv3 = ContextLevel(2 * CONTEXT, 4 * CONTEXT, 2)
        self.conv4 = ContextLevel(4 * CONTEXT, 8 * CONTEXT, 2)
        self.rf_block1 = FlowUpdate(CONTEXT)
        self.rf_block2 = FlowUpdate(2 * CONTEXT)
        self.rf_block3 = FlowUpdate(4 * CONTEXT)
        self.rf_block4 = FlowUpdate(8 * CONTEXT)

    def forward(self, ends: Float[Tensor, "s 3 h w"], flows: Float[Tensor, "s 2 h2 w2"]) -> tuple[Flows, list[Tensor]]:
        """From flows at half the sides: those at the whole, and the context warped by them, fine to coarse."""
        context = [self.conv1(ends)]
        for level in (self.conv2, self.conv3, self.conv4):
            context.append(level(context[-1]))
        flows = self.rf_block4(context[3], resize_flows(flows, 1 / 4))
        for update, maps in ((self.rf_block3, context[2]), (self.rf_block2, context[1]), (self.rf_block1, context[0])):
            flows = update(maps, resize_flows(flows, 2))
        warped, smaller = [], flows
        for maps in context:
            warped.append(warp(maps, smaller))
            smaller = resize_flows(smaller, 1 / 2)
        return flows, warped


def windows(grid: Grid) -> Windows:
    """Row by row, as are the places of each."""
    return rearrange(grid, "b (y p) (x q) d -> b (y x) (p q) d", p=WINDOW, q=WINDOW)


def wide_windows(grid: Grid) -> Windows:
    """Around the centre of each window: as many places, half as dense, so twice as far; the edge is a mirror."""
    halved = F.pad(resize(grid.movedim(3, 1), 1 / 2), (WINDOW // 4,) * 4, mode="reflect")
    cut = F.unfold(halved, WINDOW, stride=WINDOW // 2)
    return rearrange(cut, "b (d places) windows -> b windows places d", d=grid.shape[3])


def regions(grid: Grid) -> Float[Tensor, "1 h w 1"]:
    """Numbers of the parts of a shifted grid; the shift has made neighbours of what lies at opposite edges."""
    rows, columns = (
        (at >= side - WINDOW).float() + (at >= side - SHIFT)
        for side in grid.shape[1:3]
        for at in (torch.arange(side, device=grid.device),)
    )
    return (3 * rows[:, None] + columns)[None, :, :, None]


def same_region(grid: Grid, asked: Callable[[Grid], Windows]) -> Bool[Tensor, "windows 1 places places"]:
    """Whether a place of a window and one that it asks, given by ``asked``, are in the same region."""
    numbers = regions(grid)
    return (windows(numbers) == asked(numbers).mT).transpose(0, 1)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Float[Tensor, "offsets heads"],
    seen: Bool[Tensor, "windows 1 places places"] | None,
) -> Windows:
    """``table`` has the bias of every offset between two places; ``seen`` is False where a place must not look."""
    at = torch.arange(WINDOW, device=table.device)
    apart = at[:, None] - at + WINDOW - 1
    offsets = apart[:, None, :, None] * (2 * WINDOW - 1) + apart[None, :, None, :]
    bias = rearrange(table[offsets], "p q r s heads -> heads (p q) (r s)")
    if seen is not None:
        bias = bias + torch.where(seen, 0.0, HIDDEN)
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    return rearrange(attended, "b windows heads places d -> b windows places (heads d)")


def split(x: Windows, parts: int) -> Any:
    """Queries, keys and values, or the last two, by head."""
    return rearrange(x, "b windows places (n heads d) -> n b windows heads places d", n=parts, heads=HEADS)


def offset_table() -> nn.Parameter:
    return nn.Parameter(torch.zeros((2 * WINDOW - 1) ** 2, HEADS))


class WindowAttention(nn.Module):
    """Each place sees its window."""

    def __init__(self) -> None:
        super().__init__()
        self.relative_position_bias_table = offset_table()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, grid: Grid, shifted: bool) -> Windows:
        seen = same_region(grid, windows) if shifted else None
        query, key, value = split(self.qkv(windows(grid)), 3)
        return self.proj(attend(query, key, value, self.relative_position_bias_table, seen))


class CrossScaleAttention(nn.Module):
    """Each place sees its window and, with the same query, the wide window around it."""

    def __init__(self) -> None:
        super().__init__()
        self.relative_position_bias_table_x = offset_table()
        self.relative_position_bias_table_y = offset_table()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.kv = nn.Linear(WIDTH, 2 * WIDTH)
        self.merge1 = nn.Linear(2 * WIDTH, WIDTH)
        self.merge2 = nn.Linear(WIDTH, WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, grid: Grid, shifted: bool) -> Windows:
        query, key, value = split(self.qkv(windows(grid)), 3)
        seen = same_region(grid, windows) if shifted else None
        near = attend(query, key, value, self.relative_position_bias_table_x, seen)
        key, value = split(self.kv(wide_windows(grid)), 2)
        seen = same_region(grid, wide_windows) if shifted else None
        far = attend(query, key, value, self.relative_position_bias_table_y, seen)
        return self.proj(near + self.merge2(F.leaky_relu(self.merge1(torch.cat([near, far], dim=-1)), SLOPE)))


class WindowBlock(nn.Module):
    """Pre-norm attention and feed-forward; a shifted block moves the grid by half a window meanwhile."""

    def __init__(self, attention: nn.Module, shifted: bool) -> None:
        super().__init__()
        self.shifted = shifted
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attn = attention
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = named(fc1=nn.Linear(WIDTH, 2 * WIDTH), act=nn.GELU(), fc2=nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, grid: Grid) -> Grid:
        shift = SHIFT if self.shifted else 0
        attended = self.attn(self.norm1(grid).roll((-shift, -shift), (1, 2)), self.shifted)
        rows = grid.shape[1] // WINDOW
        whole = rearrange(attended, "b (y x) (p q) d -> b (y p) (x q) d", y=rows, p=WINDOW)
        grid = grid + whole.roll((shift, shift), (1, 2))
        return grid + self.mlp(self.norm2(grid))


class BlockGroup(nn.Module):
    """Blocks, every second one shifted, and a convolution, added to what came in."""

    def __init__(self, attention: Callable[[], nn.Module], depth: int) -> None:
        super().__init__()
        blocks = (WindowBlock(attention(), shifted=number % 2 == 1) for number in range(depth))
        self.residual_group = named(blocks=nn.Sequential(*blocks))
        self.conv = nn.Conv2d(WIDTH, WIDTH, 3, 1, 1)

    def forward(self, grid: Grid) -> Grid:
        return grid + self.conv(self.residual_group(grid).movedim(3, 1)).movedim(1, 3)


class Synthesis(nn.Module):
    """A transformer on four levels, down and up again; the warped context joins it at each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_first = nn.Conv2d(2 * CONTEXT, WIDTH, 3, 1, 1)
        self.patch_embed = named(norm=nn.LayerNorm(WIDTH))
        self.layers0, self.layers1, self.layers2 = (
            nn.Sequential(BlockGroup(WindowAttention, 3), BlockGroup(CrossScaleAttention, 3)) for _ in range(3)
        )
        self.layers3 = nn.Sequential(BlockGroup(WindowAttention, 1), BlockGroup(WindowAttention, 1))
        self.conv_after_body0, self.conv_after_body1, self.conv_after_body2 = (
            leaky(nn.Conv2d(WIDTH + joined * CONTEXT, WIDTH, 3, 2, 1), nn.Conv2d(WIDTH, WIDTH, 3, 1, 1))
            for joined in (2, 4, 8)
        )
        self.conv_up0, self.conv_up1, self.conv_up2 = (
            leaky(nn.ConvTranspose2d(WIDTH + joined, WIDTH, 4, 2, 1)) for joined in (16 * CONTEXT, WIDTH, WIDTH)
        )
        self.conv_last1 = nn.Sequential(*leaky(nn.Conv2d(2 * WIDTH, WIDTH, 3, 1, 1)), nn.Conv2d(WIDTH, WIDTH, 3, 1, 1))
        self.conv_last2 = nn.Sequential(
            *leaky(nn.Conv2d(WIDTH, WIDTH // 2, 3, 1, 1)), nn.Conv2d(WIDTH // 2, 4, 3, 1, 1)
        )
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, fused: Float[Tensor, "b c h w"], context: list[Tensor]) -> Float[Tensor, "b 4 h w"]:
        """The residual (three channels) and the mask (one), before their sigmoids."""
        first = self.conv_first(fused)
        levels = [self._attended(first, self.layers0)]
        for shrink, layers, maps in (
            (self.conv_after_body0, self.layers1, context[0]),
            (self.conv_after_body1, self.layers2, context[1]),
            (self.conv_after_body2, self.layers3, context[2]),
        ):
            levels.append(self._attended(shrink(torch.cat([levels[-1], beside(maps)], dim=1)), layers))
        x = self.conv_up0(torch.cat([levels[3], beside(context[3])], dim=1))
        x = self.conv_up1(torch.cat([x, levels[2]], dim=1))
        x = self.conv_up2(torch.cat([x, levels[1]], dim=1))
        return self.conv_last2(first + self.conv_last1(torch.cat([x, levels[0]], dim=1)))

    def _attended(self, x: Float[Tensor, "b d h w"], layers: nn.Module) -> Float[Tensor, "b d h w"]:
        return self.norm(layers(self.patch_embed(x.movedim(1, 3)))).movedim(3, 1)


class VFIformer(nn.Module):
    """The full published network, 24.2 M weights."""

    def __init__(self) -> None:
        super().__init__()
        self.flownet = FlowNet()
        self.refinenet = Refinement()
        self.fuse_block = leaky(nn.Conv2d(12, 2 * CONTEXT, 3, 1, 1), nn.Conv2d(2 * CONTEXT, 2 * CONTEXT, 3, 1, 1))
        self.transformer = Synthesis()

    def forward(self, before: Pictures, after: Pictures) -> Pictures:
        """The picture half-way in time, in [0, 1]; sides must be multiples of 64."""
        ends = torch.cat([before, after])
        flows, context = self.refinenet(ends, by_side(self.flownet(ends)[-1]))
        warped = warp(ends, flows)
        output = self.transformer(self.fuse_block(torch.cat([beside(ends), beside(warped)], dim=1)), context)
        residual, mask = 2 * output[:, :3].sigmoid() - 1, output[:, 3:].sigmoid()
        first, second = warped.chunk(2)
        return (mask * first + (1 - mask) * second + residual).clamp(0, 1)
