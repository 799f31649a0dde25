"""Programs in Keras, for whichever backend it has. Each gives numbers that the device must give as the processor does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

Numbers = list[float]


def digits() -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    return (images[:1280] / 16).astype("float32"), labels[:1280]


def settle(model: keras.Model) -> keras.Model:
    """Weights that every backend and device has alike."""
    chance = np.random.default_rng(4)
    for variable in model.trainable_variables:
        variable.assign(chance.normal(0, 0.1, variable.shape).astype("float32"))
    return model


def told(history: keras.callbacks.History) -> Numbers:
    return [float(value) for values in history.history.values() for value in values]


def callbacks(folder: Path) -> Numbers:
    """A perceptron with schedules, checkpoints and early stopping, saved and loaded."""
    images, labels = digits()
    model = settle(keras.Sequential([layers.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(10, activation="softmax")]))
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    watching = [
        keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True),
        keras.callbacks.ReduceLROnPlateau(patience=1),
        keras.callbacks.CSVLogger(folder / "log.csv"),
    ]
    history = model.fit(images, labels, epochs=3, batch_size=64, validation_split=0.2, shuffle=False, verbose=0, callbacks=watching)
    again = keras.models.load_model(folder / "best.keras")
    return [*told(history), *again.evaluate(images, labels, verbose=0), *again.predict(images[:2], verbose=0).flatten().tolist()]


def convolutions(folder: Path) -> Numbers:
    """Batch norms, separable convolutions, pooling, a decaying rate."""
    images, labels = digits()
    middle = (layers.BatchNormalization(), layers.Activation("relu"), layers.MaxPooling2D(), layers.SeparableConv2D(16, 3, padding="same"))
    model = keras.Sequential(
        [layers.Input((8, 8, 1)), layers.Conv2D(8, 3, padding="same"), *middle, layers.GlobalAveragePooling2D(), layers.Dense(10)]
    )
    rate = keras.optimizers.schedules.CosineDecay(0.05, 20)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    settle(model).compile(optimizer=keras.optimizers.SGD(rate, momentum=0.9, nesterov=True), loss=loss, metrics=["accuracy"])
    history = model.fit(images.reshape(-1, 8, 8, 1), labels, epochs=2, batch_size=128, shuffle=False, verbose=0)
    model.save_weights(folder / "own.weights.h5")
    model.load_weights(folder / "own.weights.h5")
    return [*told(history), *model.predict(images[:4].reshape(-1, 8, 8, 1), verbose=0).flatten().tolist()]


def recurrent(folder: Path) -> Numbers:
    """Masked sequences through recurrent layers of both directions."""
    words = np.random.default_rng(1).integers(1, 50, (256, 12))
    words[:, 9:] = 0
    odd = (words.sum(1) % 2).astype("float32")
    first = (layers.Input((12,)), layers.Embedding(50, 16, mask_zero=True), layers.Bidirectional(layers.LSTM(16, return_sequences=True)))
    model = keras.Sequential([*first, layers.GRU(8), layers.Dense(1, "sigmoid")])
    settle(model).compile(optimizer="rmsprop", loss="binary_crossentropy", metrics=["AUC"])
    return told(model.fit(words, odd, epochs=2, batch_size=64, shuffle=False, verbose=0))


class Autoencoder(keras.Model):
    """With a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([layers.Dense(32, activation="relu"), layers.Dense(8)])
        self.decoder = layers.Dense(64, activation="sigmoid")

    def call(self, images: keras.KerasTensor) -> keras.KerasTensor:
        code = self.encoder(images)
        self.add_loss(1e-2 * ops.mean(ops.square(code)))
        return self.decoder(code)


def own_losses(folder: Path) -> Numbers:
    images, _ = digits()
    model = Autoencoder()
    model(images[:1])
    settle(model).compile(optimizer=keras.optimizers.AdamW(1e-3, clipnorm=1.0), loss="mse")
    history = model.fit(images, images, epochs=2, batch_size=64, shuffle=False, verbose=0)
    return [*told(history), *(float(np.abs(weight).sum()) for weight in model.get_weights())]


class Block(layers.Layer):
    """Of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norms = layers.MultiHeadAttention(2, 16), [layers.LayerNormalization(), layers.LayerNormalization()]
        self.wide = keras.Sequential([layers.Dense(64, activation="gelu"), layers.Dense(32)])

    def call(self, words: keras.KerasTensor) -> keras.KerasTensor:
        words = self.norms[0](words + self.attention(words, words, use_causal_mask=True))
        return self.norms[1](words + self.wide(words))


def transformer(folder: Path) -> Numbers:
    inputs = keras.Input((16,), dtype="int32")
    model = settle(keras.Model(inputs, layers.Dense(40)(Block()(Block()(layers.Embedding(40, 32)(inputs))))))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(1e-3, global_clipnorm=1.0), loss=loss)
    words = np.random.default_rng(2).integers(0, 40, (128, 17))
    history = model.fit(words[:, :-1], words[:, 1:], epochs=2, batch_size=32, shuffle=False, verbose=0)
    return [*told(history), model.evaluate(words[:, :-1], words[:, 1:], verbose=0)]


PROGRAMS: dict[str, Callable[[Path], Numbers]] = {
    program.__name__: program for program in (callbacks, convolutions, recurrent, own_losses, transformer)
}


def draws(folder: Path) -> Numbers:
    """Dropout, augmentation and half precision: the first loss and the last, which must be less."""
    images, labels = digits()
    policy = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        augmented = (layers.RandomTranslation(0.1, 0.1), layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dropout(0.2))
        model = keras.Sequential([layers.Input((8, 8, 1)), *augmented, layers.Dense(10, dtype="float32", activation="softmax")])
        model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
        losses = model.fit(images.reshape(-1, 8, 8, 1), labels, epochs=3, batch_size=64, verbose=0).history["loss"]
    finally:
        keras.mixed_precision.set_global_policy(policy)
    return [losses[0], losses[-1]]
