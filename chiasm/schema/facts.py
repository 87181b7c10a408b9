"""What the processes without tensors need to know of a loaded model."""

from __future__ import annotations

from typing import Literal

import msgspec

from chiasm.schema.media import CanvasShape, ImageProcessorSpec, VideoProcessorSpec


class EncoderShape(msgspec.Struct, frozen=True):
    """Shapes of a vision tower that its cost, and where a unit may be cut, follow from.

    Attributes:
        hidden_size: width of a patch's state.
        intermediate_size: width inside the MLP.
        mlp_matrices: matrices of the MLP (3 with a gate, else 2).
        num_layers: layers in all.
        full_attention_layers: of these, those whose attention spans a whole unit, in order, counted from 0.
        num_heads: attention heads.
        feature_size: columns of a feature row, all that the language model is given of a token.
        merge_size: side of a merge block in patches; a block becomes one token, and is never cut.
        window_blocks: side, in merge blocks, of a window of the other layers, which is never cut either; 0 where
            every layer has full attention.
        outer_flops: floating-point operations for each patch outside the layers (embedding, mergers).
        can_cut_rows: whether a unit may be shared by ranks at all.
        tile_side: side of every unit in patches where pictures are cut into tiles of one size; 0 elsewhere.
        canvas: of units that are put together of tiles and have rows beside those of patches; None elsewhere.
    """

    hidden_size: int
    intermediate_size: int
    mlp_matrices: int
    num_layers: int
    full_attention_layers: tuple[int, ...]
    num_heads: int
    feature_size: int
    merge_size: int = 1
    window_blocks: int = 0
    outer_flops: int = 0
    can_cut_rows: bool = True
    tile_side: int = 0
    canvas: CanvasShape | None = None

    @property
    def block_rows(self) -> int:
        """Patches in a merge block."""
        return self.merge_size**2

    @property
    def num_full_attention_layers(self) -> int:
        """Layers whose attention spans a whole unit."""
        return len(self.full_attention_layers)

    @property
    def num_stages(self) -> int:
        """Stages of a pass through the tower: each layer, and what follows the last one."""
        return self.num_layers + 1

    def num_exchanging(self, num_stages: int) -> int:
        """Of the first stages of a pass, those with full attention, in which ranks that share units exchange."""
        return sum(layer < num_stages for layer in self.full_attention_layers)

    @property
    def window_patches(self) -> int:
        """Patches in a whole window; 0 where there are none."""
        return self.window_blocks**2 * self.block_rows


class EncoderRates(msgspec.Struct, frozen=True):
    """How fast a rank computes a tower and talks to the others; measured at start-up, or given.

    Attributes:
        seconds_per_pass: fixed time of a pass through the tower, whatever it holds.
        seconds_per_flop: of all work that is linear in the rows, window attention included.
        seconds_per_attention_flop: of full attention.
        seconds_per_exchange: fixed time of a collective.
        seconds_per_byte: of what a rank receives in one.
        bytes_per_element: of activations.
        can_overlap: whether an exchange goes on beside computing (on a GPU), or takes its core (on a CPU).
        packs_units: whether a rank computes its whole units in one pass, or each in a pass of its own.
    """

    seconds_per_pass: float
    seconds_per_flop: float
    seconds_per_attention_flop: float
    seconds_per_exchange: float
    seconds_per_byte: float
    bytes_per_element: int
    can_overlap: bool
    packs_units: bool

    @property
    def are_sane(self) -> bool:
        """Whether plans can be made by them: work takes time, nothing takes less than none or more than an hour."""
        work = (self.seconds_per_flop, self.seconds_per_attention_flop)
        others = (self.seconds_per_pass, self.seconds_per_exchange, self.seconds_per_byte)
        return all(0 < value < 1 for value in work) and all(0 <= value < 3600 for value in others)


class SliceForm(msgspec.Struct, frozen=True):
    """How each slice of a video stands in a prompt where slices are apart.

    Attributes:
        before: what is in front of a slice's placeholders, tokens or texts; in a text, ``{seconds}`` is the slice's
            time with any format of a float, ``{whole_seconds}`` the same without its fraction.
        after: what is behind them, likewise.
        token_id: the placeholder of one of its tokens.
        time: when a slice is: its "first" frame's time, or the "middle" between its first and its last.
    """

    before: tuple[int | str, ...]
    after: tuple[int | str, ...]
    token_id: int
    time: Literal["first", "middle"]


class VideoFacts(msgspec.Struct, frozen=True):
    """How a model takes videos.

    Attributes:
        token_id: the placeholder of a video in a template's text.
        processor: which frames are taken, and how they become patches.
        slices: how its slices stand in the prompt; None where the placeholder is repeated for all of them together.
    """

    token_id: int
    processor: VideoProcessorSpec
    slices: SliceForm | None = None


class TileForm(msgspec.Struct, frozen=True):
    """How the tiles of an image stand in a prompt, each a run of placeholders.

    Attributes:
        token_id: the placeholder of an image in a template's text.
        before: what is in front of an image's tiles.
        between: what is between two tiles of a row.
        row_end: what is behind each row of tiles.
        overview: what is in front of the overview, or of the only tile.
        after: what is behind all of them.
    """

    token_id: int
    before: int
    between: int
    row_end: int
    overview: int
    after: int


class ModelFacts(msgspec.Struct, frozen=True):
    """Facts of a checkpoint that a family's file derives from its config.

    Attributes:
        model_type: the family's name in ``config.json``.
        vocab_size: rows of the output projection; token ids are below it.
        max_position_embeddings: longest context that the model was made for, in tokens.
        eos_token_ids: tokens that end an answer.
        image_token_id: the placeholder of one image token.
        media_token_ids: every token that only the engine may put into a prompt (placeholders and their brackets).
        processor: how images become patches.
        encoder: shapes of the vision tower.
        video: how it takes videos; None if it takes none.
        tiles: how an image stands in the prompt where its tiles stand apart; None where ``image_token_id`` is also
            the placeholder of an image in a template's text, and is repeated for all of it.
        num_cross_layers: layers of the language model that attend to media; 0 where features take the place of
            placeholders.
        num_input_only: token ids from ``vocab_size`` on that a prompt may have and an answer can't.
    """

    model_type: str
    vocab_size: int
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    image_token_id: int
    media_token_ids: tuple[int, ...]
    processor: ImageProcessorSpec
    encoder: EncoderShape
    video: VideoFacts | None = None
    tiles: TileForm | None = None
    num_cross_layers: int = 0
    num_input_only: int = 0

    @property
    def input_size(self) -> int:
        """Token ids of a prompt are below it."""
        return self.vocab_size + self.num_input_only

    @property
    def max_unit_tokens(self) -> int:
        """A bound on the tokens of one unit: an image, a tile or a slice of a video."""
        return max(self.processor.max_unit_tokens, self.video.processor.max_slice_tokens if self.video else 0)
