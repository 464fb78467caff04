"""Meshes of many faces are drawn with fewer, and only drawn so."""

import numpy as np
import pytest

from rlinf.envs.coarse_meshes import MANY, coarse_meshes, faces_of_cells


def sheet(steps):
    """A flat square of 1 m with 2 * steps^2 faces."""
    line = np.linspace(0, 0.999, steps + 1)
    vertices = np.stack([*np.meshgrid(line, line), np.zeros((steps + 1, steps + 1))], axis=-1)
    corner = np.arange(steps)[:, None] * (steps + 1) + np.arange(steps)
    a, b, c, d = (corner + add for add in (0, 1, steps + 1, steps + 2))
    faces = np.stack([np.stack([a, b, c], -1), np.stack([b, d, c], -1)]).reshape(-1, 3)
    return vertices.reshape(-1, 3), faces.astype(np.int32)


def area(vertices, faces):
    a, b, c = (vertices[faces[:, corner]] for corner in range(3))
    return np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2


def test_cubes_without_two_vertices_change_nothing():
    vertices, faces = sheet(9)
    assert np.array_equal(faces_of_cells(vertices, faces, 0.05), faces)


def test_a_surface_stays_closed_with_far_fewer_faces():
    vertices, faces = sheet(40)
    found = faces_of_cells(vertices, faces, 0.1)
    assert len(faces) == 3200 and len(found) == 2 * 9**2, "a square between each four cubes"
    used = np.unique(found)
    assert len(used) == 10**2
    cubes = np.floor(vertices[used] / 0.1).astype(int)
    assert len(np.unique(cubes, axis=0)) == len(used), "one vertex for each cube"
    # No face lies over another one: the areas add up to what the outer vertices enclose.
    low, high = vertices[used].min(axis=0), vertices[used].max(axis=0)
    assert area(vertices, found) == pytest.approx(np.prod((high - low)[:2]), rel=1e-6)


def test_faces_that_collapse_or_repeat_are_left_out():
    vertices = np.array([[0.1, 0, 0], [0.2, 0, 0], [1.5, 0, 0], [0.1, 1.5, 0], [0.2, 1.6, 0]])
    faces = np.array([[0, 1, 2], [0, 2, 3], [1, 2, 4]])
    assert len(faces_of_cells(vertices, faces, 1.0)) == 1


def balls(**kinds):
    """A model with a ball for each name, with as many faces as its number of steps says."""
    mujoco = pytest.importorskip("mujoco")
    spec = mujoco.MjSpec()
    for place, (name, steps) in enumerate(kinds.items()):
        turn = np.linspace(0, 2 * np.pi, steps, endpoint=False)
        rise = np.linspace(-1, 1, steps // 2)
        ring = np.sqrt(np.maximum(0, 1 - rise**2))[:, None]
        ball = np.stack(
            [ring * np.cos(turn), ring * np.sin(turn), np.repeat(rise[:, None], steps, 1)], axis=-1
        )
        index = np.arange(steps // 2 - 1)[:, None] * steps + np.arange(steps)
        right = np.arange(steps // 2 - 1)[:, None] * steps + (np.arange(steps) + 1) % steps
        faces = [np.stack(each, -1) for each in ((index, right, index + steps),)]
        faces += [np.stack((right, right + steps, index + steps), -1)]
        faces = np.concatenate(faces).reshape(-1, 3)
        spec.add_mesh(name=name, uservert=ball.ravel() * 0.4, userface=faces.ravel())
        body = spec.worldbody.add_body(pos=[place, 0, 0])
        body.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname=name)
    spec.worldbody.add_light(pos=[0, 0, 3])
    spec.worldbody.add_camera(name="front", pos=[0.5, -3, 0], xyaxes=[1, 0, 0, 0, 0, 1])
    return spec.compile()


def test_the_model_is_as_it_was_afterwards():
    model = balls(fine=100, rough=20)
    before = {name: getattr(model, name).copy() for name in ("mesh_face", "mesh_facenormal")}
    fine, rough = model.mesh_facenum
    assert fine > MANY > rough
    with pytest.raises(RuntimeError, match="no context"), coarse_meshes(model, 0.1):
        assert model.mesh_facenum[0] < fine / 5 and model.mesh_facenum[1] == rough
        assert not np.array_equal(model.mesh_face, before["mesh_face"])
        raise RuntimeError("no context")
    assert list(model.mesh_facenum) == [fine, rough]
    assert all(np.array_equal(getattr(model, name), old) for name, old in before.items())
