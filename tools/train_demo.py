"""Trains the network that `tilewright demo` shows and writes it, with held-out images, into the package.

    pip install torch scikit-learn onnx && python tools/train_demo.py

Seeded and single-threaded; about a minute on one core. The data are scikit-learn's copy of the UCI handwritten digits, 1,797 images of 8x8.
A fifth of them, drawn by the seed, is never trained on; the accuracy in the model's metadata and the shipped images come from that part.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from tilewright.zoo.builder import GraphBuilder, Value  # noqa: E402

SEED = 7
EPOCHS = 60
BATCH = 64
PEAK_RATE = 4e-3
SHIPPED = 64
LEAST_ACCURACY = 0.98
LEVELS = 16.0
"""Pixels of the data are counts from 0 to 16."""

FOLDER = ROOT / "src" / "tilewright" / "demo"


def network() -> nn.Sequential:
    """[N, 1, 8, 8] in 0..1 -> logits [N, 10]."""

    def block(before: int, after: int, kernel: int, groups: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(before, after, kernel, padding=kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(after), nn.ReLU()]

    return nn.Sequential(
        *block(1, 16, 3),
        *block(16, 16, 3, groups=16),
        *block(16, 32, 1),
        nn.MaxPool2d(2),
        *block(32, 32, 3),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(128, 10),
    )


def shifted(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Each image moved by at most half a pixel and scaled by at most a tenth, as hands do."""
    count = len(images)
    offsets = (torch.rand(count, 2, generator=generator) - 0.5) * (2.0 / images.shape[-1])
    scales = 1.0 + (torch.rand(count, generator=generator) - 0.5) * 0.2
    transforms = torch.zeros(count, 2, 3)
    transforms[:, 0, 0] = transforms[:, 1, 1] = scales
    transforms[:, :, 2] = offsets
    grid = functional.affine_grid(transforms, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def train(images: torch.Tensor, labels: torch.Tensor) -> nn.Sequential:
    model = network()
    generator = torch.Generator().manual_seed(SEED)
    optimiser = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=1e-2)
    steps = -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, PEAK_RATE, total_steps=EPOCHS * steps)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(images), generator=generator).split(BATCH):
            optimiser.zero_grad()
            loss = functional.cross_entropy(model(shifted(images[chosen], generator)), labels[chosen], label_smoothing=0.05)
            loss.backward()
            optimiser.step()
            schedule.step()
    return model.eval()


def to_onnx(model: nn.Sequential, metadata: dict[str, str]) -> onnx.ModelProto:
    """The trained network with its batch normalisation as a node of its own, softmax at the end and a symbolic batch."""
    b = GraphBuilder("digits", SEED)
    x = b.input("image", ["batch", 1, 8, 8])

    def arrays(module: nn.Module, *names: str) -> list[Value]:
        state: dict[str, Any] = module.state_dict()
        return [b.array(name, state[name].numpy()) for name in names]

    for index, module in enumerate(model):
        with b.scope("layers", index):
            match module:
                case nn.Conv2d():
                    pads = [module.kernel_size[0] // 2] * 4
                    x = b.op("Conv", x, *arrays(module, "weight"), pads=pads, group=module.groups)
                case nn.BatchNorm2d():
                    x = b.op("BatchNormalization", x, *arrays(module, "weight", "bias", "running_mean", "running_var"), epsilon=module.eps)
                case nn.ReLU():
                    x = b.op("Relu", x)
                case nn.MaxPool2d():
                    x = b.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
                case nn.Flatten():
                    x = b.op("Flatten", x, axis=1)
                case nn.Linear():
                    x = b.op("Gemm", x, *arrays(module, "weight", "bias"), transB=1)
                case nn.Dropout():
                    pass
                case _:
                    raise TypeError(f"no ONNX form for {type(module).__name__}")
    b.output("probabilities", b.op("Softmax", x, axis=-1), ["batch", 10])
    result = b.model("Handwritten digits, 8x8 pixels in 0..1, to the probabilities of the digits 0 to 9", metadata)
    result.producer_name = "tools/train_demo.py"
    onnx.checker.check_model(result, full_check=True)
    return result


def write_samples(path: Path, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> None:
    """Held-out images in the order of the split; not chosen by what the network makes of them."""
    np.savez_compressed(path, images=images[:SHIPPED], labels=labels[:SHIPPED])


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    data = load_digits()
    pixels, labels = data.images.astype(np.uint8), data.target.astype(np.uint8)
    train_pixels, test_pixels, train_labels, test_labels = train_test_split(
        pixels, labels, test_size=0.2, random_state=SEED, stratify=labels
    )

    def images(values: NDArray[np.uint8]) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.float32)[:, None] / np.float32(LEVELS))

    model = train(images(train_pixels), torch.from_numpy(train_labels.astype(np.int64)))
    with torch.no_grad():
        predicted = model(images(test_pixels)).argmax(dim=1).numpy()
    accuracy = float((predicted == test_labels).mean())
    sys.stdout.write(f"accuracy on {len(test_labels)} held-out images: {accuracy:.4f}\n")
    if accuracy < LEAST_ACCURACY:
        raise SystemExit(f"below {LEAST_ACCURACY}: nothing written")
    metadata = {
        "test_accuracy": f"{accuracy:.4f}",
        "test_images": str(len(test_labels)),
        "train_images": str(len(train_labels)),
        "seed": str(SEED),
        "data": "UCI Optical Recognition of Handwritten Digits (E. Alpaydin, C. Kaynak), CC BY 4.0, as bundled with scikit-learn",
    }
    onnx.save_model(to_onnx(model, metadata), FOLDER / "digits.onnx")
    write_samples(FOLDER / "digits.npz", test_pixels, test_labels)


if __name__ == "__main__":
    main()
