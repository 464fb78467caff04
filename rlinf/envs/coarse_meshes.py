"""Meshes of many small faces, drawn with fewer and larger ones: where no GPU draws, faces cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

MANY = 2000
"""Faces that a mesh may have without being made coarser."""

_CHANGED = ("mesh_facenum", "mesh_face", "mesh_facenormal")


@contextmanager
def coarse_meshes(model: Any, cell: float) -> Iterator[None]:
    """Make the meshes of a MuJoCo model coarser while an OpenGL context takes them over.

    Vertices of a mesh that share a cube of a grid are drawn as one of them. Meshes of at most
    `MANY` faces and those with a texture stay as they are.

    Args:
        model: The model; it is as it was when the context is left.
        cell: Edge of the cubes, in metres.
    """
    saved = {name: getattr(model, name).copy() for name in _CHANGED}
    try:
        for mesh in np.flatnonzero((model.mesh_facenum > MANY) & (model.mesh_texcoordadr < 0)):
            _coarsen(model, int(mesh), cell)
        yield
    finally:
        for name, values in saved.items():
            getattr(model, name)[:] = values


def _coarsen(model: Any, mesh: int, cell: float) -> None:
    begin, count = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
    first, vertices = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
    old = slice(begin, begin + count)
    faces, normals = model.mesh_face[old], model.mesh_facenormal[old]
    normal_of = np.zeros(vertices, normals.dtype)
    normal_of[faces.ravel()] = normals.ravel()
    new = faces_of_cells(model.mesh_vert[first : first + vertices], faces, cell)
    rest = slice(begin, begin + len(new))
    model.mesh_face[rest], model.mesh_facenormal[rest] = new, normal_of[new]
    model.mesh_facenum[mesh] = len(new)


def faces_of_cells(vertices: np.ndarray, faces: np.ndarray, cell: float) -> np.ndarray:
    """Return the faces that are left if each cube of a grid has one vertex.

    Args:
        vertices: `[V, 3]`.
        faces: `[F, 3]`, indices of vertices.
        cell: Edge of the cubes.

    Returns:
        `[F', 3]`, indices of the same vertices: of each cube the one nearest to their mean. Faces
        that have become edges or points are left out, and so are copies of others.
    """
    _, cube = np.unique(np.floor(vertices / cell).astype(np.int64), axis=0, return_inverse=True)
    cube = cube.ravel()
    members = np.bincount(cube)
    means = np.stack([np.bincount(cube, axis) for axis in vertices.T], axis=1) / members[:, None]
    distances = ((vertices - means[cube]) ** 2).sum(axis=1)
    by_cube = np.lexsort((distances, cube))
    nearest = by_cube[np.cumsum(members) - members]
    moved = nearest[cube][faces]
    a, b, c = moved.T
    moved = moved[(a != b) & (b != c) & (a != c)]
    _, kept = np.unique(np.sort(moved, axis=1), axis=0, return_index=True)
    return moved[np.sort(kept)]
