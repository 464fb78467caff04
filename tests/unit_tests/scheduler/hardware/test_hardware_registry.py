"""Hardware types: the registry, robots from YAML and environment, device variables."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rlinf.config.placement.machine import LocalDevice
from rlinf.scheduler.hardware import (
    AcceleratorInfo,
    AcceleratorType,
    AcceleratorUtil,
    Franka,
    FrankaConfig,
    Hardware,
    HardwareInfo,
    HardwareResource,
    NodeHardwareConfig,
    accelerator,
    enumerate_hardware,
    robot,
)


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hardware, "registry", dict(Hardware.registry))
    monkeypatch.setattr(Hardware, "default_types", list(Hardware.default_types))
    monkeypatch.setattr(NodeHardwareConfig, "registry", dict(NodeHardwareConfig.registry))
    monkeypatch.setattr(accelerator, "local_accelerators", lambda environ=None: ("NO_ACCEL", ()))
    for field in ("ROBOT_IP", "CAMERA_SERIALS", "GRIPPER_TYPE", "DISABLE_VALIDATE"):
        monkeypatch.delenv(field, raising=False)


@pytest.fixture
def pinged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that were pinged; all but 'dead' answer."""
    asked: list[str] = []

    def run(command: list[str], **kwargs: object) -> object:
        asked.append(command[-1])
        return type("Done", (), {"returncode": int(command[-1] == "dead")})

    monkeypatch.setattr(robot.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(robot.subprocess, "run", run)
    return asked


def test_a_new_type_needs_no_change_in_the_core() -> None:
    @NodeHardwareConfig.register_hardware_config("Drone")
    @dataclass
    class DroneConfig(NodeHardwareConfig):
        colour: str = "red"

    @Hardware.register()
    class Drone(Hardware):
        HW_TYPE = "Drone"

        @classmethod
        def enumerate(cls, node_rank, configs=None):
            return HardwareResource("Drone", [HardwareInfo("Drone", c.colour) for c in configs])

    assert enumerate_hardware(0) == []
    wanted = [{"type": "Drone", "configs": [{"node_rank": 0}, {"node_rank": 0, "colour": "b"}]}]
    (found,) = enumerate_hardware(0, wanted)
    assert [info.model for info in found.infos] == ["red", "b"]


def test_default_types_are_always_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = (LocalDevice("4", "H200"), LocalDevice("5", "H200"))
    monkeypatch.setattr(accelerator, "local_accelerators", lambda: ("NV_GPU", devices))
    (found,) = enumerate_hardware(3)
    assert found.type == "accelerator"
    assert found.infos[1] == AcceleratorInfo(
        model="H200", accelerator_type=AcceleratorType.NV_GPU, device_id="5"
    )


def test_unsupported_type_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="one of Franka, Turtle2, accelerator"):
        Hardware.get("UR5")
    with pytest.raises(ValueError, match="RLINF_EXT_MODULE"):
        enumerate_hardware(0, [{"type": "UR5", "configs": [{"node_rank": 0}]}])


def test_type_without_name_is_refused() -> None:
    with pytest.raises(TypeError, match="HW_TYPE"):
        Hardware.register()(type("Nameless", (Hardware,), {}))


def test_turtle_needs_nothing() -> None:
    (found,) = enumerate_hardware(2, [{"type": "Turtle2", "configs": []}])
    assert found.count == 1
    assert found.infos[0].config.node_rank == 2


# -- Franka ----------------------------------------------------------------------------------


def test_franka_from_yaml(pinged: list[str]) -> None:
    entry = {"node_rank": 1, "robot_ip": "10.0.0.5", "camera_serials": [11, 12]}
    (found,) = enumerate_hardware(1, [{"type": "Franka", "configs": [entry]}])
    config = found.infos[0].config
    assert (config.robot_ip, config.camera_serials) == ("10.0.0.5", ["11", "12"])
    assert pinged == ["10.0.0.5"]


def test_franka_from_the_environment(monkeypatch: pytest.MonkeyPatch, pinged: list[str]) -> None:
    monkeypatch.setenv("ROBOT_IP", "10.0.0.5, 10.0.0.6")
    monkeypatch.setenv("CAMERA_SERIALS", "1,2;3")
    monkeypatch.setenv("GRIPPER_TYPE", "franka,robotiq")
    found = Franka.enumerate(0)
    assert [info.config.robot_ip for info in found.infos] == ["10.0.0.5", "10.0.0.6"]
    assert [info.config.camera_serials for info in found.infos] == [["1", "2"], ["3"]]
    assert [info.config.gripper_type for info in found.infos] == ["franka", "robotiq"]
    assert pinged == ["10.0.0.5", "10.0.0.6"]


