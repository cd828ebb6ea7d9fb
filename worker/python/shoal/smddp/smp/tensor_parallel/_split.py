"""How a parameter is divided among tensor parallel ranks, as shapes and slices alone."""

import dataclasses

import torch

from shoal import errors


@dataclasses.dataclass(frozen=True)
class Split:
    """Along dimension `dim`. There may be several equal sections one after another, as queries, keys and
    values in one weight: each is divided, and a part has its share of every section."""

    dim: int
    sections: int = 1

    def check(self, name, shape, size):
        """Raise unless a parameter of this shape can be divided into `size` parts."""
        length = shape[self.dim]
        if length % (self.sections * size):
            of = f" in {self.sections} sections" if self.sections > 1 else ""
            raise errors.InvalidError(
                f"{name} has {length} along dimension {self.dim}{of}, which tensor_parallel_degree {size} "
                "does not divide"
            )

    def part(self, whole, rank, size):
        """The part of one rank: a copy."""
        parts = [section.chunk(size, self.dim)[rank] for section in whole.chunk(self.sections, self.dim)]
        return torch.cat(parts, self.dim).contiguous()

    def whole(self, parts):
        """The parameter out of all parts, in rank order."""
        sections = zip(*(part.chunk(self.sections, self.dim) for part in parts))
        return torch.cat([torch.cat(section, self.dim) for section in sections], self.dim).contiguous()
