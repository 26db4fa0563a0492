//! Tests of what is published of a command line.

use super::*;

fn of(words: &[&str]) -> Arguments {
    Arguments::of(words.join("\0").as_bytes())
}

fn line(line: &str) -> Arguments {
    of(&line.split_whitespace().collect::<Vec<_>>())
}

fn pairs(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
}

#[test]
fn arguments_without_secrets_and_places() {
    let found = line(
        "python -u train.py --lr 3e-4 --seed=7 --bf16 --offset -0.5 --save /out --wandb-api-key canary \
         --hub-token=canary --hf hf_abcdefghijklmnopqrst --master_port 29500 --config conf/a.yaml \
         --data-path /data/c4 --lr 9 optim.beta1=0.9 --node_rank 3",
    );
    let want = [
        ("bf16", "given"),
        ("data-path", "/data/c4"),
        ("lr", "9"),
        ("offset", "-0.5"),
        ("optim.beta1", "0.9"),
        ("seed", "7"),
    ];
    assert_eq!(found, Arguments { shown: pairs(&want), secret: 3, over: 0 });
    let found = line("python -m torchtitan.train --training.seq_len 8192");
    assert_eq!(found.shown, pairs(&[("training.seq_len", "8192")]));
    assert_eq!(line("nginx -g daemon"), Arguments::default());
}

#[test]
fn many_arguments_are_published_and_the_rest_is_counted() {
    let many: Vec<String> = (0..150).map(|i| format!("--a{i} 1")).collect();
    let found = line(&format!("python train.py {} --lr 1", many.join(" ")));
    assert_eq!((found.shown.len(), found.over), (128, 23));
    assert_eq!(found.shown.get("lr").map(String::as_str), Some("1"));
}

