"""Struct layouts and signatures, as the C compiler has them from the official header."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pynvml
import pytest

from gpufleet.sources.nvml.calls import FUNCTION_NOT_FOUND, SIGNATURES, Calls, Library
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_build import (
    NOT_IN_OLD_DRIVERS,
    build,
    constants,
    exported_symbols,
    header_directory,
    measure,
)
from tests.support.fake_nvml_layout import FUNCTIONS, STRUCTURES

# Size and offsets of every struct that the exporter hands to the driver or reads.
NVML_STRUCTS: dict[str, tuple[int, dict[str, int]]] = {
    "nvmlFieldValue_t": (
        40,
        {
            "fieldId": 0,
            "scopeId": 4,
            "timestamp": 8,
            "latencyUsec": 16,
            "valueType": 24,
            "nvmlReturn": 28,
            "value": 32,
        },
    ),
    "nvmlMemory_t": (24, {"total": 0, "free": 8, "used": 16}),
    "nvmlMemory_v2_t": (40, {"version": 0, "total": 8, "reserved": 16, "free": 24, "used": 32}),
    "nvmlBAR1Memory_t": (24, {"bar1Total": 0, "bar1Free": 8, "bar1Used": 16}),
    "nvmlUtilization_t": (8, {"gpu": 0, "memory": 4}),
    "nvmlTemperature_v1_t": (12, {"version": 0, "sensorType": 4, "temperature": 8}),
    "nvmlMarginTemperature_v1_t": (8, {"version": 0, "marginTemperature": 4}),
    "nvmlPciInfo_t": (
        68,
        {
            "busIdLegacy": 0,
            "domain": 16,
            "bus": 20,
            "device": 24,
            "pciDeviceId": 28,
            "pciSubSystemId": 32,
            "busId": 36,
        },
    ),
    "nvmlEccSramErrorStatus_v1_t": (
        104,
        {
            "version": 0,
            "aggregateUncParity": 8,
            "aggregateUncSecDed": 16,
            "aggregateCor": 24,
            "volatileUncParity": 32,
            "volatileUncSecDed": 40,
            "volatileCor": 48,
            "aggregateUncBucketL2": 56,
            "aggregateUncBucketSm": 64,
            "aggregateUncBucketPcie": 72,
            "aggregateUncBucketMcu": 80,
            "aggregateUncBucketOther": 88,
            "bThresholdExceeded": 96,
        },
    ),
    "nvmlRowRemapperHistogramValues_t": (20, {"max": 0, "high": 4, "partial": 8, "low": 12, "none": 16}),
    "nvmlGpuFabricInfo_t": (28, {"clusterUuid": 0, "status": 16, "cliqueId": 20, "state": 24}),
    "nvmlGpuFabricInfo_v2_t": (
        36,
        {"version": 0, "clusterUuid": 4, "status": 20, "cliqueId": 24, "state": 28, "healthMask": 32},
    ),
    "nvmlGpuFabricInfo_v3_t": (
        40,
        {
            "version": 0,
            "clusterUuid": 4,
            "status": 20,
            "cliqueId": 24,
            "state": 28,
            "healthMask": 32,
            "healthSummary": 36,
        },
    ),
    "nvmlProcessInfo_t": (24, {"pid": 0, "usedGpuMemory": 8, "gpuInstanceId": 16, "computeInstanceId": 20}),
    "nvmlGpmSupport_t": (8, {"version": 0, "isSupportedDevice": 4}),
    "nvmlGpmMetric_t": (40, {"metricId": 0, "nvmlReturn": 4, "value": 8, "metricInfo": 16}),
    "nvmlGpmMetricsGet_t": (19104, {"version": 0, "numMetrics": 4, "sample1": 8, "sample2": 16, "metrics": 24}),
    "nvmlDeviceAttributes_t": (
        40,
        {
            "multiprocessorCount": 0,
            "sharedCopyEngineCount": 4,
            "sharedDecoderCount": 8,
            "sharedEncoderCount": 12,
            "sharedJpegCount": 16,
            "sharedOfaCount": 20,
            "gpuInstanceSliceCount": 24,
            "computeInstanceSliceCount": 28,
            "memorySizeMB": 32,
        },
    ),
    "nvmlGpuInstanceProfileInfo_t": (
        48,
        {
            "id": 0,
            "isP2pSupported": 4,
            "sliceCount": 8,
            "instanceCount": 12,
            "multiprocessorCount": 16,
            "copyEngineCount": 20,
            "decoderCount": 24,
            "encoderCount": 28,
            "jpegCount": 32,
            "ofaCount": 36,
            "memorySizeMB": 40,
        },
    ),
    "nvmlEventData_t": (
        32,
        {"device": 0, "eventType": 8, "eventData": 16, "gpuInstanceId": 24, "computeInstanceId": 28},
    ),
}

# nvidia-ml-py's class of each struct; the fabric classes declare the one byte ``state`` as four, at the same offset.
PYNVML_CLASSES = {
    "nvmlFieldValue_t": "c_nvmlFieldValue_t",
    "nvmlMemory_t": "c_nvmlMemory_t",
    "nvmlMemory_v2_t": "c_nvmlMemory_v2_t",
    "nvmlBAR1Memory_t": "c_nvmlBAR1Memory_t",
    "nvmlUtilization_t": "c_nvmlUtilization_t",
    "nvmlTemperature_v1_t": "c_nvmlTemperature_v1_t",
    "nvmlMarginTemperature_v1_t": "c_nvmlMarginTemperature_v1_t",
    "nvmlPciInfo_t": "nvmlPciInfo_t",
    "nvmlEccSramErrorStatus_v1_t": "c_nvmlEccSramErrorStatus_v1_t",
    "nvmlRowRemapperHistogramValues_t": "c_nvmlRowRemapperHistogramValues",
    "nvmlGpuFabricInfo_t": "c_nvmlGpuFabricInfo_t",
    "nvmlGpuFabricInfo_v2_t": "c_nvmlGpuFabricInfo_v2_t",
    "nvmlGpuFabricInfo_v3_t": "c_nvmlGpuFabricInfo_v3_t",
    "nvmlProcessInfo_t": "c_nvmlProcessInfo_v3_t",
    "nvmlGpmSupport_t": "c_nvmlGpmSupport_t",
    "nvmlGpmMetric_t": "c_nvmlGpmMetric_t",
    "nvmlGpmMetricsGet_t": "c_nvmlGpmMetricsGet_t",
    "nvmlDeviceAttributes_t": "c_nvmlDeviceAttributes",
    "nvmlGpuInstanceProfileInfo_t": "c_nvmlGpuInstanceProfileInfo_t",
    "nvmlEventData_t": "c_nvmlEventData_t",
}

VERSIONS = {
    "nvmlMemory_v2": 0x02000028,
    "nvmlTemperature_v1": 0x0100000C,
    "nvmlMarginTemperature_v1": 0x01000008,
    "nvmlEccSramErrorStatus_v1": 0x01000068,
    "nvmlGpuFabricInfo_v2": 0x02000024,
    "nvmlGpuFabricInfo_v3": 0x03000028,
    "NVML_GPM_SUPPORT_VERSION": 1,
    "NVML_GPM_METRICS_GET_VERSION": 1,
}

# The C type of an argument, and the ctypes type that carries it. Whatever goes through a pointer is a buffer.
ARGUMENTS = (
    (r"const char \*", ctypes.c_char_p),
    (r"nvml(Device|GpmSample|EventSet)_t", ctypes.c_void_p),
    (r".*\*", ctypes.c_void_p),
    (r"unsigned long long", ctypes.c_ulonglong),
    (r"unsigned int", ctypes.c_uint),
    (r"int|nvml\w+_t", ctypes.c_int),  # what is left of NVML's types are enums
)


@pytest.mark.usefixtures("nvml_build")
def test_struct_layouts_are_those_of_the_official_header(tmp_path: Path) -> None:
    """Size and offset of every member that the exporter touches equal what gcc makes of nvml.h."""
    wanted = {name: tuple(members) for name, (_, members) in NVML_STRUCTS.items()}

    measured = measure("<nvml.h>", wanted, directory=tmp_path)

    for name, (size, members) in NVML_STRUCTS.items():
        # The tail of this one grows with each header; the library touches only as many metrics as it is told.
        if name != "nvmlGpmMetricsGet_t":
            assert measured[name][""] == size, name
        assert {member: measured[name][member] for member in members} == members, name


@pytest.mark.parametrize("name", PYNVML_CLASSES)
def test_struct_layouts_agree_with_nvidia_ml_py(name: str) -> None:
    """The table of this test, the header and NVIDIA's own Python binding are of one mind."""
    structure = getattr(pynvml, PYNVML_CLASSES[name], None)
    if structure is None:
        pytest.skip(f"this release of nvidia-ml-py has no {PYNVML_CLASSES[name]}")
    size, members = NVML_STRUCTS[name]
    if name != "nvmlGpmMetricsGet_t":  # its tail grows with each release
        assert ctypes.sizeof(structure) == size
    assert [getattr(structure, member).offset for member, _ in structure._fields_[: len(members)]] == list(
        members.values()
    )


