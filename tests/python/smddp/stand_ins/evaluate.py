"""The share of right answers, whatever the metric's name."""


class Metric:
    def __init__(self):
        self.right = []

    def add_batch(self, predictions, references):
        self.right += (predictions == references).tolist()

    def compute(self):
        right, self.right = self.right, []
        return {"accuracy": sum(right) / len(right), "answers": len(right)}


def load(path, name):
    return Metric()
