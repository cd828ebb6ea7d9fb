"""A tokenizer, a model and a schedule by the names under which scripts load them."""

import os
import random
import types

import torch


def set_seed(seed):
    random.seed(seed)
    torch.manual_seed(seed)


class Batch(dict):
    def to(self, device, **options):
        for name, tensor in self.items():
            self[name] = tensor.to(device, **options)
        return self


class AutoTokenizer:
    """A token is a character; 0 fills up."""

    @classmethod
    def from_pretrained(cls, name):
        return cls()

    def __call__(self, firsts, seconds, truncation, max_length):
        columns = {"input_ids": [], "token_type_ids": []}
        for first, second in zip(firsts, seconds):
            columns["input_ids"].append([min(ord(one), 127) for one in first + second])
            columns["token_type_ids"].append([0] * len(first) + [1] * len(second))
        return columns

    def pad(self, rows, padding, max_length, pad_to_multiple_of, return_tensors):
        longest = max(len(row["input_ids"]) for row in rows)
        batch = Batch(labels=torch.tensor([row["labels"] for row in rows]))
        for name in ("input_ids", "token_type_ids"):
            filled = [row[name] + [0] * (longest - len(row[name])) for row in rows]
            batch[name] = torch.tensor(filled)
        return batch


class AutoModelForSequenceClassification(torch.nn.Module):
    """Compares the mean of the two sentences' letters. It prints its loss as it trains."""

    # The model learns SCALE times its parameters: a script's rate is for a model far larger.
    SCALE = 1000

    @classmethod
    def from_pretrained(cls, name, return_dict):
        return cls()

    def __init__(self):
        super().__init__()
        self.letters = torch.nn.Parameter(torch.randn(128, 32) / self.SCALE)
        self.answers = torch.nn.Parameter(torch.randn(33, 2) / self.SCALE)

    def forward(self, input_ids, token_type_ids, labels):
        letters = torch.nn.functional.embedding(input_ids, self.letters) * self.SCALE
        means = []
        for kind in range(2):
            chosen = ((token_type_ids == kind) & (input_ids != 0)).unsqueeze(2)
            means.append((letters * chosen).sum(1) / chosen.sum(1))
        features = torch.nn.functional.pad((means[0] - means[1]).abs(), (0, 1), value=1.0)
        logits = features @ self.answers * self.SCALE
        loss = torch.nn.functional.cross_entropy(logits, labels)
        if self.training:
            print(f"loss of rank {os.environ['RANK']}: {loss.item():.9g}", flush=True)
        return types.SimpleNamespace(loss=loss, logits=logits)


def get_linear_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps):
    def factor(step):
        left = num_training_steps - step
        return min(step / num_warmup_steps, max(0, left / (num_training_steps - num_warmup_steps)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