@pytest.mark.usefixtures("nvml_build")
def test_version_words_are_those_of_the_official_header(tmp_path: Path) -> None:
    """A versioned struct says its size and version; GPM's structs say a plain 1."""
    assert constants("<nvml.h>", tuple(VERSIONS), directory=tmp_path) == VERSIONS


@pytest.mark.usefixtures("nvml_build")
def test_signatures_are_those_of_the_official_header() -> None:
    """Number, order and width of the arguments of each bound function equal the header's prototype."""
    header = (header_directory() / "nvml.h").read_text()
    wrong = []
    for name, bound in SIGNATURES.items():
        match = re.search(rf"nvmlReturn_t\s+DECLDIR\s+{name}\s*\(([^)]*)\)\s*;", header)
        assert match is not None, f"{name} is not in nvml.h"
        arguments = [] if match[1].strip() == "void" else [" ".join(each.split()) for each in match[1].split(",")]
        types = [re.sub(r"\s*\w+$", "", each).replace("* ", "*") for each in arguments]
        if list(bound) != [_carrier(each) for each in types]:
            wrong.append(f"{name}({', '.join(types)}) is bound as {bound}")
    assert wrong == []


def _carrier(ctype: str) -> type:
    return next(carrier for pattern, carrier in ARGUMENTS if re.fullmatch(pattern, ctype))


