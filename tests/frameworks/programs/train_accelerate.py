"""accelerate: training with accumulated gradients, metrics of all ranks, a state that is saved and loaded."""

import accelerate
import told
import torch


def main():
    if told.backend() != "gloo":  # accelerate takes no other name on CPU, and any group that is there
        torch.distributed.init_process_group(told.backend())
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    told.tell_group()
    model = told.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(told.data(90), batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses, step = [], 0
    for _ in told.steps(3):
        for rows, classes in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(rows), classes)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            told.step_is_done(step)
            step += 1
    told.tell("trained", losses=losses, **told.bits(model))

    model.eval()
    right = [accelerator.gather_for_metrics((model(rows).argmax(dim=1), classes)) for rows, classes in loader]
    guesses, classes = (torch.cat(parts) for parts in zip(*right))
    told.tell("metrics", count=len(guesses), right=int((guesses == classes).sum()), **told.bits([guesses]))

    folder = told.folder()
    accelerator.save_state(folder)
    accelerator.wait_for_everyone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    accelerator.load_state(folder)
    told.tell("loaded", **told.bits(model))
    objects = accelerate.utils.gather_object([{"rank": accelerator.process_index}])
    told.tell("objects", objects=objects)
    accelerator.end_training()


if __name__ == "__main__":
    main()
