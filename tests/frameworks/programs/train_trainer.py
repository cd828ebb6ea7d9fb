"""transformers' Trainer: 30 steps, a checkpoint after 15, and the second half once more from there; LoRA by peft;
SFT by TRL. The word that the program is given says which."""

import os
import sys

import told
import torch
import transformers

STEPS = 30


class Tell(transformers.TrainerCallback):
    def on_train_begin(self, arguments, state, control, **more):
        told.tell_group()

    def on_step_end(self, arguments, state, control, **more):
        told.step_is_done(state.global_step - 1)


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = told.model()

    def forward(self, rows, labels):
        logits = self.layers(rows)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def arguments(name, kind=transformers.TrainingArguments, **more):
    return kind(
        output_dir=os.path.join(told.folder(), name),
        use_cpu=True,
        max_steps=10**6 if told.asked() == "interrupt" else STEPS,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        logging_steps=5,
        report_to="none",
        disable_tqdm=True,
        **more,
    )


def tell_training(name, trainer):
    told.tell(name, losses=[entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    told.tell(f"{name} weights", **told.bits(trainer.model))


def plain():
    rows = [{"rows": row, "labels": label} for row, label in told.data(128)]
    for name, begin in (("trained", None), ("resumed", "checkpoint-15")):
        settings = arguments("trained", save_steps=15)
        sets = {"train_dataset": rows, "eval_dataset": rows}
        trainer = transformers.Trainer(Classifier(), settings, callbacks=[Tell()], **sets)
        trainer.train(begin and os.path.join(settings.output_dir, begin))
        tell_training(name, trainer)
    measured = trainer.evaluate()
    told.tell("evaluated", loss=measured["eval_loss"])


def language_model():
    transformers.set_seed(5)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=32, **sizes))


def texts():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 32, (12,), generator=generator).tolist() for _ in range(64)]


def lora():
    import peft

    model = peft.get_peft_model(language_model(), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    rows = [{"input_ids": text, "labels": text} for text in texts()]
    trainer = transformers.Trainer(model, arguments("lora"), train_dataset=rows, callbacks=[Tell()])
    trainer.train()
    tell_training("lora", trainer)


def sft():
    import datasets
    import tokenizers
    import trl

    words = {f"w{number}": number for number in range(32)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="w0", pad_token="w1", eos_token="w2"
    )
    rows = datasets.Dataset.from_list([{"text": " ".join(f"w{word}" for word in text)} for text in texts()])
    settings = arguments("sft", trl.SFTConfig, max_length=16)
    trainer = trl.SFTTrainer(
        language_model(), settings, train_dataset=rows, processing_class=tokenizer, callbacks=[Tell()]
    )
    trainer.train()
    tell_training("sft", trainer)


if __name__ == "__main__":
    if told.backend() != "gloo":  # accelerate, which is below all of this, takes no other name on CPU
        torch.distributed.init_process_group(told.backend())
    {"plain": plain, "lora": lora, "sft": sft}[sys.argv[1]]()