def test_yaml_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch, pinged: list[str]) -> None:
    monkeypatch.setenv("ROBOT_IP", "10.0.0.9")
    found = Franka.enumerate(0, [FrankaConfig(0, robot_ip="10.0.0.5")])
    assert found.infos[0].config.robot_ip == "10.0.0.5"


def test_no_franka_anywhere() -> None:
    assert Franka.enumerate(0) is None


def test_franka_that_does_not_answer(pinged: list[str]) -> None:
    with pytest.raises(ValueError, match="at dead does not answer.*disable_validate"):
        Franka.enumerate(0, [FrankaConfig(0, robot_ip="dead")])
    assert Franka.enumerate(0, [FrankaConfig(0, robot_ip="dead", disable_validate=True)]).count == 1


def test_validation_can_be_disabled_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, pinged: list[str]
) -> None:
    monkeypatch.setenv("DISABLE_VALIDATE", "1")
    assert Franka.enumerate(0, [FrankaConfig(0, robot_ip="dead")]).count == 1
    assert pinged == []


def test_node_without_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robot.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match="no `ping`"):
        Franka.enumerate(0, [FrankaConfig(0, robot_ip="10.0.0.5")])


def test_franka_without_address() -> None:
    with pytest.raises(ValueError, match="no robot_ip.*export ROBOT_IP on the node"):
        Franka.enumerate(0, [FrankaConfig(0)])


def test_one_value_for_each_robot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBOT_IP", "10.0.0.5,10.0.0.6,10.0.0.7")
    with pytest.raises(ValueError, match="has 2 robots, but ROBOT_IP has 3 values"):
        Franka.enumerate(0, [FrankaConfig(0), FrankaConfig(0, camera_type="zed")])


# -- accelerators ----------------------------------------------------------------------------


def test_device_env_gives_exactly_the_devices() -> None:
    env = AcceleratorUtil.get_device_env(AcceleratorType.NV_GPU, ["4", "5"])
    assert env == {
        "CUDA_VISIBLE_DEVICES": "4,5",
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
        "MUJOCO_EGL_DEVICE_ID": "4",
    }


def test_device_env_of_a_uuid_says_nothing_to_egl() -> None:
    env = AcceleratorUtil.get_device_env(AcceleratorType.NV_GPU, ["GPU-aa"])
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-aa"
    assert "MUJOCO_EGL_DEVICE_ID" not in env


def test_device_env_without_accelerators_hides_them() -> None:
    env = AcceleratorUtil.get_device_env(AcceleratorType.NO_ACCEL, [])
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["HIP_VISIBLE_DEVICES"] == ""
    assert "MUJOCO_EGL_DEVICE_ID" not in env


@pytest.mark.parametrize(
    ("vendor", "variable", "backend", "device"),
    [
        ("NV_GPU", "CUDA_VISIBLE_DEVICES", "nccl", "cuda"),
        ("AMD_GPU", "HIP_VISIBLE_DEVICES", "nccl", "cuda"),
        ("INTEL_GPU", "ZE_AFFINITY_MASK", "xccl", "xpu"),
        ("NPU", "ASCEND_RT_VISIBLE_DEVICES", "hccl", "npu"),
        ("MUSA", "MUSA_VISIBLE_DEVICES", "mccl", "musa"),
        ("NO_ACCEL", None, "gloo", "cpu"),
    ],
)
def test_vendors(vendor: str, variable: str | None, backend: str, device: str) -> None:
    kind = AcceleratorType(vendor)
    assert AcceleratorUtil.get_visible_devices_variable(kind) == variable
    assert AcceleratorUtil.get_ccl_backend(kind) == backend
    assert AcceleratorUtil.get_torch_device(kind) == device
    assert AcceleratorUtil.get_socket_interface_variables(kind)[0] == "GLOO_SOCKET_IFNAME"
    if variable:
        assert AcceleratorUtil.get_device_env(kind, ["1"])[variable] == "1"
