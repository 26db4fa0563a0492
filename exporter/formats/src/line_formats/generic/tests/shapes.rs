//! Lines of trainers that have no grammar of their own, or change that of another, as their format
//! strings have them.

use crate::LogReader;
use stepwatch_wire::Kind;

/// Step, loss and gradient norm.
type Want = (i64, Option<f64>, Option<f64>);

/// What is said of tokens: our name, and the value of the last line.
type Rate = (&'static str, f64);

/// Names of what may be said of tokens.
const RATES: &[&str] = &["tokens", "tokens_per_second", "tokens_per_second_per_gpu"];

/// Which program prints so, what it prints, what is read from it, and what of tokens.
type Shape = (&'static str, &'static [&'static str], &'static [Want], &'static [Rate]);

const SHAPES: &[Shape] = &[
    (
        "numbered",
        &[
            "0: Loss 10.94 | Grad Norm 16.8 | LR 8.4e-07 | Time 20119.00ms | Tokens/s 26059",
            "1: Loss 10.91 | Grad Norm 15.1 | LR 1.7e-06 | Time 410.00ms | Tokens/s 1278751",
        ],
        &[(0, Some(10.94), Some(16.8)), (1, Some(10.91), Some(15.1))],
        &[("tokens_per_second", 1278751.0)],
    ),
    (
        "norm and grad",
        &["iter 10: loss 4.2, norm: 0.26, dt: 412.5ms", "iter 11: loss 4.1, norm: 0.25, dt: 410.5ms"],
        &[(10, Some(4.2), Some(0.26)), (11, Some(4.1), Some(0.25))],
        &[],
    ),
    (
        "grad alone",
        &["step 10 loss 4.2 grad 0.075 lr 0.1", "step 11 loss 4.1 grad 0.071 lr 0.1"],
        &[(10, Some(4.2), Some(0.075)), (11, Some(4.1), Some(0.071))],
        &[],
    ),
    (
        "fairseq simple",
        &[
            "| epoch 001:    100 / 5000 loss=9.125, ppl=558.3, wps=12345, ups=1.2, wpb=10000, bsz=300, num_updates=100, lr=1e-05, gnorm=1.5, train_wall=80, wall=100",
            "| epoch 001:    200 / 5000 loss=8.125, ppl=279.1, wps=12345, ups=1.2, wpb=10000, bsz=300, num_updates=200, lr=2e-05, gnorm=1.4, train_wall=160, wall=200",
        ],
        &[(100, Some(9.125), Some(1.5)), (200, Some(8.125), Some(1.4))],
        &[("tokens_per_second", 12345.0)],
    ),
    (
        "fairseq tqdm-less",
        &[
            "2026-05-29 03:52:45 | INFO | train_inner | epoch 001:    100 / 5000 loss=9.125, ppl=558.3, wps=12345, ups=1.2, num_updates=100, lr=1e-05, gnorm=1.5",
            "2026-05-29 03:53:45 | INFO | train_inner | epoch 001:    200 / 5000 loss=8.125, ppl=279.1, wps=12345, ups=1.2, num_updates=200, lr=2e-05, gnorm=1.4",
        ],
        &[(100, Some(9.125), Some(1.5)), (200, Some(8.125), Some(1.4))],
        &[("tokens_per_second", 12345.0)],
    ),
    (
        "OpenNMT",
        &[
            "[2026-05-29 03:52:45,000 INFO] Step 50/100000; acc: 6.1; ppl: 2300.5; xent: 7.74; lr: 0.00012; sents: 100; bsz: 3000/2500/10; 3000/2500 tok/s; 10 sec;",
            "[2026-05-29 03:53:45,000 INFO] Step 100/100000; acc: 7.1; ppl: 1300.5; xent: 7.17; lr: 0.00024; sents: 100; bsz: 3000/2500/10; 3000/2500 tok/s; 20 sec;",
        ],
        &[(50, Some(7.74), None), (100, Some(7.17), None)],
        &[],
    ),
    (
        "DiT",
        &[
            "[2026-05-29 03:52:45] (step=0000100) Train Loss: 0.1634, Train Steps/Sec: 1.23",
            "[2026-05-29 03:53:45] (step=0000200) Train Loss: 0.1534, Train Steps/Sec: 1.23",
        ],
        &[(100, Some(0.1634), None), (200, Some(0.1534), None)],
        &[],
    ),
    (
        "MAE, DeiT, torchvision",
        &[
            "Epoch: [0]  [  20/1251]  eta: 0:10:00  lr: 0.000100  loss: 6.9345 (6.9400)  time: 0.3012  data: 0.0101  max mem: 1000",
            "Epoch: [0]  [  40/1251]  eta: 0:10:00  lr: 0.000100  loss: 6.9045 (6.9300)  time: 0.3012  data: 0.0101  max mem: 1000",
            "Epoch: [1]  [   0/1251]  eta: 0:10:00  lr: 0.000100  loss: 6.8045 (6.8045)  time: 0.3012  data: 0.0101  max mem: 1000",
        ],
        &[(20, Some(6.9345), None), (40, Some(6.9045), None), (1251, Some(6.8045), None)],
        &[],
    ),
    (
        "DINOv2",
        &[
            "I20260529 03:52:45 1234 dinov2 helpers.py:102] Training  [    10/125000]  eta: 1 day, 2:03:04  lr: 0.0001 (0.0001)  wd: 0.0400 (0.0400)  total_loss: 11.9012 (11.9512)  dino_local_crops_loss: 5.1 (5.2)  time: 0.702551  data: 0.000123  max mem: 12345",
            "I20260529 03:52:52 1234 dinov2 helpers.py:102] Training  [    20/125000]  eta: 1 day, 2:03:04  lr: 0.0001 (0.0001)  wd: 0.0400 (0.0400)  total_loss: 11.7313 (11.8512)  dino_local_crops_loss: 5.1 (5.2)  time: 0.707887  data: 0.000123  max mem: 12345",
        ],
        &[(10, Some(11.9012), None), (20, Some(11.7313), None)],
        &[],
    ),
    (
        "detectron2",
        &[
            "[05/29 03:52:45 d2.utils.events]:  eta: 1:00:00  iter: 19  total_loss: 5.2  loss_cls: 4.5  loss_box_reg: 0.7  time: 0.2510  data_time: 0.02  lr: 0.0001  max_mem: 3000M",
            "[05/29 03:53:45 d2.utils.events]:  eta: 1:00:00  iter: 39  total_loss: 5.1  loss_cls: 4.4  loss_box_reg: 0.7  time: 0.2510  data_time: 0.02  lr: 0.0001  max_mem: 3000M",
        ],
        &[(19, Some(5.2), None), (39, Some(5.1), None)],
        &[],
    ),
    (
        "MMEngine",
        &[
            "05/29 03:52:45 - mmengine - INFO - Iter(train) [   10/90000]  base_lr: 1.0e-02 lr: 1.0e-02  eta: 5:00:00  time: 0.25  data_time: 0.01  memory: 1000  grad_norm: 5.1  loss: 2.5  decode.loss_ce: 2.5",
            "05/29 03:53:45 - mmengine - INFO - Iter(train) [   20/90000]  base_lr: 1.0e-02 lr: 1.0e-02  eta: 5:00:00  time: 0.25  data_time: 0.01  memory: 1000  grad_norm: 5.0  loss: 2.4  decode.loss_ce: 2.4",
        ],
        &[(10, Some(2.5), Some(5.1)), (20, Some(2.4), Some(5.0))],
        &[],
    ),
    (
        "PaddleNLP",
        &[
            "[2026-05-29 03:52:45,000] [    INFO] - loss: 10.99, learning_rate: 1e-05, global_step: 10, current_memory_allocated: 5.2, interval_runtime: 3.2, interval_samples_per_second: 10.1, interval_tokens_per_second_per_device: 2000.5, progress_or_epoch: 0.01",
            "[2026-05-29 03:53:45,000] [    INFO] - loss: 10.89, learning_rate: 2e-05, global_step: 20, current_memory_allocated: 5.2, interval_runtime: 3.2, interval_samples_per_second: 10.1, interval_tokens_per_second_per_device: 2000.5, progress_or_epoch: 0.02",
        ],
        &[(10, Some(10.99), None), (20, Some(10.89), None)],
        &[("tokens_per_second_per_gpu", 2000.5)],
    ),
    (
        "mlx-lm",
        &[
            "Iter 70: Train loss 2.786, Learning Rate 1.000e-05, It/sec 17.598, Tokens/sec 1728.137, Trained Tokens 6521, Peak mem 1.437 GB",
            "Iter 80: Train loss 2.686, Learning Rate 1.000e-05, It/sec 17.598, Tokens/sec 1728.137, Trained Tokens 7521, Peak mem 1.437 GB",
        ],
        &[(70, Some(2.786), None), (80, Some(2.686), None)],
        &[("tokens_per_second", 1728.137)],
    ),
    (
        "openpi",
        &[
            "03:52:45.638 [I] Step 100: grad_norm=0.5123, loss=0.0312, param_norm=1800.1 (12345:train.py:260)",
            "03:53:45.638 [I] Step 200: grad_norm=0.4123, loss=0.0302, param_norm=1800.2 (12345:train.py:260)",
        ],
        &[(100, Some(0.0312), Some(0.5123)), (200, Some(0.0302), Some(0.4123))],
        &[],
    ),
    (
        "lerobot",
        &[
            "INFO 2026-05-29 03:52:45 train.py:232 step:200 smpl:2K ep:3 epch:0.06 loss:0.123 grdn:0.512 lr:1.0e-05 updt_s:0.101 data_s:0.010",
            "INFO 2026-05-29 03:53:45 train.py:232 step:400 smpl:3K ep:6 epch:0.12 loss:0.113 grdn:0.412 lr:1.0e-05 updt_s:0.101 data_s:0.010",
        ],
        &[(200, Some(0.123), Some(0.512)), (400, Some(0.113), Some(0.412))],
        &[],
    ),
    (
        "diffusers",
        &[
            "Steps:  10%|█         | 100/1000 [00:50<07:30,  2.00it/s, lr=1e-5, step_loss=0.123]",
            "Steps:  10%|█         | 101/1000 [00:50<07:30,  2.00it/s, lr=1e-5, step_loss=0.113]",
        ],
        &[(100, Some(0.123), None), (101, Some(0.113), None)],
        &[],
    ),
    (
        "kohya",
        &[
            "steps:  10%|█         | 100/1000 [00:50<07:30,  2.00it/s, avr_loss=0.123]",
            "steps:  10%|█         | 101/1000 [00:50<07:30,  2.00it/s, avr_loss=0.122]",
        ],
        &[(100, Some(0.123), None), (101, Some(0.122), None)],
        &[],
    ),
    (
        "prime-rl",
        &[
            "03:52:45    INFO Step 10 | Time: 12.34s | Loss: 0.0123 | Entropy: 0.4567 | Mismatch KL: 0.0012 | Grad. Norm: 0.1234 | LR: 1.00e-06 | Throughput: 12345 tokens/s | MFU: 30.1% | Peak Mem.: 60.1/80.0 GiB (75.1%)",
            "03:53:45    INFO Step 11 | Time: 12.34s | Loss: 0.0113 | Entropy: 0.4467 | Mismatch KL: 0.0012 | Grad. Norm: 0.1134 | LR: 1.00e-06 | Throughput: 12345 tokens/s | MFU: 30.1% | Peak Mem.: 60.1/80.0 GiB (75.1%)",
        ],
        &[(10, Some(0.0123), Some(0.1234)), (11, Some(0.0113), Some(0.1134))],
        &[("tokens_per_second", 12345.0)],
    ),
    (
        "DeepSpeed-Chat",
        &[
            "Epoch: 0 | Step: 5 | PPO Epoch: 1 | Actor Loss: 0.1234 | Critic Loss: 0.4321 | Unsupervised Loss: 0.0",
            "Epoch: 0 | Step: 6 | PPO Epoch: 1 | Actor Loss: 0.1134 | Critic Loss: 0.4221 | Unsupervised Loss: 0.0",
        ],
        &[(5, Some(0.1234), None), (6, Some(0.1134), None)],
        &[],
    ),
    (
        "SkyRL",
        &[
            "(skyrl_entrypoint pid=1) 2026-05-29 03:52:45.123 | INFO     | skyrl_train.trainer:train:300 - step: 10, policy_loss: 0.0123, raw_grad_norm: 0.51",
            "(skyrl_entrypoint pid=1) 2026-05-29 03:53:45.123 | INFO     | skyrl_train.trainer:train:300 - step: 11, policy_loss: 0.0113, raw_grad_norm: 0.41",
        ],
        &[(10, Some(0.0123), Some(0.51)), (11, Some(0.0113), Some(0.41))],
        &[],
    ),
    (
        "slime",
        &[
            "(MegatronTrainRayActor pid=123) step 10: {'train/loss': 0.0123, 'train/grad_norm': 0.51, 'train/lr-pg_0': 1e-06}",
            "(MegatronTrainRayActor pid=123) step 11: {'train/loss': 0.0113, 'train/grad_norm': 0.41, 'train/lr-pg_0': 1e-06}",
        ],
        &[(10, Some(0.0123), Some(0.51)), (11, Some(0.0113), Some(0.41))],
        &[],
    ),
    (
        "RWKV",
        &[
            "Epoch 0:   1%|          | 100/40320 [01:00<6:00:00,  1.86it/s, loss=7.340, lr=6e-4, REAL it/s=1.860, Kt/s=122.0]",
            "Epoch 0:   1%|          | 101/40320 [01:00<6:00:00,  1.86it/s, loss=7.240, lr=6e-4, REAL it/s=1.860, Kt/s=122.0]",
        ],
        &[(100, Some(7.34), None), (101, Some(7.24), None)],
        &[("tokens_per_second", 122000.0)],
    ),
    (
        "torchtune bar",
        &[
            "1|100|Loss: 2.345678:   2%|▏         | 100/5000 [01:00<50:00,  1.63it/s]",
            "1|101|Loss: 2.245678:   2%|▏         | 101/5000 [01:01<50:00,  1.63it/s]",
        ],
        &[(100, Some(2.345678), None), (101, Some(2.245678), None)],
        &[],
    ),
    (
        "Keras 2",
        &[
            "100/1875 [>.............................] - ETA: 5s - loss: 2.3126 - accuracy: 0.1123",
            "200/1875 [==>...........................] - ETA: 5s - loss: 2.2026 - accuracy: 0.2123",
        ],
        &[(100, Some(2.3126), None), (200, Some(2.2026), None)],
        &[],
    ),
    (
        "Keras 3",
        &[
            "\u{1b}[1m 100/1875\u{1b}[0m \u{1b}[32m━\u{1b}[0m\u{1b}[37m━━━━━━━━━━━━━━━━━━━\u{1b}[0m \u{1b}[1m5s\u{1b}[0m 3ms/step - accuracy: 0.1123 - loss: 2.3126",
            "\u{1b}[1m 200/1875\u{1b}[0m \u{1b}[32m━━\u{1b}[0m\u{1b}[37m━━━━━━━━━━━━━━━━━━\u{1b}[0m \u{1b}[1m5s\u{1b}[0m 3ms/step - accuracy: 0.2123 - loss: 2.2026",
        ],
        &[(100, Some(2.3126), None), (200, Some(2.2026), None)],
        &[],
    ),
    (
        "big_vision",
        &[
            "I0706 16:50:26.230209 140110937163584 utils.py:123] \u{1b}[35m[100]\u{1b}[0m training_loss = 6.912",
            "I0706 16:50:27.230209 140110937163584 utils.py:123] \u{1b}[35m[150]\u{1b}[0m training_loss = 6.812",
        ],
        &[(100, Some(6.912), None), (150, Some(6.812), None)],
        &[],
    ),
    (
        "clu, flax examples",
        &[
            "I0706 16:50:26.230209 140110937163584 logging_writer.py:48] [100] learning_rate=0.1, loss=6.912, steps_per_sec=2.1",
            "I0706 16:50:27.230209 140110937163584 logging_writer.py:48] [200] learning_rate=0.1, loss=6.812, steps_per_sec=2.1",
        ],
        &[(100, Some(6.912), None), (200, Some(6.812), None)],
        &[],
    ),
    (
        "Cerebras",
        &[
            "2026-05-29 03:52:45,000 INFO:   | Train Device=CSX, Step=100, Loss=9.12345, Rate=100.5 samples/sec, GlobalRate=99.8 samples/sec",
            "2026-05-29 03:53:45,000 INFO:   | Train Device=CSX, Step=200, Loss=8.12345, Rate=100.5 samples/sec, GlobalRate=99.8 samples/sec",
        ],
        &[(100, Some(9.12345), None), (200, Some(8.12345), None)],
        &[],
    ),
    (
        "YOLO-like",
        &[
            "Epoch 1/300 step 100 box_loss=1.2 cls_loss=2.3 dfl_loss=1.1 loss=4.6",
            "Epoch 1/300 step 200 box_loss=1.1 cls_loss=2.2 dfl_loss=1.1 loss=4.4",
        ],
        &[(100, Some(4.6), None), (200, Some(4.4), None)],
        &[],
    ),
    (
        "python dict with step",
        &["{'step': 10, 'loss': 2.5, 'grad_norm': 0.5}", "{'step': 11, 'loss': 2.4, 'grad_norm': 0.4}"],
        &[(10, Some(2.5), Some(0.5)), (11, Some(2.4), Some(0.4))],
        &[],
    ),
    (
        "JSON behind a logger",
        &[
            "INFO:metrics:{\"step\": 10, \"loss\": 2.5, \"grad_norm\": 0.5}",
            "INFO:metrics:{\"step\": 11, \"loss\": 2.4, \"grad_norm\": 0.4}",
        ],
        &[(10, Some(2.5), Some(0.5)), (11, Some(2.4), Some(0.4))],
        &[],
    ),
    (
        "GPT-Fast, cs336",
        &[
            "it 100 | train loss 4.2345 | val loss 4.3456 | lr 3.00e-04 | norm 0.51 | 412.5 ms",
            "it 200 | train loss 4.1345 | val loss 4.2456 | lr 3.00e-04 | norm 0.41 | 412.5 ms",
        ],
        &[(100, Some(4.2345), Some(0.51)), (200, Some(4.1345), Some(0.41))],
        &[],
    ),
    (
        "arrow",
        &["step 100 -> loss: 4.2345, grad: 0.51", "step 200 -> loss: 4.1345, grad: 0.41"],
        &[(100, Some(4.2345), Some(0.51)), (200, Some(4.1345), Some(0.41))],
        &[],
    ),
    (
        "alpaca-lora-ish",
        &[
            "[GPU 0] Epoch 1 | Step 100 | Loss: 4.23 | Tok/s: 12,345",
            "[GPU 0] Epoch 1 | Step 200 | Loss: 4.13 | Tok/s: 12,345",
        ],
        &[(100, Some(4.23), None), (200, Some(4.13), None)],
        &[("tokens_per_second", 12345.0)],
    ),
    (
        "bar without end",
        &[
            "training: 100it [00:50,  2.00it/s, loss=2.34, lr=1e-5]",
            "training: 101it [00:50,  2.00it/s, loss=2.33, lr=1e-5]",
        ],
        &[(100, Some(2.34), None), (101, Some(2.33), None)],
        &[],
    ),
    (
        "ColossalAI",
        &[
            "Epoch: [1/1]:  10%|█         | 100/1000 [01:00<10:00,  1.50it/s, Loss=2.3456]",
            "Epoch: [1/1]:  10%|█         | 101/1000 [01:01<10:00,  1.50it/s, Loss=2.3356]",
        ],
        &[(100, Some(2.3456), None), (101, Some(2.3356), None)],
        &[],
    ),
    (
        "xtuner",
        &[
            "2026-05-29 03:52:45 [XTuner][INFO] [Train] (Epoch 1) Step 10/1000  lr: 0.000020  loss: 1.234  grad_norm: 0.51  max_memory: 60.1GB  text_tokens: 32768  tgs: 1234  data_time: 0.01s  time: 12.3s  eta: 3:00:00",
            "2026-05-29 03:53:45 [XTuner][INFO] [Train] (Epoch 1) Step 20/1000  lr: 0.000020  loss: 1.134  grad_norm: 0.41  max_memory: 60.1GB  text_tokens: 32768  tgs: 1234  data_time: 0.01s  time: 12.3s  eta: 3:00:00",
        ],
        &[(10, Some(1.234), Some(0.51)), (20, Some(1.134), Some(0.41))],
        &[("tokens_per_second_per_gpu", 1234.0)],
    ),
    (
        "InternEvo",
        &[
            "2026-05-29 03:52:45,000 INFO record_metrics.py:341 -- tflops=52.1 step=10 loss=11.2 real_tgs=2121.9 tgs (tokens/gpu/second)=2186.7 lr=4e-07 loss_scale=65536.0 grad_norm=63.7 micro_num=4 num_consumed_tokens=131072 inf_nan_skip_batches=0 fwd_bwd_time=14.8 acc=0.0 perplexity=73131.6",
            "2026-05-29 03:53:45,000 INFO record_metrics.py:341 -- tflops=52.1 step=11 loss=11.1 real_tgs=2121.9 tgs (tokens/gpu/second)=2186.7 lr=4e-07 loss_scale=65536.0 grad_norm=62.7 micro_num=4 num_consumed_tokens=262144 inf_nan_skip_batches=0 fwd_bwd_time=14.8 acc=0.0 perplexity=66171.1",
        ],
        &[(10, Some(11.2), Some(63.7)), (11, Some(11.1), Some(62.7))],
        &[("tokens_per_second_per_gpu", 2186.7)],
    ),
    (
        "fairseq2",
        &[
            "[05/29/26 03:52:45] INFO     fairseq2 - Train Metrics (step 10) - NLL Loss: 2.123 | Gradient Norm: 1.2 | Learning Rate: 1e-05 | Batch Size: 8 | Elements per Second: 12,345",
            "[05/29/26 03:53:45] INFO     fairseq2 - Train Metrics (step 20) - NLL Loss: 2.023 | Gradient Norm: 1.1 | Learning Rate: 1e-05 | Batch Size: 8 | Elements per Second: 12,345",
        ],
        &[(10, Some(2.123), Some(1.2)), (20, Some(2.023), Some(1.1))],
        &[],
    ),
    (
        "picotron",
        &[
            "[rank 0] Step: 10    | Loss: 9.1234 | Global batch size:   1.05M | Tokens/s:  45.12K | Tokens/s/GPU:   5.64K | Tokens:  10.49M | MFU: 38.12% | Memory usage:  45.12GB",
            "[rank 0] Step: 11    | Loss: 9.0234 | Global batch size:   1.05M | Tokens/s:  45.12K | Tokens/s/GPU:   5.64K | Tokens:  11.53M | MFU: 38.12% | Memory usage:  45.12GB",
        ],
        &[(10, Some(9.1234), None), (11, Some(9.0234), None)],
        &[("tokens", 1.05e6), ("tokens_per_second", 45120.0), ("tokens_per_second_per_gpu", 5640.0)],
    ),
    (
        "ESPnet",
        &[
            "[gpu01:0/1] 2026-05-29 03:52:45,000 (trainer:756) INFO: 1epoch:train:1-50batch: iter_time=1.234e-04, forward_time=0.100, loss_ctc=200.1, loss=123.4, backward_time=0.200, grad_norm=12.1, optim0_lr0=1.000e-06, train_time=0.500",
            "[gpu01:0/1] 2026-05-29 03:53:45,000 (trainer:756) INFO: 1epoch:train:51-100batch: iter_time=1.234e-04, forward_time=0.100, loss_ctc=200.1, loss=113.4, backward_time=0.200, grad_norm=11.1, optim0_lr0=1.000e-06, train_time=0.500",
        ],
        &[(50, Some(123.4), Some(12.1)), (100, Some(113.4), Some(11.1))],
        &[],
    ),
    (
        "tokens so far",
        &[
            "step=1 loss=2.5 tokens=65536 lr=1e-4",
            "step=2 loss=2.4 tokens=131072 lr=1e-4",
            "step=3 loss=2.3 tokens=196608 lr=1e-4",
        ],
        &[(1, Some(2.5), None), (2, Some(2.4), None), (3, Some(2.3), None)],
        &[("tokens", 65536.0)],
    ),
    (
        "nshepperd's GPT-2",
        &["[1 | 4.05] loss=3.35 avg=3.36", "[2 | 5.00] loss=3.25 avg=3.31", "[3 | 6.10] loss=3.15 avg=3.26"],
        &[(1, Some(3.35), None), (2, Some(3.25), None), (3, Some(3.15), None)],
        &[],
    ),
    (
        "values before their names",
        &[
            "Step 10/1000 - 4.90 loss - 0.30 grad norm - 12k tok/s",
            "Step 11/1000 - 4.8 loss - 0.31 grad norm - 12k tok/s",
        ],
        &[(10, Some(4.9), Some(0.3)), (11, Some(4.8), Some(0.31))],
        &[],
    ),
    (
        "tinygrad",
        &[
            "    1  412.00 ms run,  20.10 ms python,  390.20 ms CUDA,  4.91 loss, 0.000100 LR, 20.10 GB used,  12345.12 GFLOPS",
            "    2  411.00 ms run,  20.10 ms python,  390.20 ms CUDA,  4.81 loss, 0.000100 LR, 20.10 GB used,  12345.12 GFLOPS",
        ],
        &[(1, Some(4.91), None), (2, Some(4.81), None)],
        &[],
    ),
    (
        "MindSpore",
        &[
            "epoch: 1 step: 59, loss is 2.31",
            "epoch: 1 step: 60, loss is 2.21",
            "epoch: 2 step: 1, loss is 2.11",
        ],
        &[(59, Some(2.31), None), (60, Some(2.21), None), (61, Some(2.11), None)],
        &[],
    ),
];

#[test]
fn lines_of_trainers() {
    for (name, lines, want, rates) in SHAPES {
        let (mut r, mut out) = (LogReader::new(None).unwrap(), Vec::new());
        for l in *lines {
            r.line(l, &mut out);
        }
        let steps = out.iter().filter(|e| e.kind == Kind::Step);
        let got: Vec<_> = steps.map(|e| (e.step.unwrap(), e.m.get("loss"), e.m.get("grad_norm"))).collect();
        assert_eq!(got, *want, "{name}");
        let last = out.iter().rfind(|e| e.kind == Kind::Step).unwrap();
        let got = RATES.iter().filter_map(|rate| Some((*rate, last.m.get(rate)?)));
        assert_eq!(got.collect::<Vec<_>>(), *rates, "{name}");
    }
}

/// The same lines with a loss that is no number are reported so.
#[test]
fn their_losses_may_be_nan() {
    for (name, lines, want, _) in SHAPES {
        let Some((_, Some(loss), _)) = want.last() else { continue };
        let (mut r, mut out) = (LogReader::new(None).unwrap(), Vec::new());
        for l in *lines {
            r.line(l, &mut out);
        }
        let Some(last) = lines.last() else { continue };
        let at = last.rfind(&format!("{loss}")).unwrap_or_else(|| panic!("{name}"));
        let digits = last[at..].bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        // Some print the mean behind it.
        let nan = last.replace(&last[at..at + digits], "nan");
        out.clear();
        r.line(&nan, &mut out);
        let lost = out.iter().any(|e| e.m.get("loss").is_some_and(f64::is_nan));
        assert!(lost, "{name}: {nan}: {out:?}");
    }
}
