"""Keras on torch: `fit`, whose steps go through torch's DistributedDataParallel, with each rank's part of the data."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras  # noqa: E402
import told  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


class Trained(keras.Model):
    """Its layers are wrapped, so that the backward pass sums gradients."""

    def __init__(self):
        super().__init__()
        layers = [keras.layers.Dense(16, "relu"), keras.layers.LayerNormalization(), keras.layers.Dense(2)]
        self.layers_of_mine = keras.Sequential([keras.layers.Input((10,)), *layers])
        self.wrapped = [torch.nn.parallel.DistributedDataParallel(self.layers_of_mine)]  # a list hides it from Keras

    def call(self, rows):
        return self.layers_of_mine(rows)

    def train_step(self, batch):
        rows, classes = batch
        self.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.wrapped[0](rows), classes)
        loss.backward()
        weights = self.trainable_weights
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
        return {"loss": loss}


class Steps(keras.callbacks.Callback):
    def on_train_batch_end(self, number, logs=None):
        told.step_is_done(self.model.optimizer.iterations.numpy() - 1)


def main():
    dist.init_process_group(told.backend())
    told.tell_group()
    keras.utils.set_random_seed(4)
    data = told.data(96)
    own = torch.utils.data.DistributedSampler(data, shuffle=False)
    model = Trained()
    model.compile(optimizer=keras.optimizers.Adam(0.01))
    epochs = 10**6 if told.asked() == "interrupt" else 3
    loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=own)
    past = model.fit(loader, epochs=epochs, verbose=0, callbacks=[Steps()])
    told.tell("trained", losses=[float(loss) for loss in past.history["loss"]], **told.bits(model.layers_of_mine))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
