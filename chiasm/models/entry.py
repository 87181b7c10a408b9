"""What the engine asks of a model, and what a family's file offers to the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from chiasm.layers.patch_embedding import PixelNormalisation
from chiasm.layers.weight import Placement
from chiasm.ops.paged_attention import KVCache, PagedBatch
from chiasm.ops.segments import SharedRows
from chiasm.schema.facts import ModelFacts, TileForm, VideoFacts
from chiasm.schema.media import MediaItem
from chiasm.vision.stages import Stages
from chiasm.vision.tables import TableTower
from chiasm.vision.units import Piece

ConfigT = TypeVar("ConfigT")


class RopePositions(NamedTuple):
    """Rotary positions of a prompt.

    Attributes:
        positions: [dims, num_tokens]; dims is 3 for time, height and width.
        delta: token i after the prompt is at position i + delta in every dimension.
    """

    positions: npt.NDArray[np.int64]
    delta: int


class DeepFeatures(NamedTuple):
    """What features have beyond the columns that stand for a token: it joins the residual stream behind early layers.

    Attributes:
        rows: LongTensor [m], rows of the packed batch that are placeholders.
        columns: [m, feature size - d].
    """

    rows: Tensor
    columns: Tensor


class SeenUnit(NamedTuple):
    """A unit that text attends to.

    Attributes:
        kept: what ``VisionLanguageModel.keep`` made of its features.
        num_core: rows of the unit that are no padding.
    """

    kept: Tensor
    num_core: int


class SeenUnits(NamedTuple):
    """Rows ``start`` to ``stop`` of a packed batch that attend to the same units, of which there is at least one.

    ``is_before`` says that the rows come before the first image of their prompt; see ``vision.frames.SeenItems``.
    """

    start: int
    stop: int
    units: tuple[SeenUnit, ...]
    is_before: bool


class VisionLanguageModel(Protocol):
    """A loaded model as the runner uses it; n is the rows of a packed batch.

    Attributes:
        num_layers: of the language model that have a cache of tokens each.
        num_heads: query heads of this rank.
        num_kv_heads: key-value heads of this rank.
        chunk_sizes: in positions, within which its layers attend, each once; None for layers that attend to
            everything before.
        head_dim: size of an attention head of the language model.
        hidden_size: d of the language model; so many columns of a feature row stand for a token.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    chunk_sizes: tuple[int | None, ...]
    head_dim: int
    hidden_size: int

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """LongTensor [n] -> [n, d]; a placeholder's row is to be overwritten by the first d columns of a feature."""

    def encode_vision(self, pixels: Tensor, pieces: Sequence[Piece], shared: SharedRows | None = None) -> Stages:
        """Encode packed pieces of units, one after another, in stages.

        Args:
            pixels: uint8 [rows of all pieces, bytes of a patch], each piece's in the cut order of its unit.
            pieces: those of cut units first, which ``shared`` covers, then whole units.
            shared: how rows of cut units attend to those on other ranks; None if no unit is cut. Its rank may have
                no rows at all and yet has to take part.

        Returns:
            A pass that gives [tokens of all pieces, feature size], in the same order.
        """

    def table_tower(self) -> TableTower | None:
        """The tower, if passes over equally many rows launch the same whatever units they are of; else None."""

    def keep(self, features: Tensor) -> Tensor:
        """What a rank keeps of a unit's features [tokens, feature size], in storage of its own."""

    def forward(
        self,
        embeds: Tensor,
        positions: Tensor,
        caches: Sequence[KVCache],
        batch: PagedBatch,
        deep: DeepFeatures | None = None,
        seen: Sequence[SeenUnits] = (),
        rows: Tensor | None = None,
    ) -> Tensor:
        """Run the decoder over the rows of ``batch``, whose keys and values go into the caches.

        Args:
            embeds: [n, d].
            positions: LongTensor [dims, n].
            caches: one for each layer.
            batch: which rows belong to which sequence.
            deep: the rest of the features in these rows; None where there are none, or they have no more columns.
            seen: which rows attend to which units, in layers that do; rows that are in none of them attend to none.
            rows: LongTensor [m], of which hidden states are asked for, at least one; None for all.

        Returns:
            [n, d] or [m, d], after the last norm.
        """

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[m, d] -> float32 [m, vocabulary], on every rank."""

    def rope_positions(self, num_tokens: int, items: Sequence[MediaItem]) -> RopePositions:
        """Rotary positions of a prompt of ``num_tokens`` with these media."""


class LoadableModel(VisionLanguageModel, Protocol):
    """A model that is still to be filled from a checkpoint."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As of ``torch.nn.Module``: (name, weight) of every parameter, a shared one once."""

    def modules(self) -> Iterator[nn.Module]:
        """As of ``torch.nn.Module``: every layer, and the layers in it."""

    def finish_loading(self) -> None:
        """Called once, when every weight is loaded."""


@dataclass(frozen=True)
class BuildContext:
    """What a model is built with.

    Attributes:
        text: where the language model's weights live.
        vision: where the vision encoder's weights live; its group decides between shards and replicas.
        normalisation: from bytes to what the encoder was trained on.
        tensor_names: of the checkpoint, where they tell how it is laid out.
    """

    text: Placement
    vision: Placement
    normalisation: PixelNormalisation
    tensor_names: frozenset[str]


@dataclass(frozen=True)
class ModelEntry(Generic[ConfigT]):
    """A family of models.

    Attributes:
        parse_config: ``config.json`` -> the family's config; raises UserError for what it can't honour.
        facts: (config, settings of the image processor, generation config) -> facts.
        normalisation: settings of the image processor -> how bytes are normalised.
        check_sharding: (config, ranks of the language model, ranks that share the encoder's weights); raises
            UserError where heads do not divide.
        build: an unfilled model for one rank.
        module_name: (name of a checkpoint tensor, config) -> name of the weight's part; None where the tensor is
            not used, which the log says.
        video: (config, settings of the video processor) -> how videos are taken; None for a family that takes none.
        tiles: ids of the tokenizer's added tokens by their texts -> how the tiles of an image stand in a prompt; None
            for a family whose images are one run of placeholders.
    """

    parse_config: Callable[[dict[str, Any]], ConfigT]
    facts: Callable[[ConfigT, dict[str, Any], dict[str, Any]], ModelFacts]
    normalisation: Callable[[dict[str, Any]], PixelNormalisation]
    check_sharding: Callable[[ConfigT, int, int], None]
    build: Callable[[ConfigT, BuildContext], LoadableModel]
    module_name: Callable[[str, ConfigT], str | None]
    video: Callable[[ConfigT, dict[str, Any]], VideoFacts] | None = None
    tiles: Callable[[Mapping[str, int]], TileForm] | None = None
