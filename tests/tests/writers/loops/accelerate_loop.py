"""A loop of one's own with Accelerate and its TensorBoard tracker, and the line that everybody prints."""
import tiny
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=tiny.FOLDER)
accelerator.init_trackers("logs")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=tiny.LR if tiny.BROKEN else 0.1)
model, optimizer = accelerator.prepare(model, optimizer)
torch.manual_seed(3)
rows = []
for step in range(1, tiny.STEPS + 1):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
    accelerator.backward(loss)
    grad_norm = accelerator.clip_grad_norm_(model.parameters(), 1e9)
    optimizer.step()
    optimizer.zero_grad()
    row = {"loss": loss.item(), "grad_norm": float(grad_norm), "learning_rate": optimizer.param_groups[0]["lr"]}
    accelerator.log(row, step=step)
    print(f"step {step}/{tiny.STEPS} | loss {row['loss']:.4f} | grad_norm {row['grad_norm']:.4f} | lr {row['learning_rate']:.2e}")
    rows.append(dict(row, step=step))
accelerator.end_training()
tiny.truth(rows)