@pytest.mark.usefixtures("nvml_build")
def test_the_shared_memory_is_laid_out_alike_in_c_and_python(tmp_path: Path) -> None:
    """The stand-in driver and the test that scripts it see the same members at the same places."""
    names = {f"struct {name}": tuple(m[0] for m in each._fields_) for name, each in STRUCTURES.items()}

    measured = measure('"control.h"', names, directory=tmp_path)

    for name, structure in STRUCTURES.items():
        offsets = {member[0]: getattr(structure, member[0]).offset for member in structure._fields_}
        assert measured[f"struct {name}"] == {"": ctypes.sizeof(structure)} | offsets


def test_the_stand_in_exports_what_the_exporter_binds(nvml_build: Path) -> None:
    """Every function that the exporter binds is there, and nothing but the listed functions leaks out."""
    assert set(SIGNATURES) <= set(FUNCTIONS)
    assert exported_symbols(nvml_build) | {"nvmlErrorString"} == set(FUNCTIONS)


def test_every_function_is_bound(fake_nvml: FakeNvml) -> None:
    """On a current driver no function of the table is missing."""
    calls = Calls(Library(str(fake_nvml.library)))

    assert [name for name in SIGNATURES if not calls.has(name)] == []


@pytest.mark.usefixtures("nvml_build")
def test_a_missing_symbol_answers_function_not_found() -> None:
    """An old driver lacks symbols: calling one is an answer (13), not an exception."""
    with FakeNvml(old=True) as old:
        calls = Calls(Library(str(old.library)))

        lacking = {name for name in SIGNATURES if not calls.has(name)}

        assert lacking == NOT_IN_OLD_DRIVERS & set(SIGNATURES)
        assert {calls[name]() for name in lacking} == {FUNCTION_NOT_FOUND}
        assert calls["nvmlInitWithFlags"](1) == 0


@pytest.mark.usefixtures("nvml_build")
def test_builds_differ_by_what_they_lack(tmp_path: Path) -> None:
    """A test can take any function away, and the name of one that never was is refused."""
    library = build(tmp_path, lacking=frozenset({"nvmlDeviceGetMarginTemperature"}))

    assert set(FUNCTIONS) - exported_symbols(library) == {"nvmlDeviceGetMarginTemperature"}
    assert build(tmp_path, lacking=frozenset({"nvmlDeviceGetMarginTemperature"})) == library
    with pytest.raises(ValueError, match="nvmlNoSuchFunction"):
        build(tmp_path, lacking=frozenset({"nvmlNoSuchFunction"}))
