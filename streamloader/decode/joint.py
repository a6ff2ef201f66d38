"""Several pictures and masks of each sample under one crop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from streamloader.decode.crops import AppliedCrops
from streamloader.decode.faults import RowFault
from streamloader.decode.mask import different_size
from streamloader.decode.share import Share


class ShareDecoder(Protocol):
    """Decodes the shares of one field."""

    def decode(self, share: Share) -> list[RowFault]: ...


def decode_jointly(
    pictures: Mapping[str, Share],
    masks: Mapping[str, Share],
    crops: AppliedCrops,
    *,
    picture_decoder: ShareDecoder,
    mask_decoder: ShareDecoder,
) -> dict[int, str]:
    """Decodes the same samples' pictures and masks, each field in one call.

    The first picture draws the crop. A sample at fault is left out of the fields that follow, so
    its reason is that of its first fault, whatever the split into shares.

    Args:
        pictures: by field, at least one.
        masks: by field.
        crops: of the batch; the rows of these samples are written.
        picture_decoder: notes the crops that it applies in ``share.crops``.
        mask_decoder: applies the crops in ``share.crops``.

    Returns:
        Reason by row for the samples at fault. Unless the share was aborted, the rows of others
        are complete in every field.
    """
    faults: dict[int, str] = {}
    own = crops
    for name, share in pictures.items():
        share = _without(replace(share, crops=own), faults)
        found = picture_decoder.decode(share)
        if share.aborted:
            return faults
        _add(faults, name, found)
        if own is not crops:
            _add(faults, name, _other_sizes(_without(share, faults), own, crops))
        own = AppliedCrops.empty(len(share.out))
    for name, share in masks.items():
        share = _without(replace(share, crops=crops), faults)
        _add(faults, name, mask_decoder.decode(share))
    return faults


def _without(share: Share, faults: Mapping[int, str]) -> Share:
    if not faults:
        return share
    return share.part(np.flatnonzero(~np.isin(share.rows, list(faults))))


def _add(faults: dict[int, str], name: str, found: list[RowFault]) -> None:
    for fault in found:
        faults[fault.row] = f"field {name!r}: {fault.reason}"


def _other_sizes(share: Share, own: AppliedCrops, first: AppliedCrops) -> list[RowFault]:
    differs = (own.sizes[share.rows] != first.sizes[share.rows]).any(axis=1)
    faults = []
    for place in np.flatnonzero(differs).tolist():
        row, sample = int(share.rows[place]), int(share.samples[place])
        reason = different_size(*own.sizes[row].tolist(), *first.sizes[row].tolist())
        faults.append(RowFault(row, sample, reason))
    return faults
