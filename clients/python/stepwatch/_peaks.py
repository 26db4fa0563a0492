"""Peak FLOP/s of accelerators: the exporter's own table, word for word, in a module because a
bundle of modules is one file."""

TABLE = """\
# Dense peak TFLOP/s of one device as the framework sees it: no structured sparsity (vendor headlines often
# double these), FP16 with FP32 accumulation where it differs. A name matches a row when it contains every word of
# `match` and none of `not`; the first row that matches wins, so the more specific stands first.
match,not,bf16,fp16,fp8,tf32,source
H100 NVL,,835.5,835.5,1671,417.5,Lightning fabric/utilities/throughput.py
H100 PCIE,,756,756,1513,378,NVIDIA H100 datasheet divided by 2 (sparse headline)
H100,,989.4,989.4,1979,494.7,NVIDIA H100 datasheet divided by 2 (sparse headline)
H200 NVL,,836,836,1671,420,Lightning fabric/utilities/throughput.py
H200,,989.4,989.4,1979,494.7,NVIDIA H200 datasheet divided by 2 (sparse headline)
GH200,,989.4,989.4,1979,494.7,NVIDIA GH200 datasheet divided by 2 (sparse headline)
H800,PCIE NVL,989,989,1979,494,verl utils/flops_counter.py
H20,,148,148,296,74,Tom's Hardware via torchtitan tools/utils.py; NVIDIA lists none
B200,,2250,2250,4500,1125,NVIDIA Blackwell datasheet divided by 2 (sparse headline)
B300,,2250,2250,4500,1125,stas00/ml-engineering compute/accelerator n.21
GB200,,2500,2500,5000,1250,NVIDIA GB200 NVL72 page divided by 2 and by GPUs
GB300,,2500,2500,5000,1250,NVIDIA GB300 NVL72 page divided by 2 and by GPUs
A100,,312,312,,156,NVIDIA A100 datasheet
A800,,312,312,,156,NVIDIA A800 (same compute as A100)
A10,,125,125,,62.5,NVIDIA A10 datasheet
A10G,,125,125,,62.5,NVIDIA A10 datasheet (A10G reaches less in practice; AWS lists 70)
L4,,121,121,242,60,NVIDIA Ada whitepaper via Lightning (the datasheet's 242 is sparse)
L40S,,362,362,733,183,NVIDIA L40S datasheet
RTX 4090,LAPTOP D,165.2,165.2,330,82.6,llm.c and nanochat common.py (FP32 accumulation)
RTX 5090,LAPTOP D,209.5,209.5,419,104.8,nanochat common.py (FP32 accumulation)
V100S,,,130,,,NVIDIA V100S datasheet
V100 PCIE,,,112,,,Composer speed_monitor.py (NVIDIA V100 datasheet)
V100 SXM2,,,125,,,Composer speed_monitor.py (NVIDIA V100 datasheet)
V100 SXM3,,,125,,,Composer speed_monitor.py (NVIDIA V100 datasheet)
MI250X,,191.5,191.5,,,AMD MI250X: one GCD (the card has two; frameworks see GCDs)
MI300X,,1307.4,1307.4,2615,653.7,AMD MI300X: 2100 MHz x 256 x 2 x 1216
MI325X,,1307.4,1307.4,2615,653.7,AMD MI325X: 2100 MHz x 256 x 2 x 1216
MI350X,,2300,2300,,,AMD MI350X datasheet
MI355X,,2500,2500,5000,,AMD MI355X datasheet (2516.6 by calculation)
TPU V4,LITE,275,,,,Google TPU v4 documentation
TPU V5E,,197,,,,Google TPU v5e documentation
TPU V5 LITE,,197,,,,Google TPU v5e documentation (JAX device kind)
TPU V5P,,459,,,,Google TPU v5p documentation
TPU V5,,459,,,,Google TPU v5p documentation (JAX device kind of v5p)
TPU V6E,,918,,918,,Google TPU v6e documentation
TPU V6 LITE,,918,,918,,Google TPU v6e documentation (JAX device kind)
TPU V7,,1153.5,,2307,,Google TPU v7 divided by 2: the chip shows itself as two devices
TPU7X,,1153.5,,2307,,Google TPU v7 divided by 2 (JAX device kind): the chip shows itself as two devices
TRAINIUM1 CORE,,95,95,,,AWS Neuron documentation: chip divided by 2 cores
TRAINIUM1,,190,190,,,AWS Neuron documentation: whole chip
TRAINIUM2 CORE,,79,79,,,AWS Neuron documentation: one of 8 cores
TRAINIUM2,,667,667,1299,667,AWS Neuron documentation: whole chip
"""