#[test]
fn no_secret_of_a_command_line_is_published() {
    let hex = "3f2b8c1d9a7e6f5b4c3d2e1f0a9b8c7d6e5f4a3b";
    for words in [
        &["--wandbkey", hex][..],
        &["--hftoken", "hunter2"],
        &["--clientsecret", "hunter2"],
        &["--privatekey", "hunter2"],
        &["--accountkey", "hunter2"],
        &["--sshkey", "hunter2"],
        &["--hf_login", "hunter2"],
        &["--userpass", "hunter2"],
        &["--passcode", "hunter2"],
        &["-p", "hunter2"],
        &["-phunter2"],
        &["--comet", hex],
        &["--env", "DB_PASS=hunter2"],
        &["--env", "A=hunter2", "B=hunter2"],
        &["-e", "A=hunter2"],
        &["--export", "ALL,GH_PAT=hunter2"],
        &["--env_vars", "AWS_ACCESS=AAA,MINIO_PW=hunter2"],
        &["--storage_options", r#"{"key":"minio","secret":"hunter2"}"#],
        &["db={user:ada,password:hunter2}"],
        &["--headers", "Authorization: Bearer hunter2"],
        &["--otel-headers=authorization=Basic%20hunter2"],
        &["--slack_webhook", "https://hooks.slack.com/services/hunter2"],
        &["hunter2"],
        &["aHVudGVyMjpodW50ZXIy="],
        &["--hf_hunter2hunter2hunter2"],
        &["-p", "123456"],
        &["--model-args", "pretrained=x,token=hunter2"],
        &["--data-args", "--hf-token hunter2"],
        &["--data-path", "0.5", "/data/a", "https://ada:hunter2@mirror/b"],
        &["--data.secret", "0.5", "/hunter2"],
        &["reward_model.api_key=hunter2"],
        &["--image.hub_token", "hunter2"],
    ] {
        let found = of(&[&["python", "train.py"][..], words].concat());
        let text = format!("{:?}", found.shown);
        let is_hidden = ["hunter2", hex, "aHVudGVy", "123456"].iter().all(|secret| !text.contains(secret));
        assert!(is_hidden, "{words:?}: {text}");
    }
}

/// The values that are published of a real command line, of those asked for.
fn shows(command: &str, asked: &[(&str, &str)]) {
    let found = line(command).shown;
    for (name, value) in asked {
        assert_eq!(found.get(*name).map(String::as_str), Some(*value), "{name} of {found:?}");
    }
}

#[test]
fn command_lines_of_trainers_survive() {
    // Megatron-LM.
    shows(
        "python -u pretrain_gpt.py --tensor-model-parallel-size 4 --num-layers 32 --seq-length 4096 \
         --transformer-impl transformer_engine --overlap-grad-reduce --tokenizer-type GPT2BPETokenizer \
         --tokenizer-model /models/tok --moe-token-dispatcher-type alltoall --data-path 0.5 /data/a 0.5 /data/b \
         --lr-decay-style cosine --split 949,50,1 --bf16 --adam-beta1 0.9",
        &[
            ("tensor-model-parallel-size", "4"),
            ("transformer-impl", "transformer_engine"),
            ("overlap-grad-reduce", "given"),
            ("tokenizer-type", "GPT2BPETokenizer"),
            ("tokenizer-model", "/models/tok"),
            ("moe-token-dispatcher-type", "alltoall"),
            ("lr-decay-style", "cosine"),
            ("split", "949,50,1"),
            ("data-path", "0.5 /data/a 0.5 /data/b"),
        ],
    );
    // torchtitan.
    shows(
        "python -m torchtitan.train --job.config_file ./llama.toml --training.seq_len 8192 --model.flavor 8B \
         --parallelism.tensor_parallel_degree 8 --activation_checkpoint.mode selective",
        &[("training.seq_len", "8192"), ("model.flavor", "8B"), ("parallelism.tensor_parallel_degree", "8")],
    );
    // The trainer of Hugging Face with DeepSpeed.
    shows(
        "python run_clm.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 8 \
         --lr_scheduler_type cosine --torch_compile True --deepspeed ds.json --include_num_input_tokens_seen True \
         --push_to_hub_token hunter2 --gradient_checkpointing",
        &[
            ("model_name_or_path", "meta-llama/Llama-3.1-8B"),
            ("per_device_train_batch_size", "8"),
            ("lr_scheduler_type", "cosine"),
            ("torch_compile", "True"),
            ("include_num_input_tokens_seen", "True"),
        ],
    );
    // nanoGPT.
    shows(
        "python train.py config/train_gpt2.py --batch_size=32 --compile=False --n_embd=768",
        &[("1", "train_gpt2.py"), ("batch_size", "32"), ("compile", "False"), ("n_embd", "768")],
    );
    // verl.
    shows(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=1024 \
         data.max_prompt_length=512 actor_rollout_ref.actor.optim.lr=1e-6 \
         actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=5 \
         +actor_rollout_ref.model.use_remove_padding=True \
         actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \
         actor_rollout_ref.actor.fsdp_config.optimizer_offload=True",
        &[
            ("algorithm.adv_estimator", "grpo"),
            ("data.train_batch_size", "1024"),
            ("actor_rollout_ref.actor.optim.lr", "1e-6"),
            ("actor_rollout_ref.rollout.n", "5"),
            ("actor_rollout_ref.model.use_remove_padding", "True"),
            ("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu", "8"),
            ("actor_rollout_ref.actor.fsdp_config.optimizer_offload", "True"),
        ],
    );
    // torchtune, and Hydra.
    shows(
        "/opt/venv/bin/python -X dev /opt/venv/bin/tune run --config llama3/8B_full batch_size=4 --profile",
        &[("config", "llama3/8B_full"), ("profile", "given"), ("batch_size", "4"), ("1", "run")],
    );
    shows("python train.py --config-name=llama_70b", &[("config-name", "llama_70b")]);
    // Settings after the name of a configuration are no part of a secret.
    shows(
        "python train.py -cp conf -cn llama_70b optim.lr=3e-4 model.key_dim=128 \
         model.path=/models/hf_checkpoints/llama",
        &[
            ("config-name", "llama_70b"),
            ("optim.lr", "3e-4"),
            ("model.key_dim", "128"),
            ("model.path", "/models/hf_checkpoints/llama"),
        ],
    );
}

#[test]
fn the_last_value_of_an_argument_counts() {
    let found = line("python train.py --micro-batch-size 1 --lr=1 --micro-batch-size 2 --lr 3");
    assert_eq!(found.shown, pairs(&[("lr", "3"), ("micro-batch-size", "2")]));
}

#[test]
fn long_paths_differ_by_their_hashes() {
    let of = |folder: &str| {
        let path = format!("/{}{folder}", "datasets/".repeat(8));
        of(&["python", "train.py", "--data-path", &path]).shown["data-path"].clone()
    };
    assert!(of("c4").len() == 12 && of("c4") == of("c4") && of("c4") != of("pile"), "{}", of("c4"));
}

#[test]
fn where_python_has_its_script() {
    let of = |line: &str| first_argument(&line.split_whitespace().collect::<Vec<_>>());
    for (line, at) in [
        ("python train.py --lr 1", Some(2)),
        ("/usr/bin/python3.11 -u -W ignore /opt/bin/tune run", Some(5)),
        ("python -m pkg.train --lr 1", Some(3)),
        ("python -m", Some(3)),
        ("python -c print --token x", None),
        ("python", None),
        ("tune run a.py", Some(3)),
        ("nginx", None),
    ] {
        assert_eq!(of(line), at, "{line}");
    }
}

#[test]
fn command_lines() {
    let of = |line: &str| files(line.replace(' ', "\0").as_bytes());
    assert_eq!(
        of("python -u train.py --config conf/a.yaml --lr 3e-4 other.py"),
        ["train.py", "conf/a.yaml", "other.py"]
    );
    assert_eq!(of("python train.py --config=a b.toml --config"), ["train.py", "a", "b.toml"]);
    assert_eq!(of("python -m torchtitan.train --job.config_file ./llama.toml"), ["./llama.toml"]);
    assert_eq!(of("python x.py --deepspeed ds --deepspeed --flag"), ["x.py", "ds"]);
    assert_eq!(
        of("python x.py --config-path a/b --config-name=llama"),
        ["x.py", "a/b/llama.yaml", "conf/llama.yaml", "config/llama.yaml", "configs/llama.yaml"]
    );
    assert_eq!(of("python x.py -cn"), ["x.py"]);
    assert_eq!(of("nginx"), [""; 0]);
    assert_eq!(of(&"a.json ".repeat(40)), ["a.json"]);
}

proptest::proptest! {
    #[test]
    fn what_follows_a_secret_name_is_never_published(
        name in "--?(my[-_])?(api[-_]?key|token|password|passwd|secret|login|credentials|env|headers)",
        words in proptest::collection::vec("canary[0-9a-z]{0,9}(=canary)?", 1..4),
    ) {
        let words: Vec<&str> =
            ["python", "train.py", &*name].into_iter().chain(words.iter().map(String::as_str)).collect();
        let found = of(&words);
        proptest::prop_assert!(!format!("{:?}", found.shown).contains("canary"), "{:?}", found);
    }
}
